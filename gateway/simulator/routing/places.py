"""One endpoint of a world: how long a request takes there, when it fails, what it caches."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from math import erfc

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.core import PriceRow
from gateway.errors import FailureClass
from gateway.simulator.routing.arrivals import BLOCK_TOKENS, Arrival
from gateway.simulator.routing.weather import ERROR, HANG, Weather

ERROR_AFTER_S = 0.2
PUSH_BACK_AFTER_S = 0.1
CACHE_TTL_S = 300.0
CACHE_BLOCKS_MAX = 20_000
TAIL_SHARE, TAIL_FACTOR = 0.01, 6.0
MINUTE_S = 60.0
SQRT_2 = 2.0**0.5


class PlaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint is like on an ordinary day."""

    id: str
    ttft_s: float  # median, of an empty prompt
    tokens_per_s: float  # median decode rate, by its own tokenizer
    prefill_tokens_per_s: float = 7_000.0
    places: float = 24.0  # requests at once before all of them slow down in proportion
    requests_per_minute: int | None = None
    input_usd: float = 0.5  # per million tokens
    output_usd: float = 1.5
    cached_usd: float | None = None  # None: it has no prompt cache
    ttft_sigma: float = 0.3
    rate_sigma: float = 0.15
    error_share: float = 0.002
    tokens_factor: float = 1.0  # tokens of its tokenizer per token of the reference
    is_burst: bool = False  # holds the stream back and delivers it at once
    appears_at_s: float = 0.0  # not to be had before
    # ln of measured times over their median, ascending; empty: log-normal, with the slow one in a
    # hundred. Of rates likewise.
    ttft_residuals: tuple[float, ...] = ()
    rate_residuals: tuple[float, ...] = ()


class Foreseen(msgspec.Struct, gc=False):
    """What will become of a request sent now. Times are seconds from the dispatch."""

    ttft_s: float
    whole_s: float
    failure: FailureClass | None = None
    fails_at_s: float = math.inf  # inf with a failure: it hangs
    retry_after_s: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0  # by its own tokenizer
    output_tokens: int = 0


class Noise(msgspec.Struct, frozen=True):
    """Common random numbers: one request draws the same at one endpoint, whoever sends it."""

    ttft: NDArray[np.float64]  # [requests] standard normal
    rate: NDArray[np.float64]  # [requests]
    tail: NDArray[np.float64]  # [requests] uniform: the slow one in a hundred
    error: NDArray[np.float64]  # [requests] uniform: errors of an ordinary day
    breaks: NDArray[np.float64]  # [requests] uniform: where a broken stream ends


def draw_noise(num_requests: int, rng: np.random.Generator) -> Noise:
    return Noise(
        rng.standard_normal(num_requests),
        rng.standard_normal(num_requests),
        rng.random(num_requests),
        rng.random(num_requests),
        rng.random(num_requests),
    )


def _ttft_noise(spec: PlaceSpec, noise: Noise) -> NDArray[np.float64]:
    """[requests] factor on the time to the first token."""
    if spec.ttft_residuals:
        return np.exp(_quantiles(spec.ttft_residuals, noise.ttft))
    return np.exp(spec.ttft_sigma * noise.ttft)


def _decode_noise(spec: PlaceSpec, noise: Noise) -> NDArray[np.float64]:
    """[requests] factor on the time from the first token to the last."""
    if spec.rate_residuals:  # measured: slow ones are in it
        return np.exp(-_quantiles(spec.rate_residuals, noise.rate))
    is_tail = noise.tail < TAIL_SHARE
    rate_noise = np.exp(-spec.rate_sigma * noise.rate)
    return np.where(is_tail, rate_noise * TAIL_FACTOR, rate_noise)


