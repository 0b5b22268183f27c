"""A linear of int8 weights and two int8 digits a value: `kernels.reference.linear_int8` says why.

Each weight is read once for both digits, and their sums are integers, which no order can change.
"""

from __future__ import annotations

from torch import Tensor

from kernels.interface import Int8Weight
from kernels.ops.matmul_quantize import quantize_rows_int8
from kernels.ops.matmul_scaled import matmul_int8
from kernels.ops.matmul_tiles import result_of, rows_of
from kernels.reference.linear_int8 import quantize_int8


def pack_int8(weight: Tensor) -> Int8Weight:
    """A weight [N, K] of any float dtype; the kernels read `qweight` as it is."""
    return quantize_int8(weight)


def linear_int8(
    x: Tensor,  # [R, K]
    weight: Int8Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x, with the result of the reference's formula.

    Raises ValueError if the weight was packed for another implementation that kept no plain form,
    or has more inputs than int32 sums hold.
    """
    return _linear(x, weight, bias, out, num_digits=2)


def linear_w8a8(
    x: Tensor,  # [R, K]
    weight: Int8Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] with one digit a row's value: half the products of `linear_int8`, and less exact by
    the 3.0 % against 0.6 % of perplexity that `kernels.reference.linear_int8` tells of.
    """
    return _linear(x, weight, bias, out, num_digits=1)


def _linear(
    x: Tensor, weight: Int8Weight, bias: Tensor | None, out: Tensor | None, *, num_digits: int
) -> Tensor:
    if weight.qweight.is_meta and not x.is_meta:
        raise ValueError(
            "this weight is packed for another implementation; pack it with the pack_int8 of the "
            "Ops whose linear_int8 is called"
        )
    result = result_of(x, weight.out_features, out)
    x = rows_of(x, weight.in_features)
    digits, scales = quantize_rows_int8(x, num_digits=num_digits)
    return matmul_int8(digits, scales, weight.qweight, weight.scale, bias, out=result)
