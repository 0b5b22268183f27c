"""A plan as JSON that a person can check: every candidate, every term, how they add up."""

from __future__ import annotations

import json

from gateway.core import NANOS_PER_DOLLAR, Candidate, Plan, ScoreTerms

DIGITS = 6


def explain(plan: Plan) -> dict[str, object]:
    """What `X-LoopRouter-Explain: 1` and `looprouter policy explain` show."""
    chosen = plan.candidates[0].terms if plan.candidates else None
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
        "candidates": [_candidate(candidate, chosen) for candidate in plan.candidates],
    }


def explain_in_header(plan: Plan, bytes_max: int) -> bytes:
    """The same as one line of ASCII; where it is too long, the last candidates are left out."""
    shown = explain(plan)
    candidates = shown["candidates"]
    assert isinstance(candidates, list)

    line = json.dumps(shown, separators=(",", ":"))
    while len(line) > bytes_max and candidates:
        del candidates[-max(1, len(candidates) // 4) :]
        shown["num_left_out"] = len(plan.candidates) - len(candidates)
        line = json.dumps(shown, separators=(",", ":"))
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


def _reason(candidate: Candidate, chosen: ScoreTerms | None) -> str:
    """The decision keeps its sentences constant, to be quick; the numbers are put in here."""
    terms = candidate.terms
    if terms is None or chosen is None or candidate.outcome == "chosen":
        return candidate.reason
    return (
        f"{candidate.reason} (score {terms.score_s:.3f} s against {chosen.score_s:.3f} s, "
        f"${terms.cost_nanos / NANOS_PER_DOLLAR:.6f} against "
        f"${chosen.cost_nanos / NANOS_PER_DOLLAR:.6f})"
    )
