"""What the matmul-like ops share: who takes which tile, products in float32, the end of a sum.

The sum over K goes in parts where the tiles alone would not fill the chip. How many depends on the
weight's size alone, and the parts are added in their order whether programs of their own made them
or one program made all. So a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.blocks import neighbours_together
from kernels.ops.configs import tuned
from kernels.ops.launching import IS_INTERPRETED, Config, current_target, launch

NONKDIM = 16  # the matrix unit's tile: the smaller one needs fewer registers
BLOCK_M_MIN = 16
SKINNY_ROWS_MAX = 64  # up to here a row tile holds all rows, and weights are read once
SKINNY_BLOCK_N = 64
LARGE_TILES = ((128, 128), (128, 64), (64, 64))
ROWS_TUNED_MAX = 4096  # larger batches are tuned as this one
NUM_PARTS_MAX = 8  # each part costs a float32 written and read an output
PIECE_K = 128
X_TILE_BYTES_MAX = 16 * 1024  # so that a compute unit of CDNA 3 (64 KiB) holds two programs
GROUP_M = 8  # row tiles that walk over the weight together and find it in the cache
REDUCED_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """One matmul's programs: `num_m · num_n` tiles, times `num_parts` unless `is_serial`."""

    num_m: int
    num_n: int
    num_parts: int
    part_k: int  # inputs of a part
    is_serial: bool
    sizes: dict[str, int]  # BLOCK_M, BLOCK_N and BLOCK_K
    config: Config

    @property
    def grid(self) -> tuple[int]:
        return (self.num_m * self.num_n * (1 if self.is_serial else self.num_parts),)

    @property
    def parts_a_program(self) -> int:
        return self.num_parts if self.is_serial else 1

    @property
    def is_parted(self) -> bool:
        """Whether parts are written out, for `add_parts` to add."""
        return self.num_parts > 1 and not self.is_serial


