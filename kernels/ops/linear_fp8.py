"""A linear in float8 on both sides, in the format that the chip's matrix units take."""

from __future__ import annotations

from torch import Tensor

from kernels.interface import Fp8Weight
from kernels.ops.launching import current_target, fp8_dtype
from kernels.ops.matmul_quantize import quantize_rows_fp8
from kernels.ops.matmul_scaled import matmul_fp8
from kernels.ops.matmul_tiles import result_of, rows_of
from kernels.reference.linear_fp8 import quantize_fp8


def pack_fp8(weight: Tensor) -> Fp8Weight:
    """A weight [N, K] of any float dtype in the chip's float8. Raises UnsupportedOnTargetError if
    it has none.
    """
    return quantize_fp8(weight, fp8_dtype())


def linear_fp8(
    x: Tensor,  # [R, K]
    weight: Fp8Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x, by the reference's formula.

    A row's result does not depend on the rows beside it. Raises UnsupportedOnTargetError if the
    chip has no float8, ValueError if the weight is in another one than the chip's.
    """
    dtype = fp8_dtype()
    if weight.qweight.dtype != dtype:
        raise ValueError(
            f"{current_target().arch} takes {dtype}, and the weight is {weight.qweight.dtype}; "
            "quantize it on this chip with kernels.ops.linear_fp8.pack_fp8"
        )
    result = result_of(x, weight.out_features, out)
    quantized, scales = quantize_rows_fp8(rows_of(x, weight.in_features), dtype)
    return matmul_fp8(quantized, scales, weight.qweight, weight.scale, bias, out=result)
