"""markov_pick in C++: all places of a block in one call."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from kernels.interface import Int8Weight
from kernels.native.library import KINDS, Library, contiguous
from kernels.native.linear import Int8Kernels
from kernels.reference.markov_pick import markov_pick as markov_pick_reference

_CALL = struct.Struct("@6Q3qi").pack  # lr::MarkovCall
_NO_SUCH_TOKEN = 2


class MarkovKernel:
    """Other dtypes than the kernel's go to the reference."""

    def __init__(self, library: Library, int8: Int8Kernels) -> None:
        self._pick = library.brief("lr_markov_pick")
        self._pick_long = library.long("lr_markov_pick")
        self._packed_of = int8.packed_of

    def markov_pick(
        self,
        logits: Tensor,
        previous: Tensor,
        table: Tensor,
        weight: Int8Weight,
        *,
        offsets: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """As the reference's, with the products of this `linear_int8`: [S, N].

        Raises IndexError for a token that the table does not have, a draft's own among them.
        """
        kind = KINDS.get(table.dtype)
        integers = (previous, offsets, out)
        if (
            kind is None
            or logits.dtype is not torch.float32
            or any(each is not None and each.dtype is not torch.int64 for each in integers)
            or (out is not None and not out.is_contiguous())
        ):
            return markov_pick_reference(logits, previous, table, weight, offsets=offsets, out=out)
        packed = self._packed_of(weight)
        num_sequences, num_places, size = logits.shape
        if out is None:
            out = torch.empty((num_sequences, num_places), dtype=torch.int64)
        if (
            (size, table.shape[1]) != (packed.n, packed.k)
            or previous.numel() != num_sequences
            or out.numel() != num_sequences * num_places
            or (offsets is not None and offsets.numel() != size)
        ):
            raise ValueError(
                f"logits {list(logits.shape)}, {previous.numel()} tokens, a table "
                f"{list(table.shape)} and a weight [{packed.n}, {packed.k}] do not fit"
            )
        logits, previous, table = contiguous(logits), contiguous(previous), contiguous(table)
        offsets = None if offsets is None else contiguous(offsets)
        call = _CALL(
            *(logits.data_ptr(), previous.data_ptr(), table.data_ptr()),
            *(0 if offsets is None else offsets.data_ptr(), packed.address, out.data_ptr()),
            *(num_sequences, num_places, table.shape[0], kind),
        )
        is_brief = num_sequences * num_places <= packed.brief_rows_max
        wrong = (self._pick if is_brief else self._pick_long)(call)
        if wrong == _NO_SUCH_TOKEN:
            raise IndexError(f"a token is not one of the table's {table.shape[0]}")
        if wrong:
            raise MemoryError(f"no memory for {num_sequences} rows of {size} logits")
        return out
