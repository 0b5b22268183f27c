"""An estimator whose endpoint has a true speed, measured by streams with honest noise."""

from __future__ import annotations

import math
import random

from gateway.fleet.estimator import EndpointEstimator
from tests.support.fleet_world import streamed


class World:
    """An endpoint of given true speed, measured once a second."""

    def __init__(self, seed: int = 1) -> None:
        self.now_s = 1_000.0
        self.rng = random.Random(seed)
        self.estimator = EndpointEstimator(self.now_s)

    def streams(
        self, num: int, *, rate: float = 100.0, base_s: float = 0.3, prefill: float = 4_000.0,
        gap_s: float = 1.0, **changes: object,
    ) -> list[tuple[str, int]]:  # fmt: skip
        alarms: list[tuple[str, int]] = []
        for _ in range(num):
            self.now_s += gap_s
            prompt = int(self.rng.lognormvariate(6.9, 1.0))
            outcome = streamed(
                self.now_s,
                ttft_s=(base_s + prompt / prefill) * self.rng.lognormvariate(0.0, 0.4),
                rate=rate * self.rng.lognormvariate(0.0, 0.2),
                prompt=prompt,
                **changes,  # type: ignore[arg-type]
            )
            alarms += self.estimator.observe(outcome, self.now_s)[2]
        return alarms

    @property
    def rate(self) -> float:
        return math.exp(self.estimator.stats("e", self.now_s).rate_mu)

    def ttft(self, prompt: float = 1_000.0) -> float:
        return self.estimator.ttft_at(prompt, self.now_s)
