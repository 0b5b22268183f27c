"""How soon a whole answer can be there: of use where nobody saw how far it had come."""

from __future__ import annotations

from gateway.fleet.estimator import TIMEOUT_SAMPLES_MIN, EndpointEstimator

_QUICK = 0.05


def whole_quick_s(estimator: EndpointEstimator, output_tokens: float) -> float | None:
    """
    Seconds that 95 % of answers of such a length take at least; None below 20 samples.

    `output_tokens` is what the client would get; hidden ones come on top.
    """
    seen = estimator.histograms["whole_ratio"]
    if seen.n < TIMEOUT_SAMPLES_MIN or (quick := seen.quantile(_QUICK)) is None:
        return None
    return quick * estimator.whole.time_s(output_tokens * estimator.tokens.hidden_ratio)
