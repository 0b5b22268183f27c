"""sample in C++: a row's weights, filters and draw in one go."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from kernels.native.library import Library
from kernels.reference.sample import VOCAB_SIZE_MAX
from kernels.reference.sample import sample as sample_reference

BRIEF_LOGITS_MAX = 100_000  # some 200 us

_CALL = struct.Struct("@7Q3q").pack  # lr::SampleCall


class SampleKernel:
    """Logits in another type than float32 go to the reference."""

    def __init__(self, library: Library) -> None:
        self._brief = library.brief("lr_sample")
        self._long = library.long("lr_sample")

    def sample(
        self,
        logits: Tensor,
        uniforms: Tensor,
        *,
        temperature: Tensor | None = None,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
        top_k_max: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """As the reference's; `uniforms` are not looked at without a temperature."""
        rows, count = logits.shape
        if (
            logits.dtype is not torch.float32
            or not 0 < count <= VOCAB_SIZE_MAX
            or (count > 1 and logits.stride(1) != 1)
        ):
            return sample_reference(
                logits,
                uniforms,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                top_k_max=top_k_max,
                out=out,
            )
        tokens = torch.empty(rows, dtype=torch.int64)
        numbers = (
            None if temperature is None else _as(uniforms, torch.float64, rows),
            _as(temperature, torch.float64, rows),
            _as(top_k, torch.int64, rows),
            _as(top_p, torch.float64, rows),
            _as(min_p, torch.float64, rows),
        )
        call = _CALL(
            logits.data_ptr(),
            *(0 if each is None else each.data_ptr() for each in numbers),
            tokens.data_ptr(),
            *(rows, logits.stride(0), count),
        )
        if (self._brief if rows * count <= BRIEF_LOGITS_MAX else self._long)(call):
            raise MemoryError(f"no memory to weigh {count} tokens")
        return tokens if out is None else out.copy_(tokens)


def _as(tensor: Tensor | None, dtype: torch.dtype, rows: int) -> Tensor | None:
    if tensor is None:
        return None
    if tensor.numel() != rows:
        raise ValueError(f"a filter has {tensor.numel()} rows, and the logits have {rows}")
    return tensor.to(dtype).contiguous()
