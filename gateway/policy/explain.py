"""A plan as JSON that a person can check: every candidate, every term, how they add up.

The decision writes none of this down. The same facts, view and policy give the same ranking again,
from the same formula, so the reasons are worked out for those requests that somebody asks about.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from msgspec import structs

from gateway.core import (
    NANOS_PER_DOLLAR,
    Candidate,
    FleetView,
    Plan,
    RequestFacts,
    ScoreTerms,
)
from gateway.policy.asked import FIRST_PLACE
from gateway.policy.decide import peers_of, rank
from gateway.policy.filter import excluded
from gateway.policy.policy import Policy
from gateway.policy.score import NOT_MEASURED, WITHOUT_OUTPUT, terms_of
from gateway.stats.predictive import (
    Calibrated,
    completion_law,
    interval_s,
    is_end_to_end,
    spread_of,
)

DIGITS = 6
_SLOW = "preferred: below the request's preferred speed"
LOST: dict[str, str] = {
    "fastest": "fallback: predicted to finish later",
    "balanced": "fallback: time and money together are worse",
    "cheapest": "fallback: costs more, or may miss the deadline",
    "throughput": "fallback: decodes slower",
    "latency": "fallback: first token later",
    "price": "fallback: costs more",
}
_BY_SCORE = (LOST["fastest"], LOST["balanced"])
# Near equals are drawn among: one that lost may have the same mean as the chosen, or a better one.
DRAWN = "fallback: not worse by its mean; the draw among near equals took another"


def candidates_of(
    plan: Plan,
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    *,
    tried: Collection[str] = (),
) -> tuple[Candidate, ...]:
    """
    Every endpoint of the models wanted, in the plan's order, then those that lost or may not serve.

    The other arguments must be those that the plan was decided on.
    """
    ranking = rank(facts, view, policy, tried)
    places = ranking.asked.places
    lost, outcome = LOST[plan.preference], "fallback"
    if not facts.preferences.allow_fallbacks and not facts.preferences.order:
        lost, outcome = "allow_fallbacks: the request forbids falling over", "lost"
    peers = {entry.rates.id for entry in peers_of(ranking)}
    listed = []
    for entry in ranking.entries:
        endpoint_id = entry.rates.id
        draw = plan.draw if endpoint_id in peers else None
        is_slow = places.get(endpoint_id, FIRST_PLACE)[0]
        listed.append(
            Candidate(
                endpoint_id=endpoint_id,
                outcome=outcome,
                reason=_SLOW if is_slow else lost,
                terms=terms_of(entry, draw),
            )
        )
    first = next(each for each in listed if each.endpoint_id == plan.order[0])
    listed.remove(first)
    listed.insert(0, structs.replace(first, outcome="chosen", reason=plan.why))
    kept = {each.endpoint_id for each in listed}
    for endpoint_id, reason in excluded(
        facts, view, policy, ranking.asked.preference, kept=kept, tried=tried
    ):
        listed.append(Candidate(endpoint_id=endpoint_id, outcome="excluded", reason=reason))
    return tuple(listed)


def explain(
    plan: Plan,
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    *,
    tried: Collection[str] = (),
    calibrated: Mapping[str, Calibrated] | None = None,
) -> dict[str, object]:
    """
    What `X-LoopRouter-Explain: 1` and `looprouter policy explain` show.

    `calibrated`: by endpoint, what predictions were worth so far; without it no interval is shown.
    """
    candidates = candidates_of(plan, facts, view, policy, tried=tried)
    chosen = candidates[0].terms
    return {
        "model": plan.model,
        "route": plan.route,
        "prefer": plan.preference,
        "order": list(plan.order),
        **({"models": list(plan.models)} if plan.models else {}),
        "explored": plan.explored,
        "policy_version": plan.policy_version,
        "snapshot_id": plan.snapshot_id,
        "seed": plan.seed,
        "formula": "score_s = load * (ttft_s + decode_s) + failure_s + cost_s",
        "candidates": [
            {
                **_candidate(candidate, chosen),
                **_interval(candidate, facts, view, calibrated or {}),
            }
            for candidate in candidates
        ],
    }


def explain_in_header(shown: Mapping[str, object], bytes_max: int) -> bytes:
    """What `explain` gave as one line of ASCII; too long, it goes without the last candidates."""
    candidates = shown["candidates"]
    assert isinstance(candidates, list)

    kept = list(candidates)
    cut: dict[str, object] = {**shown, "candidates": kept}
    line = json.dumps(cut, separators=(",", ":"))
    while len(line) > bytes_max and kept:
        del kept[-max(1, len(kept) // 4) :]
        cut["num_left_out"] = len(candidates) - len(kept)
        line = json.dumps(cut, separators=(",", ":"))
    return line.encode("ascii")


def _candidate(candidate: Candidate, chosen: ScoreTerms | None) -> dict[str, object]:
    shown: dict[str, object] = {
        "endpoint": candidate.endpoint_id,
        "outcome": candidate.outcome,
        "reason": _reason(candidate, chosen),
    }
    terms = candidate.terms
    if terms is not None:
        shown["terms"] = {
            "load": round(terms.load, DIGITS),
            "uncached_tokens": terms.uncached_tokens,
            "cached_tokens": terms.cached_tokens,
            "ttft_s": round(terms.ttft_s, DIGITS),
            "decode_s": round(terms.decode_s, DIGITS),
            "time_s": round(terms.time_s, DIGITS),
            "success_p": round(terms.success_p, DIGITS),
            "failure_s": round(terms.failure_s, DIGITS),
            "cost_usd": f"{terms.cost_nanos // NANOS_PER_DOLLAR}"
            f".{terms.cost_nanos % NANOS_PER_DOLLAR:09d}",
            "cost_s": round(terms.cost_s, DIGITS),
            "score_s": round(terms.score_s, DIGITS),
            "drawn_score_s": round(terms.drawn_score_s, DIGITS),
            # The cost is that of these seconds of a machine of one's own, not of tokens.
            **({} if terms.machine_s is None else {"machine_s": round(terms.machine_s, DIGITS)}),
        }
    return shown


def _interval(
    candidate: Candidate,
    facts: RequestFacts,
    view: FleetView,
    calibrated: Mapping[str, Calibrated],
) -> dict[str, object]:
    """When 5 and 95 of 100 such requests are complete there, and how often that held so far."""
    terms, known = candidate.terms, calibrated.get(candidate.endpoint_id)
    if terms is None or known is None:
        return {}
    stats = view.snapshot.stats.get(candidate.endpoint_id, NOT_MEASURED)
    has_output = facts.surface not in WITHOUT_OUTPUT
    is_line = is_end_to_end(stats, is_whole=not facts.stream, has_output=has_output)
    spread = spread_of(stats, is_line=is_line)
    law = completion_law(
        terms.load * terms.ttft_s, terms.load * terms.decode_s, spread, known.length_variance
    )
    low_s, high_s = interval_s(*law, known.ends)
    shown: dict[str, object] = {
        # Significant digits: the lower end of a wide interval is small, and never 0.
        "completion_p5_s": float(f"{low_s:.{DIGITS}g}"),
        "completion_p95_s": float(f"{high_s:.{DIGITS}g}"),
        "coverage_90": None if known.coverage_90 is None else round(known.coverage_90, DIGITS),
        "n": round(known.n, 2),
    }
    return {"predicted": shown}


def _reason(candidate: Candidate, chosen: ScoreTerms | None) -> str:
    """The sentences are constant; the numbers are put in here."""
    terms = candidate.terms
    if terms is None or chosen is None or candidate.outcome == "chosen":
        return candidate.reason
    reason = candidate.reason
    if reason in _BY_SCORE and terms.score_s <= chosen.score_s:
        reason = DRAWN
    return (
        f"{reason} (score {terms.score_s:.3f} s against {chosen.score_s:.3f} s, "
        f"${terms.cost_nanos / NANOS_PER_DOLLAR:.6f} against "
        f"${chosen.cost_nanos / NANOS_PER_DOLLAR:.6f})"
    )
