"""linear_dense in C++: the weight as it lies, every sum made in one order."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from kernels.native.library import KINDS, Library, contiguous
from kernels.reference.linear_dense import linear_dense as linear_dense_reference

BRIEF_PRODUCTS_MAX = 2_000_000  # some 100 us

_CALL = struct.Struct("@4Q5q3i").pack  # lr::DenseCall


class DenseKernel:
    """Dtypes and layouts that the kernel does not have go to the reference."""

    def __init__(self, library: Library) -> None:
        self._brief = library.brief("lr_linear_dense")
        self._long = library.long("lr_linear_dense")

    def linear_dense(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """[R, N] in the dtype of `out`, or of x; products and sums in float32.

        A row's result is the same alone or among others, to the bit: its sums run along K in
        an order that K and the processor's vectors decide.
        """
        x_kind, kind = KINDS.get(x.dtype), KINDS.get(weight.dtype)
        rows, k = x.shape
        n = weight.shape[0]
        if out is None:
            out = torch.empty((rows, n), dtype=x.dtype)
        out_kind = KINDS.get(out.dtype)
        if (
            x_kind is None
            or kind is None
            or out_kind is None
            or not (weight.is_contiguous() and out.is_contiguous())
        ):
            return linear_dense_reference(x, weight, bias=bias, out=out)
        if weight.shape[1] != k or out.shape != (rows, n):
            raise ValueError(
                f"x {list(x.shape)} with a weight {list(weight.shape)} does not give "
                f"{list(out.shape)}"
            )
        x = contiguous(x)
        bias_address = 0
        if bias is not None:
            bias = contiguous(bias.float())
            bias_address = bias.data_ptr()
        call = _CALL(
            *(x.data_ptr(), weight.data_ptr(), bias_address, out.data_ptr()),
            *(rows, k, n, k, n, x_kind, kind, out_kind),
        )
        if (self._brief if rows * n * k <= BRIEF_PRODUCTS_MAX else self._long)(call):
            raise MemoryError(f"no memory for {rows} rows of {k} in float32")
        return out
