"""rms_norm and gated_mul in C++: one pass over a row, float32 inside, rounded once at the end."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from kernels.interface import Activation
from kernels.native.library import KINDS, Library, contiguous
from kernels.reference.gated_mul import gated_mul as gated_mul_reference
from kernels.reference.rms_norm import rms_norm as rms_norm_reference

BRIEF_ELEMENTS_MAX = 200_000  # some 100 us

_NORM = struct.Struct("@5Q2q2f2i").pack  # lr::Norm
_GATE = struct.Struct("@2Q2q2i").pack  # lr::Gate


class RowKernels:
    """Dtypes that the kernels do not have, or that are mixed, go to the reference."""

    def __init__(self, library: Library) -> None:
        self._norm_brief = library.brief("lr_rms_norm")
        self._norm_long = library.long("lr_rms_norm")
        self._gate_brief = library.brief("lr_gated_mul")
        self._gate_long = library.long("lr_gated_mul")

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float,
        residual: Tensor | None = None,
        is_zero_centred: bool = False,
        out: Tensor | None = None,
        residual_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As the reference's; the order of a row's sum depends on its width alone."""
        dtype = x.dtype
        kind, weight_kind = KINDS.get(dtype), KINDS.get(weight.dtype)
        if (
            kind is None
            or weight_kind is None
            or (residual is not None and residual.dtype is not dtype)
            or (out is not None and out.dtype is not dtype)
            or (residual_out is not None and residual_out.dtype is not dtype)
        ):
            return rms_norm_reference(
                x,
                weight,
                eps=eps,
                residual=residual,
                is_zero_centred=is_zero_centred,
                out=out,
                residual_out=residual_out,
            )
        width, numel = weight.numel(), x.numel()
        x, weight = contiguous(x), contiguous(weight)
        residual = None if residual is None else contiguous(residual)
        normed = out if out is not None and out.is_contiguous() else torch.empty_like(x)
        if residual_out is not None and residual_out.is_contiguous():
            total = residual_out
        else:
            total = x if residual is None else torch.empty_like(x)
        if (
            x.shape[-1] != width
            or normed.numel() != numel
            or total.numel() != numel
            or (residual is not None and residual.numel() != numel)
        ):
            raise ValueError(f"rms_norm of {list(x.shape)} with a weight [{width}] does not fit")
        call = _NORM(
            *(x.data_ptr(), weight.data_ptr(), 0 if residual is None else residual.data_ptr()),
            *(total.data_ptr(), normed.data_ptr()),
            *(numel // width, width, eps, 1.0 if is_zero_centred else 0.0, kind, weight_kind),
        )
        (self._norm_brief if numel <= BRIEF_ELEMENTS_MAX else self._norm_long)(call)
        if out is not None and normed is not out:
            normed = out.copy_(normed)
        if residual_out is not None and total is not residual_out:
            total = residual_out.copy_(total)
        return normed, total

    def gated_mul(
        self, gate_up: Tensor, *, activation: Activation = "silu", out: Tensor | None = None
    ) -> Tensor:
        """[R, I] in the dtype of `gate_up`."""
        kind = KINDS.get(gate_up.dtype)
        is_known = activation == "silu" or activation == "gelu_tanh"
        if kind is None or not is_known or (out is not None and out.dtype is not gate_up.dtype):
            return gated_mul_reference(gate_up, activation=activation, out=out)
        gate_up = contiguous(gate_up)
        width = gate_up.shape[-1] // 2
        rows = gate_up.numel() // max(1, 2 * width)
        gated = out if out is not None and out.is_contiguous() else None
        if gated is None:
            gated = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype)
        if 2 * gated.numel() != gate_up.numel():
            raise ValueError(f"gated_mul of {list(gate_up.shape)} does not fit {list(gated.shape)}")
        call = _GATE(
            *(gate_up.data_ptr(), gated.data_ptr(), rows, width),
            *(activation == "gelu_tanh", kind),
        )
        (self._gate_brief if rows * width <= BRIEF_ELEMENTS_MAX else self._gate_long)(call)
        return gated if out is None or gated is out else out.copy_(gated)
