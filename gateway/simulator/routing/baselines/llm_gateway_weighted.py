"""LLM Gateway's weighted score. Source: theopenco/llmgateway, docs `features/routing`; gateways 2.

Score = sum of weight x (ratio to the best - 1) over the sum of the active weights, lowest wins:
price 0.6, uptime 0.5, throughput 0.05, latency 0.025 (streams), cache 0.2 from 5,000 prompt tokens
on. (Since then the documentation sets cache to 0 and learns the hit rate; here it is the assumed
70 %.) Below 95 % uptime a penalty of ((95 - u)/19)² is added: that is the curve through the points
the documentation gives. Metrics: 60 minutes, the last one weighs tenfold, the last five threefold;
unmeasured = 100 %, 1,000 ms, 50 tok/s. One request in a hundred goes anywhere. The preferred
provider stays for an hour unless its uptime is below 85 % or another's score is more than 0.15
lower. A session keeps its provider while its uptime is at least 85 %, and is never passed on to
another one within a request. Two retries at most. Its only time limits are total (20 minutes), so
the client's 600 s come first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.core import AttemptOutcome, PriceRow, Rng
from gateway.prices.rows import bucket_picos
from gateway.simulator.routing.baselines.drawing import shuffled
from gateway.simulator.routing.baselines.readings import (
    end_to_end_tokens_per_s,
    is_its_failure,
    is_success,
    ttft_s,
)
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting

PRICE, UPTIME, THROUGHPUT, LATENCY, CACHE = 0.6, 0.5, 0.05, 0.025, 0.2
CACHE_TOKENS_MIN = 5_000
CACHE_HIT_SHARE = 0.7
OUTPUT_PER_INPUT = 0.2  # of the mix that long prompts are priced by
EXPLORED_SHARE = 0.01
MINUTE_S = 60.0
WINDOW_MINUTES = 60
PENALTY_BELOW, PENALTY_SCALE = 0.95, 0.19
UPTIME_MIN = 0.85  # of a preferred or pinned provider
MARGIN = 0.15
PREFERENCE_S = 3_600.0
ATTEMPTS_MAX = 3
SESSIONS_MAX = 50_000


@dataclass(slots=True)
class Minute:
    """Counts and sums of one endpoint's minute."""

    minute: int
    attempts: int = 0
    failures: int = 0
    ttft_sum_s: float = 0.0
    ttft_num: int = 0
    rate_sum: float = 0.0
    rate_num: int = 0


@dataclass(frozen=True, slots=True)
class Metrics:
    uptime: float = 1.0
    ttft_s: float = 1.0
    tokens_per_s: float = 50.0


def uptime_penalty(uptime: float) -> float:
    """0.07 at 90 %, 0.62 at 80 %, 1.73 at 70 %, 5.61 at 50 %."""
    return (max(0.0, PENALTY_BELOW - uptime) / PENALTY_SCALE) ** 2


def weight_of_age(minutes: int) -> float:
    return 10.0 if minutes < 1 else 3.0 if minutes < 5 else 1.0


