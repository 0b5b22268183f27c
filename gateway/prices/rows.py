"""Price rows and bills: which row holds for an answer, and what its tokens cost. Pure integers.

A row's bucket of 0 means "not stated" and falls back to a stated one (a cached read to input,
reasoning to output, …), unless the row lists the bucket as `free`. So a forgotten price is
never $0.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.core import PICOS_PER_NANO, PriceRow
from gateway.wire.usage import Usage

STANDARD = "standard"
BATCH = "batch"
UNPRICED = PriceRow(source="unpriced")

# What a bucket costs when its row does not say.
FALLBACK: dict[str, str] = {
    "cached_read": "input",
    "cache_write_5m": "input",
    "cache_write_1h": "cache_write_5m",
    "audio_input": "input",
    "image_input": "input",
    "reasoning": "output",
    "audio_output": "output",
}

# `service_tier` as the dialects spell it → the tier of a price row.
_TIERS: dict[str, str] = {
    "": STANDARD,
    "auto": STANDARD,
    "default": STANDARD,
    "standard": STANDARD,
    "standard_only": STANDARD,
    "on_demand": STANDARD,
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
    "batch": BATCH,
}


def tier_of(service_tier: str) -> str:
    """The price tier a `service_tier` asks for; one that no provider names is standard."""
    return _TIERS.get(service_tier, STANDARD)


def tier_at_once(asked: str, own: str) -> str:
    """
    The price tier of an answer that is waited for: the request's, else the endpoint's own.

    Batch prices hold for a provider's batch API, and no such answer comes from there.
    """
    tier = own if asked == STANDARD else asked
    return STANDARD if tier == BATCH else tier


def bucket_picos(row: PriceRow, bucket: str) -> int:
    """Pico-dollars per token of `bucket`, its fallback taken where the row does not state one."""
    picos: int = getattr(row, bucket)
    while picos == 0 and bucket not in row.free and bucket in FALLBACK:
        bucket = FALLBACK[bucket]
        picos = getattr(row, bucket)
    return picos


def complete_row(
    row: PriceRow,
    *,
    write_5m_of_input: tuple[int, int] = (1, 1),
    write_1h_of_input: tuple[int, int] = (1, 1),
) -> PriceRow:
    """
    `row` with every bucket stated, so that no later reader needs the fallbacks.

    The two ratios (numerator, denominator) are what a provider charges to write its cache, as a
    multiple of input; 1.25 and 2 at Anthropic, 1 where writing costs nothing extra.
    """
    picos = {bucket: bucket_picos(row, bucket) for bucket in FALLBACK}
    for bucket, ratio in (
        ("cache_write_5m", write_5m_of_input),
        ("cache_write_1h", write_1h_of_input),
    ):
        is_stated = getattr(row, bucket) != 0 or bucket in row.free
        if not is_stated and ratio != (1, 1):
            picos[bucket] = -(-row.input * ratio[0] // ratio[1])
    free = [name for name, price in picos.items() if price == 0]
    free += [name for name in ("input", "output") if getattr(row, name) == 0]
    return msgspec.structs.replace(row, **picos, free=tuple(sorted({*free, *row.free})))


def batch_rows(
    rows: Iterable[PriceRow], price_of_standard: tuple[int, int], why: str
) -> tuple[PriceRow, ...]:
    """
    Rows of tier batch made of the standard ones: this share (numerator, denominator) of each price.

    Each bucket is rounded up to a whole pico-dollar. A flat fee a request stays. `why` tells in
    the price id where the share comes from.
    """
    over, under = price_of_standard
    made = []
    for row in rows:
        if row.tier != STANDARD or not row.is_priced:
            continue
        picos = {b: -(-getattr(row, b) * over // under) for b in ("input", "output", *FALLBACK)}
        price_id = f"{row.price_id} × {over}/{under} ({why})"
        made.append(msgspec.structs.replace(row, tier=BATCH, price_id=price_id, **picos))
    return tuple(made)


def average_row(cost_nanos: int, num_tokens: int, price_id: str) -> PriceRow:
    """What a machine costs in some time, spread over its tokens then: in each bucket the same."""
    picos = max(1, -(-cost_nanos * PICOS_PER_NANO // num_tokens))
    return complete_row(
        PriceRow(source="self_hosted", price_id=price_id, input=picos, output=picos)
    )


def pick_row(
    rows: Iterable[PriceRow], *, tier: str = STANDARD, context_tokens: int = 0
) -> PriceRow:
    """
    The row for this tier whose context step the prompt has reached.

    A tier without rows of its own is billed as standard; no row at all is `UNPRICED`.
    """
    best: PriceRow | None = None
    fallback: PriceRow | None = None
    for row in rows:
        if row.context_tokens_min > context_tokens:
            continue
        if row.tier == tier:
            if best is None or row.context_tokens_min > best.context_tokens_min:
                best = row
        elif row.tier == STANDARD and (
            fallback is None or row.context_tokens_min > fallback.context_tokens_min
        ):
            fallback = row
    return best or fallback or UNPRICED


def cost_nanos(row: PriceRow, usage: Usage) -> int:
    """What `usage` costs, rounded up to a whole nano-dollar once, over the whole answer."""
    picos = usage.input * row.input + usage.output * row.output
    if usage.cached_read:
        picos += usage.cached_read * bucket_picos(row, "cached_read")
    if usage.reasoning:
        picos += usage.reasoning * bucket_picos(row, "reasoning")
    if usage.cache_write_5m or usage.cache_write_1h:
        picos += usage.cache_write_5m * bucket_picos(row, "cache_write_5m")
        picos += usage.cache_write_1h * bucket_picos(row, "cache_write_1h")
    if usage.audio_input or usage.audio_output or usage.image_input:
        picos += usage.audio_input * bucket_picos(row, "audio_input")
        picos += usage.audio_output * bucket_picos(row, "audio_output")
        picos += usage.image_input * bucket_picos(row, "image_input")
    return -(-picos // PICOS_PER_NANO) + row.request_nanos


def hold_nanos(
    rows: Iterable[PriceRow],
    *,
    prompt_tokens_max: int,
    output_tokens_max: int,
    tier: str = STANDARD,
    writes_cache: bool = True,
    has_audio: bool = False,
) -> int:
    """
    The most an answer of at most so many tokens can cost at these rows: what must be held.

    Every context step up to the prompt's bound counts, and the dearest bucket of each side.
    `writes_cache=False` says that the request cannot write a cache that is billed as such.
    """
    valid = tuple(rows)
    of_tier = [row for row in valid if row.tier == tier]
    if not of_tier:
        of_tier = [row for row in valid if row.tier == STANDARD]
    dearest = 0
    for row in of_tier:
        if row.context_tokens_min > prompt_tokens_max:
            continue
        prompt = max(row.input, bucket_picos(row, "cached_read"), bucket_picos(row, "image_input"))
        output = max(row.output, bucket_picos(row, "reasoning"))
        if writes_cache:
            writes = (bucket_picos(row, "cache_write_5m"), bucket_picos(row, "cache_write_1h"))
            prompt = max(prompt, *writes)
        if has_audio:
            prompt = max(prompt, bucket_picos(row, "audio_input"))
            output = max(output, bucket_picos(row, "audio_output"))
        picos = prompt_tokens_max * prompt + output_tokens_max * output
        dearest = max(dearest, -(-picos // PICOS_PER_NANO) + row.request_nanos)
    return dearest
