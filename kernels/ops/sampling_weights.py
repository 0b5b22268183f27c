"""What kernels that sample share: the order of logits, and probabilities held as integers.

A weight means what it means in `kernels.reference.sample`: exp((logit - largest) / t) · 2**44 in
float64, rounded to even. Sums of integers do not depend on their order, so a row may be split over
any number of programs. Only exp itself may differ in its last bit between devices, which moves a
weight by 1 at most.

Float64 runs at half of float32's peak on CDNA 3 and on NVIDIA's data-centre GPUs. By its count of
instructions (not measured) a float32 logit's weight costs about twice its reading on an MI300X; on
RDNA float64 is many times slower, and the tokens are the same.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

NONE = tl.constexpr(-(2**63) + 1)  # below every logit's place in the order
PLACE_MASK = tl.constexpr(0x7FFFFFFF)
ONE = tl.constexpr(2.0**44)  # the weight of a row's largest logit
# Added to a number from 0 to 2**51 it leaves it rounded to even in the low bits of the sum.
ROUNDING = tl.constexpr(2.0**52)
ROUNDING_BITS = tl.constexpr(0x4330000000000000)
INT32_MAX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def row_of(logits, places, row, num_places, sequence_stride, place_stride) -> Any:
    """Where a row begins: place `row % num_places` of its sequence, or `places[sequence]`."""
    sequence = row // num_places
    place = row % num_places
    if places is not None:
        place = tl.load(places + sequence)
    start = sequence.to(tl.int64) * sequence_stride + place.to(tl.int64) * place_stride
    return logits + start


@triton.jit
def ascending_keys(values) -> Any:
    """int32 in the order of float32 values; 0.0 and -0.0 are equal, NaN is largest as in torch."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # + 0.0 turns -0.0 into 0.0
    return tl.where(values == values, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@triton.jit
def value_of_key(key) -> Any:
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def orders_of(values, ids) -> Any:
    """int64: the largest is that of the largest logit, the first one where several tie."""
    upper = ascending_keys(values).to(tl.int64) << 32
    return upper | (ids ^ PLACE_MASK).to(tl.int64)


@triton.jit
def place_in(order) -> Any:
    return ((order & PLACE_MASK) ^ PLACE_MASK).to(tl.int32)


@triton.jit
def value_in(order) -> Any:
    return value_of_key((order >> 32).to(tl.int32))


@triton.jit
def best_order(best, row, num_blocks, BLOCKS: tl.constexpr) -> Any:
    """A row's largest order from those of its blocks."""
    blocks = tl.arange(0, BLOCKS)
    orders = tl.load(best + row * num_blocks + blocks, mask=blocks < num_blocks, other=NONE)
    return tl.max(orders, axis=0)


@triton.jit
def temperature_of(temperature, row) -> Any:
    """float64; 0 stays 0, and means a greedy row."""
    return tl.load(temperature + row).to(tl.float64)


@triton.jit
def weights_of(values, largest, temperature) -> Any:
    """int64. A logit that is not a number has no weight; temperature 0 is read as 1.

    If the largest is infinite no weight means anything, but none is inf - inf.
    """
    is_usable = (largest == largest) & (tl.abs(largest) < float("inf"))
    middle = tl.where(is_usable, largest, 0.0).to(tl.float64)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    exponents = (values.to(tl.float64) - middle) / divisor
    exponents = tl.where(exponents <= 0.0, exponents, float("-inf"))
    return rounded(tl.exp(exponents) * ONE)


@triton.jit
def rounded(numbers) -> Any:
    """float64 from 0 to 2**51 → int64, to even."""
    return (numbers + ROUNDING).to(tl.int64, bitcast=True) - ROUNDING_BITS


@triton.jit
def target_of(uniform, total) -> Any:
    """int64: the drawn token is the first whose cumulative weight is above it."""
    return tl.minimum((uniform.to(tl.float64) * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def block_at(sums, target, num_blocks, BLOCKS: tl.constexpr) -> Any:
    """(the block in which the cumulative sum passes `target`, the sum before it)."""
    blocks = tl.arange(0, BLOCKS)
    is_before = (tl.cumsum(sums, axis=0) <= target) & (blocks < num_blocks)
    block = tl.minimum(tl.sum(is_before.to(tl.int32), axis=0), num_blocks - 1)
    return block, tl.sum(tl.where(blocks < block, sums, 0), axis=0)


@triton.jit
def token_at(weights, ids, before, target, vocab_size) -> Any:
    """int32: the token of this block at which the cumulative weight passes `target`."""
    is_before = (tl.cumsum(weights, axis=0) + before <= target) & (ids < vocab_size)
    first = tl.min(ids, axis=0)
    return tl.minimum(first + tl.sum(is_before.to(tl.int32), axis=0), vocab_size - 1)


@triton.jit
def block_best(
    logits, places, best, num_places, sequence_stride, place_stride, vocab_size,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """`best[row, block]`: the largest order of a block of a row."""
    row, block = tl.program_id(0), tl.program_id(1)
    start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    # What pads the last block comes after all that it may tie with.
    values = tl.load(start + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    largest = tl.max(orders_of(values, ids), axis=0)
    tl.store(best + row * tl.num_programs(1) + block, largest)


@triton.jit
def block_mass(
    logits, places, best, masses, temperature, num_places, sequence_stride, place_stride,
    vocab_size, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """`masses[row, block]`: the sum of a block's weights; not written for greedy sequences."""
    row, block = tl.program_id(0), tl.program_id(1)
    hotness = temperature_of(temperature, row // num_places)
    if hotness != 0.0:
        num_blocks = tl.num_programs(1)
        largest = value_in(best_order(best, row, num_blocks, BLOCKS))
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(start + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        mass = tl.sum(weights_of(values, largest, hotness), axis=0)
        tl.store(masses + row * num_blocks + block, mass)


@triton.jit
def take_best(best, tokens, num_blocks, BLOCKS: tl.constexpr) -> None:
    """`tokens[row]`: the first largest."""
    row = tl.program_id(0)
    token = place_in(best_order(best, row, num_blocks, BLOCKS))
    tl.store(tokens + row, token.to(tl.int64))