class History:
    """The last hour of one endpoint."""

    def __init__(self) -> None:
        self._minutes: deque[Minute] = deque(maxlen=WINDOW_MINUTES)
        self._read_at = -1
        self._metrics = Metrics()

    def add(self, outcome: AttemptOutcome, now_s: float) -> None:
        number = int(now_s // MINUTE_S)
        if not self._minutes or self._minutes[-1].minute != number:
            self._minutes.append(Minute(number))
        minute = self._minutes[-1]
        has_failed = is_its_failure(outcome)
        minute.attempts += has_failed or is_success(outcome)
        minute.failures += has_failed
        first_s, rate = ttft_s(outcome), end_to_end_tokens_per_s(outcome, now_s)
        if is_success(outcome) and first_s is not None:
            minute.ttft_sum_s += first_s
            minute.ttft_num += 1
        if rate is not None:
            minute.rate_sum += rate
            minute.rate_num += 1
        self._read_at = -1

    def metrics(self, now_s: float) -> Metrics:
        """Decayed means; computed anew once a minute and after every outcome."""
        number = int(now_s // MINUTE_S)
        if number != self._read_at:
            self._read_at = number
            self._metrics = self._mean(number)
        return self._metrics

    def _mean(self, number: int) -> Metrics:
        attempts = failures = ttft = ttft_num = rate = rate_num = 0.0
        for each in self._minutes:
            age = number - each.minute
            if age >= WINDOW_MINUTES:
                continue
            weight = weight_of_age(age)
            attempts += weight * each.attempts
            failures += weight * each.failures
            ttft += weight * each.ttft_sum_s
            ttft_num += weight * each.ttft_num
            rate += weight * each.rate_sum
            rate_num += weight * each.rate_num
        unmeasured = Metrics()
        return Metrics(
            uptime=1.0 - failures / attempts if attempts else unmeasured.uptime,
            ttft_s=ttft / ttft_num if ttft_num else unmeasured.ttft_s,
            tokens_per_s=rate / rate_num if rate_num else unmeasured.tokens_per_s,
        )


class WeightedScore:
    def __init__(self, prices: Callable[[str, float], PriceRow], rng: Rng) -> None:
        self._prices = prices
        self._rng = rng
        self._history: dict[str, History] = {}
        self._preferred: tuple[str, float] | None = None  # (endpoint, since)
        self._pins: OrderedDict[str, str] = OrderedDict()  # session → endpoint

    def metrics(self, endpoint_id: str, now_s: float) -> Metrics:
        history = self._history.get(endpoint_id)
        return history.metrics(now_s) if history else Metrics()

    def scores(self, ask: Ask, up: Sequence[str], now_s: float) -> dict[str, float]:
        """Lowest is best."""
        is_long = ask.prompt_tokens >= CACHE_TOKENS_MIN or bool(ask.session_key)
        metrics = {each: self.metrics(each, now_s) for each in up}
        rows = {each: self._prices(each, now_s) for each in up}
        prices = {each: max(1.0, _mixed_price(rows[each], is_long)) for each in up}
        cheapest = min(prices.values())
        uptime_best = max(each.uptime for each in metrics.values())
        rate_best = max(each.tokens_per_s for each in metrics.values())
        ttft_best = min(each.ttft_s for each in metrics.values())
        cache = CACHE if ask.prompt_tokens >= CACHE_TOKENS_MIN else 0.0
        total = PRICE + UPTIME + THROUGHPUT + LATENCY + cache
        scores: dict[str, float] = {}
        for each in up:
            seen = metrics[each]
            weighted = (
                PRICE * (prices[each] / cheapest - 1.0)
                + UPTIME * (uptime_best / max(seen.uptime, 0.01) - 1.0)
                + THROUGHPUT * (rate_best / max(seen.tokens_per_s, 0.01) - 1.0)
                + LATENCY * (seen.ttft_s / max(ttft_best, 0.001) - 1.0)
                + cache * (not _has_cache(rows[each]))
            )
            scores[each] = weighted / total + uptime_penalty(seen.uptime)
        return scores

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        scores = self.scores(ask, up, now_s)
        by_score = sorted(up, key=scores.__getitem__)
        if ask.session_key:
            return (self._pinned(ask.session_key, by_score, now_s),)
        if self._rng.random() < EXPLORED_SHARE:
            chosen = shuffled(up, self._rng)[0]
        else:
            chosen = self._stable(by_score[0], scores, now_s)
        return [chosen, *(each for each in by_score if each != chosen)][:ATTEMPTS_MAX]

    def _stable(self, best: str, scores: dict[str, float], now_s: float) -> str:
        if self._preferred is not None:
            preferred, since_s = self._preferred
            if (
                preferred in scores
                and now_s - since_s < PREFERENCE_S
                and self.metrics(preferred, now_s).uptime >= UPTIME_MIN
                and scores[preferred] - scores[best] <= MARGIN
            ):
                return preferred
        self._preferred = (best, now_s)
        return best

    def _pinned(self, session: str, by_score: Sequence[str], now_s: float) -> str:
        pinned = self._pins.get(session, "")
        if pinned not in by_score or self.metrics(pinned, now_s).uptime < UPTIME_MIN:
            pinned = by_score[0]
        self._pins[session] = pinned
        self._pins.move_to_end(session)
        if len(self._pins) > SESSIONS_MAX:
            self._pins.popitem(last=False)
        return pinned

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        self._history.setdefault(outcome.endpoint_id, History()).add(outcome, now_s)


def _has_cache(row: PriceRow) -> bool:
    return bucket_picos(row, "cached_read") < row.input


def _mixed_price(row: PriceRow, is_long: bool) -> float:
    """Pico-dollars a token of the mix; short prompts weigh input and output alike."""
    if not is_long:
        return (row.input + row.output) / 2.0
    cached = bucket_picos(row, "cached_read")
    blended = row.input * (1.0 - CACHE_HIT_SHARE) + cached * CACHE_HIT_SHARE
    return blended + row.output * OUTPUT_PER_INPUT


def llm_gateway_weighted(setting: Setting) -> RuledRouter:
    rule = WeightedScore(setting.prices, setting.rng)
    return RuledRouter("llm_gateway_weighted", Roster(setting.listings), rule)
