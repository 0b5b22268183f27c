"""The two straight lines of an endpoint: TTFT over prompt tokens, whole time over output tokens."""

from __future__ import annotations

import math

from gateway.stats.rls import LineFit

TTFT_START_S = 0.5
PREFILL_START = 7_000.0  # tokens per second
RATE_START = 50.0  # tokens per second
REFIT_SAMPLES = 50
MEMORY_SAMPLES = 200.0
_BASE_MIN_S, _BASE_MAX_S = 0.02, 30.0
_PREFILL_MIN, _PREFILL_MAX = 100.0, 1_000_000.0
_PER_TOKEN_MIN_S, _PER_TOKEN_MAX_S = 1e-5, 10.0
_RELATIVE_MAX = 4.0  # a sample counts as at most this many times what was expected
_TOKENS_SHARE = 1.0 / 64.0


class PrefillLine:
    """
    TTFT = b + uncached/rho, from which a request's TTFT residual is freed of its prompt length.

    b and rho are fitted by least squares on relative errors and taken into use every 50 samples,
    so that residuals between two refits mean the same thing.
    """

    __slots__ = ("_fit", "_since_refit", "_tokens", "base_s", "prefill")

    def __init__(self) -> None:
        self.base_s = TTFT_START_S
        self.prefill = PREFILL_START
        self._fit = LineFit(
            (TTFT_START_S, 1000.0 / PREFILL_START), (2.0, 0.2), memory=MEMORY_SAMPLES
        )
        self._since_refit = 0
        self._tokens = 0.0  # typical uncached prompt

    def ln_stretch(self, uncached_tokens: float) -> float:
        """ln(1 + n/(rho·b)): what the prompt adds to ln TTFT."""
        return math.log1p(max(0.0, uncached_tokens) / (self.prefill * self.base_s))

    def add(self, ttft_s: float, uncached_tokens: float) -> float:
        """Take in a sample; returns by how much older residuals must shift (0 but for a refit)."""
        expected_s = self.base_s + uncached_tokens / self.prefill
        scale = 1.0 / expected_s
        relative = min(_RELATIVE_MAX, ttft_s * scale)
        self._fit.add(scale, uncached_tokens * scale / 1000.0, relative)
        share = max(_TOKENS_SHARE, 1.0 / self._fit.n)  # a plain mean until it has enough
        self._tokens += share * (uncached_tokens - self._tokens)
        self._since_refit += 1
        if self._since_refit < REFIT_SAMPLES:
            return 0.0
        self._since_refit = 0
        before = self.ln_stretch(self._tokens)
        self._use_fit()
        return before - self.ln_stretch(self._tokens)

    def _use_fit(self) -> None:
        self.base_s = min(_BASE_MAX_S, max(_BASE_MIN_S, self._fit.theta0))
        per_thousand_s = max(1e-6, self._fit.theta1)
        self.prefill = min(_PREFILL_MAX, max(_PREFILL_MIN, 1000.0 / per_thousand_s))

    def export(self) -> list[float]:
        return [self.base_s, self.prefill, self._tokens, *self._fit.export()]

    def load(self, values: list[float]) -> None:
        base_s, prefill, self._tokens = values[:3]
        self.base_s = min(_BASE_MAX_S, max(_BASE_MIN_S, base_s))
        self.prefill = min(_PREFILL_MAX, max(_PREFILL_MIN, prefill))
        self._fit.load(values[3:])


class WholeLine:
    """End to end: time = a + b·tokens (gateways 3, pitfall 2), of answers that ended well."""

    __slots__ = ("_fit",)

    def __init__(self) -> None:
        self._fit = LineFit((TTFT_START_S, 1.0 / RATE_START), (2.0, 0.01), memory=MEMORY_SAMPLES)

    @property
    def n(self) -> int:
        return self._fit.n

    @property
    def base_s(self) -> float:
        return min(_BASE_MAX_S, max(_BASE_MIN_S, self._fit.theta0))

    @property
    def per_token_s(self) -> float:
        return min(_PER_TOKEN_MAX_S, max(_PER_TOKEN_MIN_S, self._fit.theta1))

    def time_s(self, tokens: float) -> float:
        return self.base_s + self.per_token_s * tokens

    def add(self, whole_s: float, tokens: float) -> float:
        """Take in a sample; returns it relative to what was expected."""
        scale = 1.0 / self.time_s(tokens)
        relative = whole_s * scale
        self._fit.add(scale, tokens * scale, min(_RELATIVE_MAX, relative))
        return relative

    def export(self) -> list[float]:
        return self._fit.export()

    def load(self, values: list[float]) -> None:
        self._fit.load(values)
