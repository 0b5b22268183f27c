"""When a first token is late enough for a second attempt: the p95 of an endpoint's TTFT."""

from __future__ import annotations

import math

from gateway.fleet.estimator import TIMEOUT_SAMPLES_MIN, EndpointEstimator

_LEVEL, _Z = 0.95, 1.645


def ttft_p95_s(estimator: EndpointEstimator, prompt_tokens: float, now_s: float) -> float:
    """
    Seconds that 95 % of first tokens of such a prompt come within.

    From the endpoint's own times, freed of their prompts; below 20 samples from the belief.
    """
    stretch = math.exp(estimator.prefill.ln_stretch(prompt_tokens))
    seen = estimator.histograms["ttft_base"]
    if seen.n >= TIMEOUT_SAMPLES_MIN and (found_s := seen.quantile(_LEVEL)) is not None:
        return found_s * stretch
    belief = estimator.ttft_hidden if estimator.hides_reasoning else estimator.ttft
    return stretch * math.exp(belief.at(now_s).sample_at(_Z))
