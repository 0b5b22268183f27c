"""A linear of int8 or int4 weights and rows as they are: the weight's bytes are all that is read.

Up to 64 rows the weight is read once. Integers are exact in every activation dtype, so they enter
the product as they are, and the scales come after it, in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.interface import Int4Weight, Int8Weight
from kernels.ops.launching import launch
from kernels.ops.matmul_tiles import (
    PIECE_K,
    add_parts,
    check_contiguous,
    float_dot,
    load_along,
    load_down,
    new_parts,
    order_arguments,
    plan,
    result_of,
    rows_of,
    store_tile,
    tile_of,
)

BLOCK_K_MAX = 256
INT4_BLOCK_K_MAX = 512


@triton.jit
def exactly_as(value, kind: tl.constexpr):
    """Small integers, in float32, as `kind`. In bfloat16 they are the upper halves of theirs,
    which spares the rounding that older chips have no instruction for.
    """
    if kind == tl.bfloat16:
        exact = (value.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(kind, bitcast=True)
    else:
        exact = value.to(kind)
    return exact


@triton.jit
def _matmul_int8_weight(
    x, weight, scale, bias, out, parts,
    num_rows, num_out, num_in, part_k, plane, x_stride, out_stride, num_m, num_n,
    PARTS_A_PROGRAM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, IS_EVEN: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr,
    PIECE_K: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    m, n, first = tile_of(num_m, num_n, GROUP_M, NUM_XCDS)
    row = tl.minimum(tl.arange(0, BLOCK_M), num_rows - 1 - m * BLOCK_M)
    column = tl.minimum(tl.arange(0, BLOCK_N), num_out - 1 - n * BLOCK_N)
    x_rows = x + (m * BLOCK_M).to(tl.int64) * x_stride + row[:, None] * x_stride
    columns = weight + (n * BLOCK_N).to(tl.int64) * num_in + column[None, :] * num_in
    value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for part in range(first, first + PARTS_A_PROGRAM):
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for at in range(part * part_k, tl.minimum((part + 1) * part_k, num_in), BLOCK_K):
            for piece in tl.static_range(0, BLOCK_K, PIECE_K):
                k = at + piece + tl.arange(0, PIECE_K)
                w = load_down(columns, k, num_in, IS_EVEN).to(tl.float32)
                w = exactly_as(w, x.dtype.element_ty)
                total = float_dot(load_along(x_rows, k, num_in, IS_EVEN), w, total, UP)
        value += total
    store_tile(
        value, m, n, first, parts, out, None, scale, bias,
        num_rows, num_out, plane, out_stride, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit
def _matmul_int4_weight(
    x, weight, scale, bias, out, parts,
    num_rows, num_out, num_in, num_bytes, part_bytes, plane, x_stride, out_stride, num_m, num_n,
    GROUP_SIZE: tl.constexpr, BYTES: tl.constexpr, PARTS_A_PROGRAM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_EVEN: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    m, n, first = tile_of(num_m, num_n, GROUP_M, NUM_XCDS)
    row = tl.minimum(tl.arange(0, BLOCK_M), num_rows - 1 - m * BLOCK_M)
    column = tl.minimum(tl.arange(0, BLOCK_N), num_out - 1 - n * BLOCK_N)
    x_rows = x + (m * BLOCK_M).to(tl.int64) * x_stride + row[:, None] * x_stride
    columns = weight + (n * BLOCK_N).to(tl.int64) * num_bytes + column[None, :] * num_bytes
    scale += n * BLOCK_N + column
    value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for part in range(first, first + PARTS_A_PROGRAM):
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        end = tl.minimum((part + 1) * part_bytes, num_bytes)
        for at in range(part * part_bytes, end, BLOCK_K // 2):
            for piece in tl.static_range(0, BLOCK_K // 2, BYTES):
                byte = at + piece + tl.arange(0, BYTES)
                packed = load_down(columns, byte, num_bytes, IS_EVEN)
                low = exactly_as((packed & 15).to(tl.float32) - 8.0, x.dtype.element_ty)
                high = exactly_as((packed >> 4).to(tl.float32) - 8.0, x.dtype.element_ty)
                block = at * 2 + piece // 64 * 128
                k = block + piece % 64 + tl.arange(0, BYTES)
                low_x = load_along(x_rows, k, num_in, IS_EVEN)
                high_x = load_along(x_rows, k + 64, num_in, IS_EVEN)
                # Steps may end behind the last block, where x is zero: any scale will do.
                block = tl.minimum(block, num_bytes * 2 - 128)
                group = (block + piece % 64) // GROUP_SIZE
                at_scale = scale + group * num_out
                sums = float_dot(low_x, low, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), UP)
                if GROUP_SIZE < 128:
                    total += sums * tl.load(at_scale).to(tl.float32)[None, :]
                    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
                    at_scale += 64 // GROUP_SIZE * num_out
                sums = float_dot(high_x, high, sums, UP)
                total += sums * tl.load(at_scale).to(tl.float32)[None, :]
        value += total
    store_tile(
        value, m, n, first, parts, out, None, None, bias,
        num_rows, num_out, plane, out_stride, BLOCK_M, BLOCK_N,
    )  # fmt: skip


def linear_weight_only(
    x: Tensor,  # [R, K]
    weight: Int8Weight | Int4Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x: x · dequantized weight ᵀ + bias, summed in float32.

    A row's result does not depend on the rows beside it.
    """
    result = result_of(x, weight.out_features, out)
    x = rows_of(x, weight.in_features)
    check_contiguous(weight.packed if isinstance(weight, Int4Weight) else weight.qweight)
    check_contiguous(weight.scale)
    num_rows, num_in, num_out = x.shape[0], weight.in_features, weight.out_features
    is_int4 = isinstance(weight, Int4Weight)
    name = f"int4 {weight.group_size}" if isinstance(weight, Int4Weight) else "int8"
    tiles = plan(
        "linear_weight_only", num_rows, num_out, num_in,
        block_k_max=INT4_BLOCK_K_MAX if is_int4 else BLOCK_K_MAX, input_bytes=x.itemsize, kind=name,
    )  # fmt: skip
    parts = new_parts(tiles, result) if tiles.is_parted else None
    arguments = {
        "x": x, "bias": bias, "out": result, "parts": parts,
        "num_rows": num_rows, "num_out": num_out, "num_in": num_in, "plane": num_rows * num_out,
        "x_stride": x.stride(0), "out_stride": result.stride(0), "scale": weight.scale,
        "PARTS_A_PROGRAM": tiles.parts_a_program, **order_arguments(tiles),
    }  # fmt: skip
    if isinstance(weight, Int4Weight):
        launch(
            _matmul_int4_weight, tiles.grid, tiles.config, **arguments,
            weight=weight.packed, num_bytes=weight.packed.shape[1], part_bytes=tiles.part_k // 2,
            GROUP_SIZE=weight.group_size, BYTES=min(weight.group_size, 64),
            IS_EVEN=num_in % tiles.sizes["BLOCK_K"] == 0,
        )  # fmt: skip
    else:
        launch(
            _matmul_int8_weight, tiles.grid, tiles.config, **arguments,
            weight=weight.qweight, part_k=tiles.part_k, PIECE_K=PIECE_K,
            IS_EVEN=num_in % tiles.sizes["BLOCK_K"] == 0,
        )  # fmt: skip
    if parts is not None:
        add_parts(parts, result, column_scale=None if is_int4 else weight.scale, bias=bias)
    return result
