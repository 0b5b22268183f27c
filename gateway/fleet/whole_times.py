"""How soon a whole answer can be there, where nobody saw how far it had come, and how late."""

from __future__ import annotations

from gateway.fleet.estimator import TIMEOUT_SAMPLES_MIN, EndpointEstimator

_QUICK, _SLOW = 0.05, 0.95


def whole_quick_s(estimator: EndpointEstimator, output_tokens: float) -> float | None:
    """
    Seconds that 95 % of answers of such a length take at least; None below 20 samples.

    `output_tokens` is what the client would get; hidden ones come on top.
    """
    seen = estimator.histograms["whole_ratio"]
    if seen.n < TIMEOUT_SAMPLES_MIN or (quick := seen.quantile(_QUICK)) is None:
        return None
    return quick * estimator.whole.time_s(output_tokens * estimator.tokens.hidden_ratio)


def whole_slow_line(estimator: EndpointEstimator) -> tuple[float, float] | None:
    """(a, b): of answers of n tokens 95 % are there within a + b·n seconds; None as above."""
    seen = estimator.histograms["whole_ratio"]
    if seen.n < TIMEOUT_SAMPLES_MIN or (slow := seen.quantile(_SLOW)) is None:
        return None
    whole, hidden = estimator.whole, estimator.tokens.hidden_ratio
    return slow * whole.base_s, slow * whole.per_token_s * hidden
