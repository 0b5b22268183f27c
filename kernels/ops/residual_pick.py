"""The token after the accepted drafts, in Triton: from what the draft left of the target."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import launch
from kernels.ops.sampling_rows import (
    CONFIG,
    Rows,
    best_of,
    delivered,
    first_largest,
    masses_of,
    places_of,
    tokens_for,
)  # fmt: skip
from kernels.ops.sampling_weights import (
    ONE,
    best_order,
    block_at,
    place_in,
    rounded,
    row_of,
    target_of,
    temperature_of,
    token_at,
    value_in,
    weights_of,
)  # fmt: skip


@triton.jit
def rejected_at(places, draft_ids, row, num_drafts) -> Any:
    """(the place, the draft refused there or one below 0 where there was none to refuse)."""
    place = tl.load(places + row)
    has_place = place < num_drafts
    at = draft_ids + row * num_drafts + tl.where(has_place, place, 0)
    return place, tl.where(has_place, tl.load(at), -1)


@triton.jit
def excess_of(weights, total, draft_probs, offsets, is_token) -> Any:
    """int64: max(p - q, 0)."""
    given = tl.load(draft_probs + offsets, mask=is_token, other=0.0).to(tl.float64)
    share = weights.to(tl.float64) / tl.maximum(total, 1).to(tl.float64)
    excess = share - given
    return rounded(tl.where(excess > 0.0, excess, 0.0) * ONE)


@triton.jit
def sum_of(masses, row, num_blocks, BLOCKS: tl.constexpr) -> Any:
    """(the masses of a row's blocks, their sum)."""
    blocks = tl.arange(0, BLOCKS)
    parts = tl.load(masses + row * num_blocks + blocks, mask=blocks < num_blocks, other=0)
    return parts, tl.sum(parts, axis=0)


@triton.jit
def excess_mass(
    logits, places, best, masses, excesses, temperature, draft_ids, draft_probs, num_drafts,
    num_places, sequence_stride, place_stride, probs_sequence_stride, probs_place_stride,
    vocab_size, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """`excesses[row, block]`: what p has above q, where a draft was refused."""
    row, block = tl.program_id(0), tl.program_id(1)
    hotness = temperature_of(temperature, row)
    place, rejected = rejected_at(places, draft_ids, row, num_drafts)
    if (hotness != 0.0) & (rejected >= 0):
        num_blocks = tl.num_programs(1)
        largest = value_in(best_order(best, row, num_blocks, BLOCKS))
        _, total = sum_of(masses, row, num_blocks, BLOCKS)
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        is_token = ids < vocab_size
        values = tl.load(start + ids, mask=is_token, other=float("-inf")).to(tl.float32)
        weights = weights_of(values, largest, hotness)
        offsets = row.to(tl.int64) * probs_sequence_stride + place * probs_place_stride + ids
        excess = excess_of(weights, total, draft_probs, offsets, is_token)
        tl.store(excesses + row * num_blocks + block, tl.sum(excess, axis=0))


@triton.jit
def pick(
    logits, places, best, masses, excesses, temperature, draft_ids, draft_probs, uniforms, tokens,
    num_drafts, num_places, sequence_stride, place_stride, probs_sequence_stride,
    probs_place_stride, vocab_size, num_blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """`tokens[row]`, by one program that reads a single block of its row."""
    row = tl.program_id(0)
    hotness = temperature_of(temperature, row)
    order = best_order(best, row, num_blocks, BLOCKS)
    token = place_in(order)
    if hotness != 0.0:
        largest = value_in(order)
        parts, total = sum_of(masses, row, num_blocks, BLOCKS)
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        kept, left, refused = parts, total, -1
        if draft_ids is not None:
            place, rejected = rejected_at(places, draft_ids, row, num_drafts)
            has_draft = rejected >= 0
            if draft_probs is None:
                refused = tl.where(has_draft, rejected, 0)
                value = tl.load(start + refused).to(tl.float32)
                own = tl.where(has_draft, weights_of(value, largest, hotness), 0)
                residual = parts - tl.where(tl.arange(0, BLOCKS) == refused // BLOCK, own, 0)
                residual_total = total - own
            else:
                # Nothing was written where no draft was refused.
                at = excesses + row * num_blocks + tl.arange(0, BLOCKS)
                is_part = tl.arange(0, BLOCKS) < tl.where(has_draft, num_blocks, 0)
                residual = tl.load(at, mask=is_part, other=0)
                residual_total = tl.sum(residual, axis=0)
            has_residual = has_draft & (residual_total > 0)
            kept = tl.where(has_residual, residual, parts)
            left = tl.where(has_residual, residual_total, total)
        target = target_of(tl.load(uniforms + row), left)
        block, before = block_at(kept, target, num_blocks, BLOCKS)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        is_token = ids < vocab_size
        values = tl.load(start + ids, mask=is_token, other=float("-inf")).to(tl.float32)
        weights = weights_of(values, largest, hotness)
        if draft_ids is not None:
            if draft_probs is None:
                weights = tl.where(has_residual & (ids == refused), 0, weights)
            else:
                offsets = row.to(tl.int64) * probs_sequence_stride
                offsets = offsets + place * probs_place_stride + ids
                is_used = ids < tl.where(has_residual, vocab_size, 0)
                excess = excess_of(weights, total, draft_probs, offsets, is_used)
                weights = tl.where(has_residual, excess, weights)
        token = token_at(weights, ids, before, target, vocab_size)
    tl.store(tokens + row, token.to(tl.int64))


def residual_pick(
    logits: Tensor,  # [S, N + 1, V]: as given to `verify_rejection`
    num_accepted: Tensor,  # [S] int64, 0..N
    uniforms: Tensor,  # [S]
    *,
    temperature: Tensor | None = None,  # [S]; 0: the sequence is greedy; None: all are
    draft_ids: Tensor | None = None,  # [S, N] int64; below 0: no draft at this place
    draft_probs: Tensor | None = None,  # [S, N, V]
    out: Tensor | None = None,
) -> Tensor:
    """int64 [S], as the reference's (Leviathan et al., 2023, algorithm 1).

    Raises ValueError for more than VOCAB_SIZE_MAX tokens.
    """
    num_drafts = logits.shape[1] - 1
    rows = places_of(logits, 1, num_accepted.contiguous())
    tokens = tokens_for(out, rows.num_rows, logits.device)
    best = best_of(rows)
    if temperature is None:
        return delivered(first_largest(rows, best, tokens), out)
    temperature = temperature.contiguous()
    if draft_ids is None or num_drafts == 0:
        draft_ids = draft_probs = None
    else:
        draft_ids = draft_ids.contiguous()
    if draft_probs is not None and draft_probs.stride(-1) != 1:
        draft_probs = draft_probs.contiguous()
    given = {
        "best": best, "masses": masses_of(rows, best, temperature), "temperature": temperature,
        "draft_ids": draft_ids, "draft_probs": draft_probs, "num_drafts": num_drafts,
        "probs_sequence_stride": 0 if draft_probs is None else draft_probs.stride(0),
        "probs_place_stride": 0 if draft_probs is None else draft_probs.stride(1),
        **rows.place(), **rows.blocks,
    }  # fmt: skip
    excesses = None if draft_probs is None else _excesses(rows, given)
    launch(
        pick, (rows.num_rows,), CONFIG,
        excesses=excesses, uniforms=uniforms.contiguous(), tokens=tokens,
        num_blocks=rows.num_blocks, **given,
    )  # fmt: skip
    return delivered(tokens, out)


def _excesses(rows: Rows, given: dict[str, Any]) -> Tensor:
    """int64 [rows, blocks]: the residual's masses where a draft was refused."""
    excesses = rows.parts()
    launch(excess_mass, rows.grid, CONFIG, excesses=excesses, **given)
    return excesses