def plan(
    op: str,
    num_rows: int,
    num_out: int,
    num_in: int,
    *,
    block_k_max: int,
    input_bytes: int,
    kind: str = "",
) -> Tiles:
    """Tiles for x [R, K], `input_bytes` an input, and a weight [N, K]. A skinny batch reads the
    weight in steps of up to `block_k_max` inputs, since what is under way hides the memory's delay;
    others in steps of PIECE_K, which longer steps are made of too. `op` is a name of
    `kernels.specs`; its kernels of another kind, say int4, have that before their sizes.
    """
    block_k = block_k_max
    while block_k > PIECE_K and num_in % block_k:
        block_k //= 2
    sums = tuned(
        op, f"{kind} {num_out}x{num_in}".strip(),
        {"block_k": block_k, "num_parts": _num_parts(num_out, num_in, block_k)},
    )  # fmt: skip
    is_skinny = num_rows <= SKINNY_ROWS_MAX
    rows = min(max(int(triton.next_power_of_2(max(num_rows, 1))), BLOCK_M_MIN), ROWS_TUNED_MAX)
    block_m, block_n = _tile(num_rows, rows, num_out)
    tile = tuned(
        op, f"{kind} {num_out}x{num_in} {rows} rows".strip(),
        {"block_m": block_m, "block_n": block_n, "num_warps": warps_for(block_m * block_n),
         "num_stages": 2, "waves_per_eu": 0},
    )  # fmt: skip
    step = PIECE_K
    if is_skinny:
        step = max(PIECE_K, min(sums["block_k"], X_TILE_BYTES_MAX // (rows * input_bytes)))
    num_blocks = triton.cdiv(num_in, sums["block_k"])
    # Rounded down: rather a part more than a compute unit without one.
    blocks_a_part = max(num_blocks // sums["num_parts"], triton.cdiv(num_blocks, NUM_PARTS_MAX), 1)
    return Tiles(
        num_m=triton.cdiv(num_rows, tile["block_m"]),
        num_n=triton.cdiv(num_out, tile["block_n"]),
        num_parts=triton.cdiv(num_blocks, blocks_a_part),
        part_k=blocks_a_part * sums["block_k"],
        is_serial=not is_skinny,
        sizes={
            "BLOCK_M": tile["block_m"], "BLOCK_N": tile["block_n"], "BLOCK_K": step,
        },
        config=Config(
            tile["num_warps"], tile["num_stages"], tile["waves_per_eu"], nonkdim=NONKDIM
        ),
    )  # fmt: skip


def warps_for(num_sums: int) -> int:
    """Waves of a program with a tile of so many sums: 256 lanes, 512 above 64 · 64."""
    return (256 if num_sums <= 64 * 64 else 512) // current_target().warp_size


def _tile(num_rows: int, rows: int, num_out: int) -> tuple[int, int]:
    """(block_m, block_n): all rows of a skinny batch, else the largest tile that fills the chip."""
    if rows <= SKINNY_ROWS_MAX:
        return rows, SKINNY_BLOCK_N
    for block_m, block_n in LARGE_TILES[:-1]:
        num_tiles = triton.cdiv(num_rows, block_m) * triton.cdiv(num_out, block_n)
        if num_tiles >= current_target().num_cus:
            return block_m, block_n
    return LARGE_TILES[-1]


def _num_parts(num_out: int, num_in: int, block_k: int) -> int:
    """So many that a skinny batch gives every compute unit a tile."""
    num_tiles = triton.cdiv(num_out, SKINNY_BLOCK_N)
    wanted = int(triton.cdiv(current_target().num_cus, num_tiles))
    return min(wanted, int(triton.cdiv(num_in, block_k)), NUM_PARTS_MAX)


def rows_of(x: Tensor, num_in: int) -> Tensor:
    """x [R, K] with rows whose values lie side by side; a copy only where they do not.

    Raises ValueError if the weight has another number of inputs.
    """
    if x.dim() != 2 or x.shape[1] != num_in:
        raise ValueError(f"x is {list(x.shape)}, and the weight has {num_in} inputs")
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def check_contiguous(weight: Tensor) -> None:
    """Raises ValueError for a weight that is not one block of memory."""
    if not weight.is_contiguous():
        raise ValueError(
            f"the weight {list(weight.shape)} has strides {list(weight.stride())}, and is read as "
            "one block: make it contiguous once, when it is loaded"
        )


def result_of(x: Tensor, num_out: int, out: Tensor | None) -> Tensor:
    """`out`, or a new [R, N] in x's dtype. Raises ValueError if `out` does not fit."""
    shape = (x.shape[0], num_out)
    if out is None:
        return torch.empty(shape, dtype=x.dtype, device=x.device)
    if tuple(out.shape) != shape or (out.stride(-1) != 1 and num_out != 1):
        raise ValueError(
            f"out is {list(out.shape)} with strides {list(out.stride())}; it must be {list(shape)} "
            "with values side by side in a row"
        )
    return out


@triton.jit
def tile_of(num_m, num_n, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """This program's row tile, column tile and part; row tiles of a group come first."""
    num_tiles = num_m * num_n
    pid = neighbours_together(tl.program_id(0), tl.num_programs(0), NUM_XCDS)
    part = pid // num_tiles
    pid = pid % num_tiles
    first = pid // (GROUP_M * num_n) * GROUP_M
    size = tl.minimum(num_m - first, GROUP_M)
    pid = pid % (GROUP_M * num_n)
    return first + pid % size, pid // size, part


@triton.jit
def float_dot(a, b, total, UP: tl.constexpr):
    """total + a · b in float32. `UP`: the interpreter has no bfloat16 nor float8 arithmetic."""
    if UP:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def load_along(rows, k, num_in, IS_EVEN: tl.constexpr):
    """[rows, k] of rows that begin at the pointers [M, 1]; zero from `num_in` on."""
    if IS_EVEN:
        values = tl.load(rows + k[None, :])
    else:
        values = tl.load(rows + k[None, :], mask=(k < num_in)[None, :], other=0.0)
    return values


@triton.jit
def load_down(columns, k, num_in, IS_EVEN: tl.constexpr):
    """[k, columns] of a weight's rows that begin at the pointers [1, N]; zero from `num_in` on."""
    if IS_EVEN:
        values = tl.load(columns + k[:, None])
    else:
        values = tl.load(columns + k[:, None], mask=(k < num_in)[:, None], other=0.0)
    return values


@triton.jit
def end_of(value, row_scale, column_scale, bias, row, column, is_row, is_column):
    """value · row_scale · column_scale + bias, in that order; None leaves a step out."""
    if row_scale is not None:
        value = value * tl.load(row_scale + row, mask=is_row, other=0.0)[:, None]
    if column_scale is not None:
        value = value * tl.load(column_scale + column, mask=is_column, other=0.0)[None, :]
    if bias is not None:
        value = value + tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    return value


@triton.jit
def store_tile(
    value, m, n, part, parts, out, row_scale, column_scale, bias,
    num_rows, num_out, plane, out_stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A finished tile into `out`; or as it is into plane `part` of `parts`, where there is one."""
    row = m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = row < num_rows, column < num_out
    is_stored = is_row[:, None] & is_column[None, :]
    if parts is None:
        value = end_of(value, row_scale, column_scale, bias, row, column, is_row, is_column)
        into = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
        tl.store(into, value.to(out.dtype.element_ty), mask=is_stored)
    else:  # skinny: 32 bits hold every place
        into = parts + part * plane + row[:, None] * num_out + column[None, :]
        tl.store(into, value, mask=is_stored)


@triton.jit
def _add_parts(
    parts, row_scale, column_scale, bias, out, num_rows, num_out, plane, out_stride,
    NUM_PARTS: tl.constexpr, NUM_DIGITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < num_out
    parts += row * num_out
    total = tl.load(parts + column, mask=is_column, other=0)
    for part in range(1, NUM_PARTS):
        total += tl.load(parts + part * NUM_DIGITS * plane + column, mask=is_column, other=0)
    value = total.to(tl.float32)
    if NUM_DIGITS == 2:
        low = tl.load(parts + plane + column, mask=is_column, other=0)
        for part in range(1, NUM_PARTS):
            at = (part * NUM_DIGITS + 1) * plane
            low += tl.load(parts + at + column, mask=is_column, other=0)
        value = low.to(tl.float32) * (1.0 / 254.0) + value
    rows = row + tl.zeros([1], tl.int32)
    value = end_of(
        value[None, :], row_scale, column_scale, bias, rows, column, rows < num_rows, is_column
    )
    into = out + row.to(tl.int64) * out_stride + column[None, :]
    tl.store(into, value.to(out.dtype.element_ty), mask=is_column[None, :])


def new_parts(tiles: Tiles, out: Tensor, *, num_digits: int = 1, is_int: bool = False) -> Tensor:
    """[parts, digits, R, N], for `add_parts`."""
    dtype = torch.int32 if is_int else torch.float32
    shape = (tiles.num_parts, num_digits, *out.shape)
    return torch.empty(shape, dtype=dtype, device=out.device)


def add_parts(
    parts: Tensor,  # [parts, digits, R, N]
    out: Tensor,
    *,
    row_scale: Tensor | None = None,
    column_scale: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Parts added in their order, then the scales and the bias, into `out`."""
    num_parts, num_digits, num_rows, num_out = parts.shape
    block = min(REDUCED_BLOCK, triton.next_power_of_2(num_out))
    launch(
        _add_parts, (num_rows, triton.cdiv(num_out, block)), Config(num_stages=1),
        parts=parts, row_scale=row_scale, column_scale=column_scale, bias=bias, out=out,
        num_rows=num_rows, num_out=num_out, plane=num_rows * num_out, out_stride=out.stride(0),
        NUM_PARTS=num_parts, NUM_DIGITS=num_digits, BLOCK=block,
    )  # fmt: skip


def order_arguments(tiles: Tiles) -> dict[str, int | bool]:
    """What every kernel with `tile_of` takes."""
    return {
        "num_m": tiles.num_m, "num_n": tiles.num_n, "GROUP_M": GROUP_M,
        "NUM_XCDS": current_target().num_xcds, "UP": IS_INTERPRETED, **tiles.sizes,
    }  # fmt: skip