def _quantiles(ascending: tuple[float, ...], normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a sample's own distribution has where the standard normal has these values."""
    at = [0.5 * erfc(-z / SQRT_2) for z in normal.tolist()]
    return np.interp(at, np.linspace(0.0, 1.0, len(ascending)), ascending)


def held_tokens(last_s: Mapping[int, float], arrival: Arrival, now_s: float) -> int:
    """Tokens of the prompt's beginning whose blocks were last read within the time to live."""
    num = 0
    for block in arrival.blocks:
        at_s = last_s.get(block)
        if at_s is None or now_s - at_s > CACHE_TTL_S:
            break
        num += 1
    return min(num * BLOCK_TOKENS, arrival.prompt_tokens)


class Place:
    """A `PlaceSpec` in its weather, with what is in flight, its minute's count and its cache."""

    def __init__(
        self,
        spec: PlaceSpec,
        weather: Weather,
        noise: Noise,
        rows: tuple[tuple[float, PriceRow], ...],
    ) -> None:
        """`rows`: (from second, price row), ascending; the first from 0."""
        self.spec = spec
        self.weather = weather
        self.in_flight = 0
        self._rows = rows
        self._ttft_noise = _ttft_noise(spec, noise).tolist()
        self._decode_noise = _decode_noise(spec, noise).tolist()
        self._error = (noise.error < spec.error_share).tolist()
        self._breaks = noise.breaks.tolist()
        self._sent_s: deque[float] = deque()
        self._cache: OrderedDict[int, float] = OrderedDict()

    def price(self, now_s: float) -> PriceRow:
        """The row in force."""
        found = self._rows[0][1]
        for from_s, row in self._rows[1:]:
            if now_s < from_s:
                break
            found = row
        return found

    def foresee(
        self, arrival: Arrival, idx: int, now_s: float, *, is_mean: bool = False
    ) -> Foreseen:
        """The fate of request `idx` if sent now. Changes nothing. `is_mean`: without its noise."""
        spec = self.spec
        cached = self.cached_tokens(arrival, now_s)
        prompt = arrival.prompt_tokens * spec.tokens_factor
        output = max(1.0, arrival.output_tokens * spec.tokens_factor)
        pace = max(1.0, (self.in_flight + 1) / spec.places) / self.weather.speed(now_s)
        ttft_s = (spec.ttft_s + max(0.0, prompt - cached) / spec.prefill_tokens_per_s) * pace
        decode_s = output / spec.tokens_per_s * pace
        if not is_mean:
            ttft_s *= self._ttft_noise[idx]
            decode_s *= self._decode_noise[idx]
        fate = Foreseen(
            ttft_s + (decode_s * 0.95 if spec.is_burst else 0.0),
            ttft_s + decode_s,
            cached_tokens=cached,
            prompt_tokens=int(prompt),
            output_tokens=int(output),
        )
        self._fail(fate, idx, now_s, is_mean=is_mean)
        return fate

    def _fail(self, fate: Foreseen, idx: int, now_s: float, *, is_mean: bool) -> None:
        wait_s = self._push_back_s(now_s)
        if wait_s is not None:
            fate.failure, fate.fails_at_s = FailureClass.RATE_LIMITED, PUSH_BACK_AFTER_S
            fate.retry_after_s = wait_s
            return
        outage = self.weather.outage(now_s)
        if outage is not None:
            if outage.kind == ERROR:
                fate.failure, fate.fails_at_s = FailureClass.SERVER_ERROR, ERROR_AFTER_S
            elif outage.kind == HANG:
                fate.failure, fate.fails_at_s = FailureClass.TIMEOUT_FIRST_TOKEN, math.inf
            else:
                fate.failure = FailureClass.STREAM_BROKEN
                share = 0.5 if is_mean else self._breaks[idx]
                fate.fails_at_s = fate.ttft_s + share * (fate.whole_s - fate.ttft_s)
        elif self._error[idx] and not is_mean:
            fate.failure, fate.fails_at_s = FailureClass.SERVER_ERROR, ERROR_AFTER_S

    def _push_back_s(self, now_s: float) -> float | None:
        """Seconds until its minute has room again; None while it has."""
        limit = self.spec.requests_per_minute
        if limit is None:
            return None
        sent = self._sent_s
        while sent and sent[0] <= now_s - MINUTE_S:
            sent.popleft()
        return max(1.0, sent[0] + MINUTE_S - now_s) if len(sent) >= limit else None

    def cached_tokens(self, arrival: Arrival, now_s: float) -> int:
        """Tokens of the prompt's beginning that it still has (LRU, 5 min)."""
        if self.spec.cached_usd is None or not arrival.blocks:
            return 0
        return held_tokens(self._cache, arrival, now_s)

    def begin(self, arrival: Arrival, fate: Foreseen, now_s: float) -> None:
        """The request was sent; what it reads is cached from now on, unless it is refused."""
        self.in_flight += 1
        if fate.failure is FailureClass.RATE_LIMITED:
            return
        if self.spec.requests_per_minute is not None:
            self._sent_s.append(now_s)
        if fate.failure is None and self.spec.cached_usd is not None:
            cache = self._cache
            for block in arrival.blocks:
                cache[block] = now_s
                cache.move_to_end(block)
            while len(cache) > CACHE_BLOCKS_MAX:
                cache.popitem(last=False)

    def end(self) -> None:
        self.in_flight -= 1
