"""A product through the experts of each row (Shazeer et al., 2017): rows in the experts' order,
each expert's weight read once for its rows, and a row's parts summed in their order in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.blocks import neighbours_together
from kernels.ops.configs import tuned
from kernels.ops.launching import IS_INTERPRETED, Config, current_target, launch
from kernels.ops.matmul_sort import sort_pairs
from kernels.ops.matmul_tiles import (
    BLOCK_M_MIN,
    NONKDIM,
    REDUCED_BLOCK,
    check_contiguous,
    float_dot,
    load_along,
    load_down,
    result_of,
    rows_of,
    warps_for,
)

BLOCK_M_MAX = 128
BLOCK_N_SMALL = 32  # where tiles are few
BLOCK_N = 64
BLOCK_N_LARGE = 128


@triton.jit
def _factor_of(expert_ids, expert_weights, pair, is_pair, num_experts):
    """The weight of a pair, in float32; 0 of one whose expert does not exist."""
    expert = tl.load(expert_ids + pair, mask=is_pair, other=0)
    factor = tl.load(expert_weights + pair, mask=is_pair, other=0.0).to(tl.float32)
    return tl.where((expert >= 0) & (expert < num_experts), factor, 0.0)


@triton.jit
def _matmul_experts(
    x, weight, pairs, block_experts, block_pairs, expert_ids, expert_weights, into,
    num_blocks, num_out, num_in, num_experts, x_stride, expert_stride, into_stride,
    NUM_CHOSEN: tl.constexpr, IS_WEIGHTED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_EVEN: tl.constexpr, NUM_XCDS: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    pid = neighbours_together(tl.program_id(0), tl.num_programs(0), NUM_XCDS)
    block = pid % num_blocks  # an expert's blocks are neighbours, and find its weight in the cache
    n = pid // num_blocks
    num_pairs = tl.load(block_pairs + block)
    if num_pairs > 0:
        place = tl.arange(0, BLOCK_M)
        is_pair = place < num_pairs
        pair = tl.load(pairs + block * BLOCK_M + tl.minimum(place, num_pairs - 1))
        column = tl.minimum(tl.arange(0, BLOCK_N), num_out - 1 - n * BLOCK_N)
        expert = tl.load(block_experts + block).to(tl.int64)
        columns = weight + expert * expert_stride + (n * BLOCK_N).to(tl.int64) * num_in
        columns += column[None, :] * num_in
        rows = x + (pair // NUM_CHOSEN).to(tl.int64)[:, None] * x_stride
        value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for at in range(0, num_in, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            w = load_down(columns, k, num_in, IS_EVEN)
            value = float_dot(load_along(rows, k, num_in, IS_EVEN), w, value, UP)
        if IS_WEIGHTED:
            factor = _factor_of(expert_ids, expert_weights, pair, is_pair, num_experts)
            value = value * factor[:, None]
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)
        at_pairs = into + pair.to(tl.int64)[:, None] * into_stride + column[None, :]
        is_stored = is_pair[:, None] & (column < num_out)[None, :]
        tl.store(at_pairs, value.to(into.dtype.element_ty), mask=is_stored)


@triton.jit
def _sum_chosen(
    products, expert_ids, expert_weights, out, num_out, num_experts, out_stride,
    NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < num_out
    total = tl.zeros([BLOCK], tl.float32)
    for chosen in range(0, NUM_CHOSEN):
        pair = row.to(tl.int64) * NUM_CHOSEN + chosen
        factor = _factor_of(expert_ids, expert_weights, pair, True, num_experts)
        product = tl.load(products + pair * num_out + column, mask=is_column, other=0.0)
        total += product * factor
    into = out + row.to(tl.int64) * out_stride + column
    tl.store(into, total.to(out.dtype.element_ty), mask=is_column)


def moe_matmul(
    x: Tensor,  # [R, K]
    weight: Tensor,  # [E, N, K]
    expert_ids: Tensor,  # [R, T] int64: the experts chosen
    expert_weights: Tensor,  # [R, T]
    *,
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in x's dtype: Σ over t of expert_weights · (x · weight[expert]ᵀ), summed in float32
    in the order of t. A choice whose expert does not exist adds nothing.

    Raises ValueError if `weight` is not one block of memory, or `out` does not fit.
    """
    num_rows, num_chosen = expert_ids.shape
    num_experts, num_out, num_in = weight.shape
    check_contiguous(weight)
    if expert_weights.shape != expert_ids.shape or len(x) != num_rows:
        raise ValueError(
            f"x {list(x.shape)}, expert_ids {list(expert_ids.shape)} and expert_weights "
            f"{list(expert_weights.shape)} do not fit each other"
        )
    result = result_of(x, num_out, out)
    x = rows_of(x, num_in)
    expert_ids, expert_weights = expert_ids.contiguous(), expert_weights.contiguous()
    sizes, config = _plan(num_rows * num_chosen, num_experts, num_out, num_in)
    order = sort_pairs(expert_ids, num_experts, sizes["BLOCK_M"])
    is_one = num_chosen == 1
    into = result
    if not is_one:
        shape = (num_rows * num_chosen, num_out)
        into = torch.empty(shape, dtype=torch.float32, device=x.device)
    choices = {
        "expert_ids": expert_ids, "expert_weights": expert_weights, "num_experts": num_experts,
        "num_out": num_out, "NUM_CHOSEN": num_chosen,
    }  # fmt: skip
    launch(
        _matmul_experts, (order.num_blocks * triton.cdiv(num_out, sizes["BLOCK_N"]),), config,
        x=x, weight=weight, pairs=order.pairs, block_experts=order.experts,
        block_pairs=order.num_pairs, into=into, num_blocks=order.num_blocks,
        num_in=num_in, x_stride=x.stride(0), expert_stride=num_out * num_in,
        into_stride=into.stride(0), IS_WEIGHTED=is_one, IS_EVEN=num_in % sizes["BLOCK_K"] == 0,
        NUM_XCDS=current_target().num_xcds, UP=IS_INTERPRETED, **choices, **sizes,
    )  # fmt: skip
    if not is_one:
        block = min(REDUCED_BLOCK, triton.next_power_of_2(num_out))
        launch(
            _sum_chosen, (num_rows, triton.cdiv(num_out, block)), Config(num_stages=1),
            products=into, out=result, out_stride=result.stride(0), BLOCK=block, **choices,
        )  # fmt: skip
    return result


