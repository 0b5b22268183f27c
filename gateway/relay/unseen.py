"""What an attempt may have cost by the time that its gateway died: told the ledger beforehand.

Over many attempts an estimate may not be below what the provider bills, so each part errs above.
"""

from __future__ import annotations

import math

import msgspec

from gateway.core import Endpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.whole_times import whole_quick_s
from gateway.policy.facts import TOKENS_PER_IMAGE
from gateway.relay.job import RelayJob
from gateway.relay.money import GENERATES
from gateway.relay.reading import PROGRESS_EVERY_S


class Unseen(msgspec.Struct, frozen=True):
    """As `HoldRequest` has them."""

    prompt_tokens: int
    tokens: int
    whole_s: float


def unseen_of(job: RelayJob, endpoint: Endpoint, fleet: Fleet) -> Unseen:
    """
    Of a stream, what the endpoint generates until the next progress record.

    Of a whole answer, all that is expected, and in how many seconds at the earliest; the latter
    where it is not generated on once nobody listens.
    """
    facts, parsed = job.facts, job.parsed
    known = fleet.estimator(endpoint.id)
    prompt = facts.prompt_tokens
    if known is not None:
        text = known.tokens.prompt_tokens_most(facts.text_bytes, fleet.clock())
        prompt = max(prompt, text + facts.num_images * TOKENS_PER_IMAGE)
    if parsed.surface not in GENERATES:
        return Unseen(prompt, 0, 0.0)
    expected = job.output_tokens_expected
    if parsed.max_tokens is not None:
        expected = min(expected, parsed.max_tokens)
    whole_s = 0.0
    stats = job.snapshot.stats.get(endpoint.id)
    if parsed.stream and stats is not None:
        expected = min(expected, math.exp(stats.rate_mu) * PROGRESS_EVERY_S)
    elif known is not None and endpoint.stops_when_left:
        whole_s = whole_quick_s(known, expected) or 0.0
    return Unseen(prompt, math.ceil(expected * max(1, facts.num_choices)), whole_s)
