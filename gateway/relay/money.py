"""What an attempt may cost (the hold) and what it did cost (the settlement). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.core import AttemptOutcome, Endpoint, EndpointStats, PriceRow
from gateway.ledger.records import Settlement
from gateway.prices.rows import (
    STANDARD,
    UNPRICED,
    cost_nanos,
    hold_nanos,
    pick_row,
    tier_at_once,
    tier_of,
)
from gateway.relay.job import RelayJob
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.usage import Usage

TOKENS_PER_BYTE_MARGIN = 1.1
TOKENS_PER_BYTE_UNKNOWN = 0.5
PROMPT_OVERHEAD_TOKENS = 256  # chat templates and providers' own words
TOOLS_OVERHEAD_TOKENS = 1_024  # the system prompt that comes with tools
OUTPUT_TOKENS_UNKNOWN = 131_072  # where neither request nor model says a limit
CHARACTERS_PER_TOKEN_UNKNOWN = 4.0
# The most one image counts for: OpenAI's small models multiply theirs, Anthropic scales down.
IMAGE_TOKENS_MAX: dict[Dialect, int] = {Dialect.OPENAI: 37_000, Dialect.ANTHROPIC: 5_000}

GENERATES = frozenset({Surface.CHAT, Surface.COMPLETIONS, Surface.RESPONSES, Surface.MESSAGES})
# Prices that the operator states or measures come before what the provider reports.
_OWN_SOURCES = frozenset({"policy", "self_hosted"})


def rows_of(job: RelayJob, endpoint: Endpoint) -> tuple[PriceRow, ...]:
    """The price rows fixed for this request at its decision."""
    rows = job.snapshot.prices.get(endpoint.id, endpoint.prices)
    return rows or (UNPRICED,)


def tier_for(job: RelayJob, endpoint: Endpoint) -> str:
    """The price tier: what the request asks for, else the endpoint's own."""
    return tier_at_once(tier_of(job.parsed.service_tier), endpoint.tier)


def injected_max_tokens(job: RelayJob, endpoint: Endpoint) -> int | None:
    """The max_tokens to set in the body: only for a key with a budget that sent none."""
    if (
        job.parsed.max_tokens is not None
        or not job.caller.budget_ids
        or job.parsed.surface not in GENERATES
    ):
        return None
    limit = job.policy.limits.default_max_tokens
    if endpoint.output_tokens_max is not None:
        limit = min(limit, endpoint.output_tokens_max)
    if endpoint.context_tokens_max is not None:
        # The prompt has its place first; a limit beyond the rest would be refused.
        limit = min(limit, max(1, endpoint.context_tokens_max - job.facts.prompt_tokens))
    return limit


def hold_for(job: RelayJob, endpoint: Endpoint, *, max_tokens: int | None, body: bytes) -> int:
    """Nano-dollars to set aside: the dearest that this attempt can become (design 4.7)."""
    facts = job.facts
    stats = job.snapshot.stats.get(endpoint.id)
    per_byte = stats.tokens_per_byte_p99 if stats is not None else TOKENS_PER_BYTE_UNKNOWN
    prompt = math.ceil(facts.text_bytes * per_byte * TOKENS_PER_BYTE_MARGIN)
    prompt += facts.num_images * IMAGE_TOKENS_MAX[endpoint.api] + PROMPT_OVERHEAD_TOKENS
    if "tools" in facts.needs:
        prompt += TOOLS_OVERHEAD_TOKENS
    if endpoint.context_tokens_max is not None and facts.num_images:
        prompt = min(prompt, max(endpoint.context_tokens_max, facts.text_bytes))
    output = 0
    if job.parsed.surface in GENERATES:
        asked = max_tokens if max_tokens is not None else job.parsed.max_tokens
        cap = endpoint.output_tokens_max or OUTPUT_TOKENS_UNKNOWN
        output = min(asked, cap) if asked is not None else cap
        output *= max(1, facts.num_choices)
    return hold_nanos(
        rows_of(job, endpoint),
        prompt_tokens_max=prompt,
        output_tokens_max=output,
        tier=tier_for(job, endpoint),
        writes_cache=b'"cache_control"' in body,
        has_audio="audio" in facts.needs,
    )


def characters_per_token(stats: EndpointStats | None) -> float:
    return stats.characters_per_token if stats is not None else CHARACTERS_PER_TOKEN_UNKNOWN


def billable_usage(
    outcome: AttemptOutcome, stats: EndpointStats | None, *, is_whole: bool
) -> tuple[Usage, bool]:
    """(usage, whether it is an estimate).

    An answer that came to its own end is billed as the provider counted, a zero included. Else
    its count if it counts as it goes, or the larger of its last word and our count of what was
    delivered, with the whole prompt. Of a plain answer that the client left, nothing was.
    """
    said = outcome.usage
    if said is not None and is_whole:
        return said, False
    per_token = characters_per_token(stats)
    output = math.ceil((outcome.visible_chars + outcome.tool_chars) / per_token)
    reasoning = math.ceil(outcome.reasoning_chars / per_token)
    if said is None:
        return Usage(
            input=outcome.prompt_tokens_expected, output=output, reasoning=reasoning
        ), outcome.surface in GENERATES or outcome.surface is Surface.EMBEDDINGS
    missing = output + reasoning - said.output_total
    # Ours goes by characters. It corrects a count that stands still, not one that keeps up.
    keeps_up = outcome.usage_is_current and missing <= said.output_total
    if missing <= 0 or keeps_up:
        return said, True
    return _with_more_output(said, missing), True


def _with_more_output(said: Usage, missing: int) -> Usage:
    counts = {name: getattr(said, name) for name in said.__struct_fields__}
    counts["output"] += missing
    return Usage(**counts)


def settlement_for(
    outcome: AttemptOutcome,
    rows: Sequence[PriceRow],
    tier: str,
    stats: EndpointStats | None,
    *,
    is_whole: bool,
) -> Settlement:
    """The bill of an attempt that was not refused; writes usage and its origin into `outcome`."""
    if outcome.surface is Surface.COUNT_TOKENS:
        return Settlement(usage=None, cost_nanos=0, price=None)  # counting is free
    usage, is_estimated = billable_usage(outcome, stats, is_whole=is_whole)
    outcome.usage, outcome.usage_estimated = usage, is_estimated
    if outcome.tier_served:
        # Providers serve at another tier than asked for when that one is full, and bill it so.
        tier = tier_at_once(tier_of(outcome.tier_served), STANDARD)
    row = pick_row(rows, tier=tier, context_tokens=usage.input_total)
    reported = outcome.reported_cost_nanos
    if reported is not None and is_whole and row.source not in _OWN_SOURCES:
        row, cost = PriceRow(source="reported"), reported
    else:
        cost = cost_nanos(row, usage)
    # The client pays for what it got, or for what it left behind; failures are the operator's.
    is_clients = outcome.is_committed or outcome.client_gone or not outcome.failure
    return Settlement(
        usage=usage,
        cost_nanos=cost,
        price=row,
        is_estimated=is_estimated,
        finish=outcome.finish,
        failure=outcome.failure,
        billable_to="client" if is_clients else "operator",
    )