def _plan(
    num_pairs: int, num_experts: int, num_out: int, num_in: int
) -> tuple[dict[str, int], Config]:
    """Row blocks of what an expert has on average; narrow tiles while there are few."""
    average = int(triton.next_power_of_2(max(1, num_pairs // num_experts)))
    block_m = min(max(average, BLOCK_M_MIN), BLOCK_M_MAX)
    num_active = min(num_pairs, num_experts)
    is_few = num_active * triton.cdiv(num_out, BLOCK_N) < 2 * current_target().num_cus
    block_n = BLOCK_N_SMALL if is_few else BLOCK_N if block_m < BLOCK_N else BLOCK_N_LARGE
    tile = tuned(
        "moe_matmul", f"{num_experts}x{num_out}x{num_in} {average} rows an expert",
        {"block_m": block_m, "block_n": block_n, "block_k": 64 if block_m >= BLOCK_N else 128,
         "num_warps": warps_for(block_m * block_n), "num_stages": 2,
         "waves_per_eu": 0},
    )  # fmt: skip
    sizes = {"BLOCK_M": tile["block_m"], "BLOCK_N": tile["block_n"], "BLOCK_K": tile["block_k"]}
    config = Config(tile["num_warps"], tile["num_stages"], tile["waves_per_eu"], nonkdim=NONKDIM)
    return sizes, config
