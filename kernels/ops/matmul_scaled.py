"""x [R, K] · weight [N, K]ᵀ with scales on both sides: int8 digits in int32 sums, or float8."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import launch
from kernels.ops.matmul_tiles import (
    PIECE_K,
    Tiles,
    add_parts,
    check_contiguous,
    float_dot,
    load_along,
    load_down,
    new_parts,
    order_arguments,
    plan,
    store_tile,
    tile_of,
)

BLOCK_K_MAX = 256
INT32_IN_MAX = (2**31 - 1) // (127 * 127)  # longer sums of int8 products might not fit


@triton.jit
def int8_sums(
    x, weight, begin, end, num_in, NUM_DIGITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """int32 [M, N] sums over inputs begin..end of the high and of the low digits.

    `x`: pointers [M, 1] to rows of [digits, K]; `weight`: pointers [1, N].
    """
    high = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    low = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for at in range(begin, end, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        w = load_down(weight, k, num_in, IS_EVEN)
        high = tl.dot(load_along(x, k, num_in, IS_EVEN), w, high, out_dtype=tl.int32)
        if NUM_DIGITS == 2:
            low_digits = load_along(x + num_in, k, num_in, IS_EVEN)
            low = tl.dot(low_digits, w, low, out_dtype=tl.int32)
    return high, low


@triton.jit
def joined(high, low, NUM_DIGITS: tl.constexpr):
    """Both digits' sums as one float32, in steps of the row's scale."""
    value = high.to(tl.float32)
    if NUM_DIGITS == 2:
        value = low.to(tl.float32) * (1.0 / 254.0) + value
    return value


@triton.jit
def _matmul_int8(
    x, x_scale, weight, weight_scale, bias, out, parts,
    num_rows, num_out, num_in, part_k, plane, out_stride, num_m, num_n,
    NUM_DIGITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_EVEN: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    m, n, part = tile_of(num_m, num_n, GROUP_M, NUM_XCDS)
    # Rows and columns past the end are the last one again: their results are not stored.
    row = tl.minimum(tl.arange(0, BLOCK_M), num_rows - 1 - m * BLOCK_M)
    column = tl.minimum(tl.arange(0, BLOCK_N), num_out - 1 - n * BLOCK_N)
    x += (m * BLOCK_M).to(tl.int64) * num_in * NUM_DIGITS
    weight += (n * BLOCK_N).to(tl.int64) * num_in
    high, low = int8_sums(
        x + row[:, None] * (num_in * NUM_DIGITS), weight + column[None, :] * num_in,
        part * part_k, tl.minimum((part + 1) * part_k, num_in), num_in,
        NUM_DIGITS, BLOCK_M, BLOCK_N, BLOCK_K, IS_EVEN,
    )  # fmt: skip
    if parts is None:
        store_tile(
            joined(high, low, NUM_DIGITS), m, n, 0, None, out, x_scale, weight_scale, bias,
            num_rows, num_out, plane, out_stride, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        for digit in tl.static_range(NUM_DIGITS):
            store_tile(
                high if digit == 0 else low, m, n, part * NUM_DIGITS + digit, parts,
                out, None, None, None, num_rows, num_out, plane, out_stride, BLOCK_M, BLOCK_N,
            )  # fmt: skip


@triton.jit
def _matmul_fp8(
    x, x_scale, weight, weight_scale, bias, out, parts,
    num_rows, num_out, num_in, part_k, plane, out_stride, num_m, num_n,
    PARTS_A_PROGRAM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, IS_EVEN: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr,
    PIECE_K: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    m, n, first = tile_of(num_m, num_n, GROUP_M, NUM_XCDS)
    row = tl.minimum(tl.arange(0, BLOCK_M), num_rows - 1 - m * BLOCK_M)
    column = tl.minimum(tl.arange(0, BLOCK_N), num_out - 1 - n * BLOCK_N)
    x += (m * BLOCK_M).to(tl.int64) * num_in
    weight += (n * BLOCK_N).to(tl.int64) * num_in
    x_rows = x + row[:, None] * num_in
    columns = weight + column[None, :] * num_in
    value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for part in range(first, first + PARTS_A_PROGRAM):
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for at in range(part * part_k, tl.minimum((part + 1) * part_k, num_in), BLOCK_K):
            for piece in tl.static_range(0, BLOCK_K, PIECE_K):
                k = at + piece + tl.arange(0, PIECE_K)
                w = load_down(columns, k, num_in, IS_EVEN)
                total = float_dot(load_along(x_rows, k, num_in, IS_EVEN), w, total, UP)
        value += total
    store_tile(
        value, m, n, first, parts, out, x_scale, weight_scale, bias,
        num_rows, num_out, plane, out_stride, BLOCK_M, BLOCK_N,
    )  # fmt: skip


def matmul_int8(
    digits: Tensor,  # [R, digits, K] int8
    x_scale: Tensor,  # [R] float32
    weight: Tensor,  # [N, K] int8
    weight_scale: Tensor,  # [N] float32
    bias: Tensor | None,
    *,
    out: Tensor,
) -> Tensor:
    """(Σ high · weight + Σ low · weight / 254) · x_scale · weight_scale + bias, [R, N] into `out`.

    Raises ValueError if K is above INT32_IN_MAX.
    """
    num_rows, num_digits, num_in = digits.shape
    if num_in > INT32_IN_MAX:
        raise ValueError(
            f"an int8 product over {num_in} inputs may not fit into int32; at most {INT32_IN_MAX}"
        )
    check_contiguous(weight)
    tiles = plan(
        "linear_int8", num_rows, weight.shape[0], num_in, block_k_max=BLOCK_K_MAX,
        input_bytes=num_digits, kind="" if num_digits == 2 else "w8a8",
    )  # fmt: skip
    parts = new_parts(tiles, out, num_digits=num_digits, is_int=True) if tiles.is_parted else None
    # Integer sums have no order: one program takes all of K as one part.
    part_k = num_in if tiles.is_serial else tiles.part_k
    launch(
        _matmul_int8, tiles.grid, tiles.config, **_arguments(digits, weight, tiles, out),
        x_scale=x_scale, weight_scale=weight_scale, bias=bias, parts=parts,
        num_in=num_in, part_k=part_k, NUM_DIGITS=num_digits,
    )  # fmt: skip
    if parts is not None:
        add_parts(parts, out, row_scale=x_scale, column_scale=weight_scale, bias=bias)
    return out


def matmul_fp8(
    x: Tensor,  # [R, K] float8
    x_scale: Tensor,  # [R] float32
    weight: Tensor,  # [N, K] float8
    weight_scale: Tensor,  # [N] float32
    bias: Tensor | None,
    *,
    out: Tensor,
) -> Tensor:
    """(Σ x · weight) · x_scale · weight_scale + bias, summed in float32, [R, N] into `out`."""
    num_rows, num_in = x.shape
    check_contiguous(weight)
    tiles = plan(
        "linear_fp8", num_rows, weight.shape[0], num_in, block_k_max=BLOCK_K_MAX, input_bytes=1
    )
    parts = new_parts(tiles, out) if tiles.is_parted else None
    launch(
        _matmul_fp8, tiles.grid, tiles.config, **_arguments(x, weight, tiles, out),
        x_scale=x_scale, weight_scale=weight_scale, bias=bias, parts=parts,
        num_in=num_in, part_k=tiles.part_k, PARTS_A_PROGRAM=tiles.parts_a_program, PIECE_K=PIECE_K,
    )  # fmt: skip
    if parts is not None:
        add_parts(parts, out, row_scale=x_scale, column_scale=weight_scale, bias=bias)
    return out


def _arguments(x: Tensor, weight: Tensor, tiles: Tiles, out: Tensor) -> dict[str, object]:
    return {
        "x": x, "weight": weight, "out": out, "num_rows": x.shape[0], "num_out": weight.shape[0],
        "plane": x.shape[0] * weight.shape[0], "out_stride": out.stride(0),
        "IS_EVEN": x.shape[-1] % tiles.sizes["BLOCK_K"] == 0,
        **order_arguments(tiles),
    }  # fmt: skip
