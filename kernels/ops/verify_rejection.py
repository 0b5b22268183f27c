"""How many drafts of each sequence stand: rejection sampling, rows split over blocks."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import launch
from kernels.ops.sampling_rows import (
    CONFIG,
    best_of,
    delivered,
    masses_of,
    places_of,
    tokens_for,
)  # fmt: skip
from kernels.ops.sampling_weights import NONE, place_in, temperature_of, value_in, weights_of


@triton.jit
def count_accepted(
    logits, places, best, masses, temperature, draft_ids, draft_probs, num_valid, uniforms, counts,
    num_places, sequence_stride, place_stride, probs_sequence_stride, probs_place_stride,
    vocab_size, num_blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PLACES: tl.constexpr,
) -> None:  # fmt: skip
    """`counts[sequence]`. All places at once: one that fails stops those behind it."""
    sequence = tl.program_id(0)
    place, blocks = tl.arange(0, PLACES), tl.arange(0, BLOCKS)
    is_place = place < num_places
    rows = sequence * num_places + place
    at = rows[:, None] * num_blocks + blocks[None, :]
    is_part = is_place[:, None] & (blocks < num_blocks)[None, :]
    order = tl.max(tl.load(best + at, mask=is_part, other=NONE), axis=1)
    drafts = tl.load(draft_ids + rows, mask=is_place, other=-1)
    is_accepted = place_in(order).to(tl.int64) == drafts
    if temperature is not None:
        hotness = temperature_of(temperature, sequence)
        ids = tl.minimum(tl.maximum(drafts, 0), vocab_size - 1)
        start = logits + sequence.to(tl.int64) * sequence_stride
        offsets = place.to(tl.int64) * place_stride + ids
        values = tl.load(start + offsets, mask=is_place, other=float("-inf")).to(tl.float32)
        of_draft = weights_of(values, value_in(order), hotness)
        # A greedy sequence has no masses; what lies there is not looked at.
        is_mass = is_place[:, None] & (blocks < tl.where(hotness == 0.0, 0, num_blocks))[None, :]
        total = tl.sum(tl.load(masses + at, mask=is_mass, other=0), axis=1)
        bar = tl.load(uniforms + rows, mask=is_place, other=0.0).to(tl.float64)
        bar *= total.to(tl.float64)
        if draft_probs is not None:
            start = draft_probs + sequence.to(tl.int64) * probs_sequence_stride
            offsets = place.to(tl.int64) * probs_place_stride + ids
            bar *= tl.load(start + offsets, mask=is_place, other=0.0).to(tl.float64)
        is_drawn = (bar <= of_draft.to(tl.float64)) & (of_draft > 0)
        is_accepted = tl.where(hotness == 0.0, is_accepted, is_drawn)
    limit = tl.minimum(tl.load(num_valid + sequence).to(tl.int32), num_places)
    stops = tl.where(is_accepted & (place < limit), PLACES, place)
    count = tl.minimum(tl.min(stops, axis=0), tl.maximum(limit, 0))
    tl.store(counts + sequence, count.to(tl.int64))


def verify_rejection(
    logits: Tensor,  # [S, N + 1, V]: after penalties; -inf where a filter took a token out
    draft_ids: Tensor,  # [S, N] int64
    num_valid: Tensor,  # [S] int64: drafts that count
    uniforms: Tensor,  # [S, N]
    *,
    temperature: Tensor | None = None,  # [S]; 0: the sequence is greedy; None: all are
    draft_probs: Tensor | None = None,  # [S, N, V]: what the drafts were drawn from
    out: Tensor | None = None,
) -> Tensor:
    """int64 [S], as the reference's (Leviathan et al., 2023, algorithm 1; Chen et al., 2023).

    Raises ValueError for more than VOCAB_SIZE_MAX tokens.
    """
    num_sequences, num_drafts = draft_ids.shape
    rows = places_of(logits, num_drafts)
    counts = tokens_for(out, num_sequences, logits.device)
    if num_drafts == 0:
        return delivered(counts.zero_(), out)
    best = best_of(rows)
    masses = None
    if temperature is None:
        draft_probs = None
    else:
        temperature = temperature.contiguous()
        masses = masses_of(rows, best, temperature)
    if draft_probs is not None and draft_probs.stride(-1) != 1:
        draft_probs = draft_probs.contiguous()
    launch(
        count_accepted, (num_sequences,), CONFIG,
        best=best, masses=masses, temperature=temperature, draft_ids=draft_ids.contiguous(),
        draft_probs=draft_probs, num_valid=num_valid.contiguous(),
        uniforms=uniforms.contiguous(), counts=counts,
        probs_sequence_stride=0 if draft_probs is None else draft_probs.stride(0),
        probs_place_stride=0 if draft_probs is None else draft_probs.stride(1),
        num_blocks=rows.num_blocks, PLACES=triton.next_power_of_2(num_drafts),
        **rows.place(), **rows.blocks,
    )  # fmt: skip
    return delivered(counts, out)
