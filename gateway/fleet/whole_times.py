"""How soon a whole answer can be there, how late, and when it is waited for no longer."""

from __future__ import annotations

from gateway.core import Lane, RequestFacts
from gateway.fleet.estimator import (
    TIMEOUT_FACTOR,
    TIMEOUT_MAX_S,
    TIMEOUT_MIN_S,
    TIMEOUT_SAMPLES_MIN,
    EndpointEstimator,
)

TIMEOUT_WHOLE_MAX_S = 600.0
PATIENCE_S = 300.0  # for what nobody waits for: half of the time that a policy gives a request
PATIENCE_SHARE = 0.5  # of what is left until its deadline: another endpoint needs the rest
_DOUBLINGS_MAX = 5
_QUICK, _SLOW = 0.05, 0.95


def whole_timeout_s(
    estimator: EndpointEstimator,
    facts: RequestFacts,
    output_tokens: float,
    in_flight: int,
    now_s: float,
) -> float:
    """
    For an answer that comes whole: 3 × its end-to-end p99 at this load, within 10–600 s.

    `output_tokens` is what 99 % of answers stay under; hidden tokens come on top. `in_flight`
    counts the request itself. Each round in a row that was cut as too late doubles it, up to 120 s:
    a limit below the truth would else never see a sample that corrects it.

    A line of a batch is cut only when its endpoint hangs. Many are sent together, so it may take as
    long as if they were answered one after the other, and 300 s at least; but no more than half of
    the time until its deadline, where it can still be answered elsewhere.
    """
    seen = estimator.p99("whole_ratio", now_s)
    expected_s = estimator.whole.time_s(output_tokens * estimator.tokens.hidden_ratio)
    alone_s = TIMEOUT_FACTOR * (seen if seen is not None else 1.0) * expected_s
    loaded_s = max(TIMEOUT_MIN_S, alone_s * estimator.load_at(in_flight))
    doubled_s = loaded_s * 2.0 ** min(estimator.whole_rounds_late, _DOUBLINGS_MAX)
    timeout_s = min(TIMEOUT_WHOLE_MAX_S, max(loaded_s, min(TIMEOUT_MAX_S, doubled_s)))
    if facts.lane is not Lane.BATCH:
        return timeout_s
    patience_s = min(TIMEOUT_WHOLE_MAX_S, max(PATIENCE_S, alone_s * in_flight))
    if facts.deadline_s is not None:
        patience_s = min(patience_s, PATIENCE_SHARE * facts.deadline_s)
    return max(timeout_s, patience_s)


def whole_quick_s(estimator: EndpointEstimator, output_tokens: float) -> float | None:
    """
    Seconds that 95 % of answers of such a length take at least; None below 20 samples.

    `output_tokens` is what the client would get; hidden ones come on top. Under load they take
    longer.
    """
    seen = estimator.histograms["whole_ratio"]
    if seen.n < TIMEOUT_SAMPLES_MIN or (quick := seen.quantile(_QUICK)) is None:
        return None
    return quick * estimator.whole.time_s(output_tokens * estimator.tokens.hidden_ratio)


def whole_slow_line(estimator: EndpointEstimator) -> tuple[float, float] | None:
    """
    (a, b): of answers of n tokens 95 % are there within a + b·n seconds; None as above.

    With no more in flight than the endpoint carries without slowing down.
    """
    seen = estimator.histograms["whole_ratio"]
    if seen.n < TIMEOUT_SAMPLES_MIN or (slow := seen.quantile(_SLOW)) is None:
        return None
    whole, hidden = estimator.whole, estimator.tokens.hidden_ratio
    return slow * whole.base_s, slow * whole.per_token_s * hidden
