"""Providers' usage objects → disjoint token buckets, and the price some report beside them.

Every function takes the decoded JSON value, whatever it is. A number that cannot be a token
count (negative, not an integer, above TOKENS_MAX) makes the whole object worthless: None. An
explicit zero is a count like any other.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation

import msgspec

from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

TOKENS_MAX = 1_000_000_000
# Dearer than any one call: a reported price above it is a mistake of units.
COST_NANOS_MAX = 10_000 * 1_000_000_000
_NANOS_PER_DOLLAR = Decimal(1_000_000_000)
_TICKS_PER_NANO = 10  # xAI: 10^10 ticks a dollar (docs.x.ai, cost tracking)


class _Insane(ValueError):
    """A count that no provider can mean."""


def read_usage(surface: Surface, usage: object) -> Usage | None:
    """The usage object of a complete answer of this surface."""
    if surface is Surface.MESSAGES:
        return anthropic_usage(usage)
    if surface is Surface.COUNT_TOKENS:
        return None  # counting costs nothing
    return openai_usage(usage)


def openai_usage(usage: object) -> Usage | None:
    """Chat, completions, responses and embeddings usage, and what compatible APIs made of it.

    OpenAI counts every detail inside its total: cached, written, audio and image tokens inside
    prompt tokens; reasoning and audio inside completion tokens. Details that overlap or exceed
    their total are cut, so `input_total` is always the prompt count as reported.
    """
    if not isinstance(usage, dict):
        return None
    try:
        prompt = _first(usage, "prompt_tokens", "input_tokens")
        if prompt is None:
            return None
        completion = _first(usage, "completion_tokens", "output_tokens") or 0
        left = _Purse(prompt)
        inner = _details(usage, "prompt_tokens_details", "input_tokens_details")
        # DeepSeek and Moonshot say it at the top level.
        cached = _first(inner, "cached_tokens") or 0
        cached = cached or _first(usage, "prompt_cache_hit_tokens", "cached_tokens") or 0
        cached = cached or _first(usage, "cache_read_input_tokens") or 0
        written = _first(inner, "cache_write_tokens", "cache_creation_tokens") or 0
        written = written or _first(usage, "cache_creation_input_tokens") or 0
        cached_read = left.take(cached)
        cache_write = left.take(written)
        audio_input = left.take(_first(inner, "audio_tokens") or 0)
        image_input = left.take(_first(inner, "image_tokens") or 0)
        outer = _details(usage, "completion_tokens_details", "output_tokens_details")
        reasoning = _first(outer, "reasoning_tokens") or 0
        reasoning = reasoning or _first(usage, "reasoning_tokens") or 0
        if _is_beside(usage, prompt, completion, reasoning):
            completion += reasoning
        right = _Purse(completion)
        reasoning = right.take(reasoning)
        audio_output = right.take(_first(outer, "audio_tokens") or 0)
    except _Insane:
        return None
    return Usage(
        input=left.rest,
        cached_read=cached_read,
        cache_write_5m=cache_write,
        output=right.rest,
        reasoning=reasoning,
        audio_input=audio_input,
        audio_output=audio_output,
        image_input=image_input,
    )


def anthropic_usage(usage: object, before: Usage | None = None) -> Usage | None:
    """Messages usage. `before` is what the stream said so far; counts are cumulative.

    Anthropic's input tokens exclude cached and written ones already; thinking is inside output.
    """
    if not isinstance(usage, dict):
        return None
    before = before if before is not None else Usage()
    try:
        tokens_in = _first(usage, "input_tokens")
        tokens_out = _first(usage, "output_tokens")
        if tokens_in is None and tokens_out is None:
            return None
        cached_read = _first(usage, "cache_read_input_tokens")
        write_5m, write_1h = _cache_writes(usage, before)
        outer = _details(usage, "output_tokens_details")
        thinking = _first(outer, "thinking_tokens", "reasoning_tokens")
        right = _Purse(before.output_total if tokens_out is None else tokens_out)
        reasoning = right.take(before.reasoning if thinking is None else thinking)
    except _Insane:
        return None
    return Usage(
        input=before.input if tokens_in is None else tokens_in,
        cached_read=before.cached_read if cached_read is None else cached_read,
        cache_write_5m=write_5m,
        cache_write_1h=write_1h,
        output=right.rest,
        reasoning=reasoning,
    )


def reported_cost_nanos(usage: object) -> int | None:
    """What the provider says the call cost: OpenRouter `cost`, Perplexity `cost.total_cost`,
    xAI `cost_in_usd_ticks`. Rounded up to a nano-dollar; None when absent or insane.
    """
    if not isinstance(usage, dict):
        return None
    ticks = usage.get("cost_in_usd_ticks")
    if type(ticks) is int:
        nanos = -(-ticks // _TICKS_PER_NANO)
        return nanos if ticks >= 0 and nanos <= COST_NANOS_MAX else None
    cost = usage.get("cost")
    if isinstance(cost, dict):
        cost = cost.get("total_cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float | str):
        return None
    try:
        dollars = Decimal(str(cost))
        if not 0 <= dollars <= COST_NANOS_MAX / _NANOS_PER_DOLLAR:
            return None
    except InvalidOperation:  # not a number, or NaN, which compares with nothing
        return None
    return int((dollars * _NANOS_PER_DOLLAR).to_integral_value(ROUND_CEILING))


def openai_usage_json(usage: Usage) -> bytes:
    """A chat usage object made of our buckets, for streams whose upstream sent none as such."""
    return msgspec.json.encode(
        {
            "prompt_tokens": usage.input_total,
            "completion_tokens": usage.output_total,
            "total_tokens": usage.input_total + usage.output_total,
            "prompt_tokens_details": {
                "cached_tokens": usage.cached_read,
                "audio_tokens": usage.audio_input,
            },
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning,
                "audio_tokens": usage.audio_output,
            },
        }
    )


class _Purse:
    """A total that details are taken out of, never more than is left."""

    __slots__ = ("rest",)

    def __init__(self, total: int) -> None:
        self.rest = total

    def take(self, count: int) -> int:
        taken = min(count, self.rest)
        self.rest -= taken
        return taken


def _is_beside(usage: dict[str, object], prompt: int, completion: int, reasoning: int) -> bool:
    """Whether reasoning stands beside the completion tokens (xAI) instead of inside them.

    The total tells. Without one, more reasoning than completion can only be beside.
    """
    if reasoning == 0:
        return False
    total = _first(usage, "total_tokens")
    if total is None:
        return reasoning > completion
    return total == prompt + completion + reasoning


def _cache_writes(usage: dict[str, object], before: Usage) -> tuple[int, int]:
    """Tokens written to the 5-minute and 1-hour caches; what no breakdown names is 5-minute."""
    total = _first(usage, "cache_creation_input_tokens")
    inner = _details(usage, "cache_creation")
    one_hour = _first(inner, "ephemeral_1h_input_tokens")
    five_minutes = _first(inner, "ephemeral_5m_input_tokens")
    if one_hour is None and five_minutes is None:
        if total is None:
            return before.cache_write_5m, before.cache_write_1h
        one_hour = min(before.cache_write_1h, total)
        return total - one_hour, one_hour
    one_hour, five_minutes = one_hour or 0, five_minutes or 0
    return max(five_minutes, (total or 0) - one_hour), one_hour


def _first(fields: dict[str, object], *names: str) -> int | None:
    """The first of these counts that is there. Raises _Insane."""
    for name in names:
        count = fields.get(name)
        if count is None:
            continue
        if type(count) is not int or not 0 <= count <= TOKENS_MAX:
            raise _Insane(name)
        return count
    return None


def _details(fields: dict[str, object], *names: str) -> dict[str, object]:
    for name in names:
        inner = fields.get(name)
        if isinstance(inner, dict):
            return inner
    return {}
