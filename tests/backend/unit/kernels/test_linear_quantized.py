"""linear_fp8 and linear_weight_only of torch: the formulas, and what their packing loses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.interface import Int4Weight
from kernels.reference.linear_fp8 import linear_fp8, quantize_fp8
from kernels.reference.linear_int8 import quantize_int8
from kernels.reference.linear_weight_only import (
    GROUP_SIZES,
    linear_weight_only,
    quantize_int4,
)

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def eighths(values: Tensor, largest: float, smallest_exponent: int) -> Tensor:
    """The nearest number with three bits behind the point, halves to even, in float64."""
    _, exponents = torch.frexp(values.double())
    step = 2.0 ** ((exponents - 1).clamp_min(smallest_exponent) - 3).double()
    return (values.double() / step).round().mul(step).clamp(-largest, largest)


@pytest.mark.parametrize(
    ("dtype", "largest", "smallest_exponent"),
    [(torch.float8_e4m3fn, 448.0, -6), (torch.float8_e4m3fnuz, 240.0, -7)],
)
def test_fp8_is_the_formula_in_float64(
    dtype: torch.dtype, largest: float, smallest_exponent: int
) -> None:
    x, weight, bias = made(5, 300), quantize_fp8(made(37, 300, seed=1), dtype), made(37, seed=2)
    scale = x.abs().amax(dim=1, keepdim=True) / largest
    rows = eighths(x / scale, largest, smallest_exponent)
    truth = rows @ weight.qweight.double().t() * scale.double() * weight.scale.double() + bias

    result = linear_fp8(x, weight, bias=bias)

    assert ((result - truth).abs().max() / truth.abs().max()) < 1e-6


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_fp8_weight_keeps_each_value_within_half_a_step(dtype: torch.dtype) -> None:
    weight = made(19, 64)

    packed = quantize_fp8(weight, dtype)

    error = (packed.dequantized() - weight).abs()
    absmax = weight.abs().amax(dim=1, keepdim=True)
    assert bool((error <= weight.abs() / 16 * 1.001 + absmax * 2.0**-16).all())
    assert (packed.out_features, packed.in_features) == (19, 64)


def test_fp8_row_of_zeros_is_its_bias_and_nan_stays_in_its_row() -> None:
    x = made(3, 32)
    x[0] = 0.0
    x[1, 5] = float("nan")
    bias = made(7, seed=3)

    result = linear_fp8(x, quantize_fp8(made(7, 32, seed=1), torch.float8_e4m3fn), bias=bias)

    assert torch.equal(result[0], bias)
    assert bool(result[1].isnan().all())
    assert bool(result[2].isfinite().all())


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("num_in", [5, 128, 300])
def test_int4_weight_is_within_half_a_step_of_its_group(group_size: int, num_in: int) -> None:
    weight = made(9, num_in)

    packed = quantize_int4(weight, group_size)

    values = packed.dequantized()
    assert values.shape == weight.shape
    for begin in range(0, num_in, group_size):
        part = slice(begin, begin + group_size)
        step = weight[:, part].abs().amax(dim=1, keepdim=True) / 7.0
        # Half a step, and what bfloat16 moves the scale by, seven times.
        assert bool(((values - weight)[:, part].abs() <= step * (0.5 + 7 * 2.0**-8)).all())


def test_int4_byte_holds_input_j_low_and_input_64_plus_j_high() -> None:
    nibbles = (torch.arange(256) * 5 % 15 + 1).to(torch.int32)  # 1..15
    packed = torch.zeros(1, 128, dtype=torch.uint8)
    for k, nibble in enumerate(nibbles.tolist()):
        block, inside = divmod(k, 128)
        packed[0, block * 64 + inside % 64] |= nibble << (4 * (inside // 64))
    scale = torch.arange(1, 9).to(torch.bfloat16)[:, None]
    weight = Int4Weight(packed, scale, in_features=256, group_size=32)

    expected = (nibbles.float() - 8.0) * torch.arange(1, 9).repeat_interleave(32)

    assert torch.equal(weight.dequantized()[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weight_only_is_the_product_with_the_dequantized_weight(dtype: torch.dtype) -> None:
    x, bias = made(4, 200).to(dtype), made(23, seed=2)
    out = torch.full((4, 23), float("nan"))
    for weight in (quantize_int8(made(23, 200, seed=1)), quantize_int4(made(23, 200, seed=1), 64)):
        truth = x.double() @ weight.dequantized().double().t() + bias

        result = linear_weight_only(x, weight, bias=bias, out=out)

        assert result is out
        assert ((out - truth).abs().max() / truth.abs().max()) < 1e-6
        assert linear_weight_only(x, weight).dtype == dtype


def test_int4_refuses_other_groups() -> None:
    with pytest.raises(ValueError, match="groups of 32, 64, 128 inputs, not of 100"):
        quantize_int4(made(4, 200), 100)
