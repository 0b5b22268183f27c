"""Who wins streams and who wins batch, and why: the policy's own decision on a typical request.

Typical is the median of what was asked of the model lately, else TYPICAL_TOKENS of prompt. The
decision is drawn with several seeds as requests draw it; nothing is sent, promised or paid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

import msgspec

from gateway.core import Candidate, Lane, Plan, RequestFacts, dollars
from gateway.errors import ApiError
from gateway.pipeline import Gateway, candidate_ids
from gateway.policy.decide import FIRST, ONLY_ONE, PANIC, decide
from gateway.policy.explain import candidates_of
from gateway.policy.facts import BYTES_PER_TOKEN
from gateway.stats.seeded import Seeded
from gateway.store.requests import RequestRow
from gateway.wire.pieces import Surface

DRAWS = 16
MODELS_MAX = 12  # shown; more are in the table of models
TYPICAL_TOKENS = 1_000
STREAM, BATCH = "stream", "batch"
WHY_WORDS = {
    **{sentence: prefer for prefer, sentence in FIRST.items()},
    ONLY_ONE: "only_one",
    PANIC: "panic",
}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint in a decision, at the means."""

    endpoint: str
    time_s: float
    cost_usd: str
    success: float


class Win(msgspec.Struct, frozen=True, kw_only=True):
    """What a typical request of this model would be given."""

    model: str
    kind: str  # "stream" | "batch"
    prompt_tokens: int
    is_observed: bool  # prompt_tokens is the median of real ones
    output_tokens: float  # expected
    prefer: str = ""  # what the route prefers: "fastest" | "cheapest" | …
    route: str = ""
    why: str = ""  # the policy's sentence
    why_word: str = ""  # its key among the pages' words, after `why.`; "" = there is none
    share_of_draws: float = 0.0
    winner: Standing | None = None
    next: Standing | None = None
    problem: str = ""  # why nobody may serve it


def wins_of(gateway: Gateway, rows: Sequence[RequestRow]) -> list[Win]:
    """Streams and batch of each model, in the policy's order."""
    return [
        win_of(gateway, model, kind, rows)
        for model in list(gateway.policy().models)[:MODELS_MAX]
        for kind in (STREAM, BATCH)
    ]


def win_of(gateway: Gateway, model: str, kind: str, rows: Sequence[RequestRow]) -> Win:
    facts, is_observed = typical_request(model, kind, rows)
    policy = gateway.policy()
    view = gateway.fleet.view(facts, candidate_ids(policy, facts))
    win = Win(
        model=model,
        kind=kind,
        prompt_tokens=facts.prompt_tokens,
        is_observed=is_observed,
        output_tokens=view.output_tokens_expected,
    )
    try:
        plans = [decide(facts, view, policy, Seeded(seed), seed=seed) for seed in range(DRAWS)]
    except ApiError as error:
        return msgspec.structs.replace(win, problem=error.message)
    plan, num_won = _most_drawn(plans)
    shown = {each.endpoint_id: each for each in candidates_of(plan, facts, view, policy)}
    others = [each for each in plan.order[1:] if each in shown]
    return msgspec.structs.replace(
        win,
        prefer=plan.preference,
        route=plan.route,
        why=plan.why,
        why_word=WHY_WORDS.get(plan.why, ""),
        share_of_draws=num_won / DRAWS,
        winner=_standing(shown[plan.order[0]]),
        next=_standing(shown[others[0]]) if others else None,
    )


def typical_request(model: str, kind: str, rows: Sequence[RequestRow]) -> tuple[RequestFacts, bool]:
    """Facts of it, and whether they are of requests that really came."""
    lane = Lane.BATCH if kind == BATCH else Lane.INTERACTIVE
    seen = [
        row.facts.prompt_tokens
        for row in rows
        if row.facts is not None
        and row.model == model
        and row.lane == lane.value
        and row.surface == Surface.CHAT.value
        and (row.stream or kind == BATCH)
    ]
    tokens = round(median(seen)) if seen else TYPICAL_TOKENS
    facts = RequestFacts(
        request_id="typical",
        surface=Surface.CHAT,
        models=(model,),
        stream=kind == STREAM,
        lane=lane,
        text_bytes=round(tokens * BYTES_PER_TOKEN),
        prompt_tokens=tokens,
        no_explore=True,
    )
    return facts, bool(seen)


def _most_drawn(plans: Sequence[Plan]) -> tuple[Plan, int]:
    winner, num_won = Counter(plan.order[0] for plan in plans).most_common(1)[0]
    return next(plan for plan in plans if plan.order[0] == winner), num_won


def _standing(candidate: Candidate) -> Standing | None:
    terms = candidate.terms
    if terms is None:
        return None
    return Standing(
        endpoint=candidate.endpoint_id,
        time_s=terms.time_s,
        cost_usd=dollars(terms.cost_nanos),
        success=terms.success_p,
    )
