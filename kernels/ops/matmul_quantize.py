"""Activations into what the matrix units take, a scale a row: int8 digits or one float8."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import Config, launch

BLOCK_MAX = 4096
# By dtype: the largest value, and the exponent field that a float32 as large as the smallest
# normal value has (2^-6; 2^-7).
FP8 = {torch.float8_e4m3fn: (448.0, 121), torch.float8_e4m3fnuz: (240.0, 120)}


@triton.jit
def _absmax(x, num_in, BLOCK: tl.constexpr):
    """NaN if there is one among them, as torch's."""
    largest = tl.zeros([BLOCK], tl.float32)
    is_nan = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, num_in, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        value = tl.abs(tl.load(x + k, mask=k < num_in, other=0.0).to(tl.float32))
        is_nan = is_nan | (value != value).to(tl.int32)
        largest = tl.maximum(largest, value)
    return tl.where(tl.max(is_nan, 0) > 0, float("nan"), tl.max(largest, 0))


@triton.jit
def steps_of(value, scale):
    """value / scale; 0 in a row of zeros and where it is NaN."""
    steps = tl.div_rn(value, tl.zeros_like(value) + tl.where(scale == 0.0, 1.0, scale))
    return tl.where(steps == steps, steps, 0.0)


@triton.jit
def int8_digits(value, scale):
    """(high, low) as float32 integers: round(value / scale), and 254ths of what that left."""
    rounding: tl.constexpr = 1.5 * 2.0**23  # leaves the nearest integer, halves to even
    steps = steps_of(value, scale)
    high = (steps + rounding) - rounding
    low = ((steps - high) * 254.0 + rounding) - rounding
    return high, low


@triton.jit
def quantize_row_int8(
    x, digits, scales, row, num_in, NUM_DIGITS: tl.constexpr, BLOCK: tl.constexpr
):
    """The row at `x` into digits [R, digits, K] and scales [R]."""
    scale = tl.div_rn(_absmax(x, num_in, BLOCK), 127.0)
    tl.store(scales + row, scale)
    digits += row.to(tl.int64) * num_in * NUM_DIGITS
    for begin in range(0, num_in, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        value = tl.load(x + k, mask=k < num_in, other=0.0).to(tl.float32)
        high, low = int8_digits(value, scale)
        tl.store(digits + k, high.to(tl.int8), mask=k < num_in)
        if NUM_DIGITS == 2:
            tl.store(digits + num_in + k, low.to(tl.int8), mask=k < num_in)


@triton.jit
def _quantize_int8(
    x, digits, scales, num_in, x_stride, NUM_DIGITS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    quantize_row_int8(
        x + row.to(tl.int64) * x_stride, digits, scales, row, num_in, NUM_DIGITS, BLOCK
    )


@triton.jit
def _quantize_fp8(
    x, quantized, scales, num_in, x_stride,
    LARGEST: tl.constexpr, EXPONENT_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    x += row.to(tl.int64) * x_stride
    quantized += row.to(tl.int64) * num_in
    scale = tl.div_rn(_absmax(x, num_in, BLOCK), LARGEST)
    tl.store(scales + row, scale)
    for begin in range(0, num_in, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        value = tl.load(x + k, mask=k < num_in, other=0.0).to(tl.float32)
        steps = steps_of(value, scale)
        steps = tl.minimum(tl.maximum(steps, -LARGEST), LARGEST)
        # Rounded here to three bits of mantissa, halves to even: so the cast is exact whoever does
        # it. 1.5 · 2^(exponent + 20) pushes the other bits out.
        exponent = (tl.abs(steps).to(tl.int32, bitcast=True) >> 23) & 0xFF
        pushing = ((tl.maximum(exponent, EXPONENT_MIN) + 20) << 23) | 0x400000
        rounding = pushing.to(tl.float32, bitcast=True)
        steps = (steps + rounding) - rounding
        tl.store(quantized + k, steps.to(quantized.dtype.element_ty), mask=k < num_in)


def block_of(num_in: int) -> int:
    """Values of a row that a quantiser holds at once."""
    return min(BLOCK_MAX, int(triton.next_power_of_2(max(num_in, 1))))


def quantize_rows_int8(x: Tensor, *, num_digits: int) -> tuple[Tensor, Tensor]:
    """Digits int8 [R, digits, K] and scales float32 [R] of x [R, K], in the steps of
    `kernels.reference.linear_int8`. A row of zeros has zero digits; one with NaN a NaN scale.
    """
    num_rows, num_in = x.shape
    digits = torch.empty((num_rows, num_digits, num_in), dtype=torch.int8, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    launch(
        _quantize_int8, (num_rows,), Config(num_warps=8, num_stages=1),
        x=x, digits=digits, scales=scales, num_in=num_in, x_stride=x.stride(0),
        NUM_DIGITS=num_digits, BLOCK=block_of(num_in),
    )  # fmt: skip
    return digits, scales


def quantize_rows_fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values [R, K] in `dtype` and scales float32 [R] = absmax / the largest value of `dtype`."""
    num_rows, num_in = x.shape
    largest, exponent_min = FP8[dtype]
    quantized = torch.empty((num_rows, num_in), dtype=dtype, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    launch(
        _quantize_fp8, (num_rows,), Config(num_warps=8, num_stages=1),
        x=x, quantized=quantized, scales=scales, num_in=num_in, x_stride=x.stride(0),
        LARGEST=largest, EXPONENT_MIN=exponent_min, BLOCK=block_of(num_in),
    )  # fmt: skip
    return quantized, scales
