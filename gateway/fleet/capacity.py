"""How many requests one endpoint carries at once, learned from push-back and from its TTFT."""

from __future__ import annotations

import math

from gateway.core import MachineLoad
from gateway.fleet.pacing import MINUTE_REQUESTS_MIN, MINUTE_RETRY_AFTER_S, Pace

CAPACITY_START = 64.0
CAPACITY_MIN = 1.0
CAPACITY_MAX = 1024.0
SLOW_START = 2.0  # an endpoint back from an open breaker
GROWTH = 4.0  # growth a success is GROWTH / limit …
GROWTH_USE_MIN = 0.5  # … when at least so much of the limit is in use
CUT = 0.9
CARRIED_FADE = 0.999  # a success
PROBE_FIRST_S = 60.0  # at a known ceiling, until one request more is tried …
PROBE_MAX_S = 600.0  # … doubling while the ceiling holds
COOL_DOWN_FIRST_S = 1.0  # a 429 that names no time; doubles while they go on
COOL_DOWN_MAX_S = 30.0
RETRY_AFTER_MAX_S = 600.0
TTFT_HALF_LIFE_S = 120.0
TTFT_SAMPLES_MIN = 16.0
TTFT_SAMPLES_PER_CUT = 8
TTFT_RISE_MAX = math.log(1.5)  # over what it takes when hardly loaded
SLOPE_SIGMAS = 2.0
QUEUE_FULL = 5.0  # waiting requests that mean full (roofline, reliability A.2)
CACHE_FULL = 0.8  # KV cache use that means full
TELEMETRY_STALE_S = 2.0  # then the endpoint counts as full, while another can serve
TELEMETRY_GONE_S = 60.0  # then it is one that sends none


class Capacity:
    """
    The learned limit L of one endpoint (reliability A.2, B.4; design 5).

    Additive increase while it is used, ×0.9 on 429 (once per round of requests, as in TCP), and
    ×0.9 when a decayed regression shows the TTFT residual rising with in-flight by half or more.
    A Retry-After closes the endpoint until then; that is no failure.

    Requests that go on well while others of their round are refused tell how many fit: a ceiling.
    There the limit stays, and one request more is tried now and then (CUBIC's plateau): each try
    may cost a pause of everything.
    """

    __slots__ = (
        "_carried",
        "_ceiling",
        "_cooling_until_s",
        "_cut_at_s",
        "_in_row",
        "_probe_after_s",
        "_probe_at_s",
        "_pushed_at_s",
        "_since_cut",
        "_slope",
        "_survivors",
        "_told",
        "_told_at_s",
        "limit",
        "pace",
    )  # fmt: skip

    def __init__(self) -> None:
        self.limit = CAPACITY_START
        self.pace = Pace()
        self._carried = 0.0  # the most at once that went well lately
        self._cut_at_s = -math.inf
        self._in_row = 0
        self._cooling_until_s = -math.inf
        self._since_cut = 0
        self._slope = LoadSlope()
        self._told: MachineLoad | None = None  # its own account of its load …
        self._told_at_s = -math.inf
        self._pushed_at_s = -math.inf  # when the last round of refusals was heard of
        self._survivors = 0  # requests that it left in flight
        self._ceiling: int | None = None
        self._probe_at_s = 0.0
        self._probe_after_s = PROBE_FIRST_S

    def succeeded(
        self,
        in_flight: int,
        ttft_residual: float | None,
        now_s: float,
        dispatched_at_s: float = math.inf,
    ) -> None:
        """`in_flight` counts the request that just ended."""
        self._in_row = 0
        self._carried = max(float(in_flight), self._carried * CARRIED_FADE)
        if dispatched_at_s < self._pushed_at_s and self._survivors:
            self._learn_ceiling(now_s)
        # Who tells how full it is need not be guessed at from its slowness.
        is_guessed = ttft_residual is not None and self.told(now_s) is None
        if is_guessed and self._is_congested(in_flight, ttft_residual or 0.0, now_s):
            return
        if in_flight >= GROWTH_USE_MIN * self.limit:
            self._grow(in_flight, dispatched_at_s, now_s)

    def _grow(self, in_flight: int, dispatched_at_s: float, now_s: float) -> None:
        grown = min(CAPACITY_MAX, self.limit + GROWTH / self.limit)
        ceiling = self._ceiling
        if ceiling is None:
            self.limit = grown
        elif in_flight > ceiling and dispatched_at_s >= self._probe_at_s:
            # One more than fitted before has gone well.
            self._ceiling = None
            self.limit = max(self.limit, grown)
        elif now_s >= self._probe_at_s:
            self.limit = max(self.limit, min(grown, ceiling + 1.0))
        else:
            self.limit = max(self.limit, min(grown, float(ceiling)))

    def _learn_ceiling(self, now_s: float) -> None:
        """Some of the round before the refusals went well: so many fit, and no more."""
        fitted, self._survivors = self._survivors, 0
        held = self._ceiling is not None and fitted <= self._ceiling
        self._probe_after_s = min(PROBE_MAX_S, self._probe_after_s * 2) if held else PROBE_FIRST_S
        self._probe_at_s = now_s + self._probe_after_s
        self._ceiling = fitted
        self.limit = min(self.limit, float(fitted))

    def _is_congested(self, in_flight: int, residual: float, now_s: float) -> bool:
        self._slope.add(in_flight, residual, now_s)
        self._since_cut += 1
        if self._slope.rise(in_flight) <= TTFT_RISE_MAX:
            return False
        if self._since_cut >= TTFT_SAMPLES_PER_CUT:
            self._since_cut = 0
            self._cut(in_flight, now_s)
        return True

    def pushed_back(
        self,
        in_flight: int,
        dispatched_at_s: float,
        retry_after_s: float | None,
        now_s: float,
        *,
        is_overload: bool = False,
    ) -> None:
        """A 429, or with `is_overload` an answer that says that everybody is too much for it."""
        # So many at once have gone well before: its minute is full, then, not its places.
        is_minute = (
            not is_overload
            and (retry_after_s or 0.0) >= MINUTE_RETRY_AFTER_S
            and in_flight <= self._carried
            and self.pace.num(now_s) >= MINUTE_REQUESTS_MIN
        )
        self.pace.refused(now_s, is_minute=is_minute)
        if is_minute:
            self._pushed_at_s, self._survivors = now_s, 0
        elif dispatched_at_s >= self._pushed_at_s:
            self._pushed_at_s = now_s
            self._survivors = in_flight
            if dispatched_at_s >= self._cut_at_s:
                self._cut(in_flight, now_s)
        self._survivors = max(0, min(self._survivors, in_flight - 1))
        # Refusals of one round come together; only a new round lengthens the wait.
        if retry_after_s is None:
            if now_s < self._cooling_until_s:
                return
            retry_after_s = min(COOL_DOWN_MAX_S, COOL_DOWN_FIRST_S * 2.0 ** min(self._in_row, 16))
            self._in_row += 1
        until_s = now_s + min(RETRY_AFTER_MAX_S, max(0.0, retry_after_s))
        self._cooling_until_s = max(self._cooling_until_s, until_s)

    def is_old_news(self, dispatched_at_s: float) -> bool:
        """Of a push-back: its request left before the last round of them was heard of."""
        return dispatched_at_s < self._pushed_at_s

    def _cut(self, in_flight: int, now_s: float) -> None:
        # The push-back came at this load, whatever the limit was before anything was learned.
        self.limit = max(CAPACITY_MIN, CUT * min(self.limit, max(float(in_flight), SLOW_START)))
        self._cut_at_s = now_s

    def restart(self) -> None:
        """The breaker closed again: go gently."""
        self.limit = min(self.limit, SLOW_START)

    def load(self, limit: float) -> None:
        """Take over what was learned before a restart."""
        self.limit = min(CAPACITY_MAX, max(CAPACITY_MIN, limit))

    def cooling_s(self, now_s: float) -> float:
        """Seconds until the endpoint asked to be called again, or its minute has room."""
        return max(0.0, self._cooling_until_s - now_s, self.pace.wait_s(now_s))

    def report(self, load: MachineLoad, now_s: float) -> None:
        """The endpoint's own account of its load, with what was in flight of ours then."""
        self._told, self._told_at_s = load, now_s

    @property
    def has_telemetry(self) -> bool:
        return self._told is not None

    def told(self, now_s: float) -> MachineLoad | None:
        """Its last account, until that is so old that it must have stopped giving one."""
        if self.told_s_ago(now_s) > TELEMETRY_GONE_S:
            self._told = None
        return self._told

    def told_s_ago(self, now_s: float) -> float:
        """Age of that account in seconds."""
        return now_s - self._told_at_s

    def is_silent(self, now_s: float) -> bool:
        """It told its load, and has not for so long that nobody knows it now."""
        return self.told(now_s) is not None and self.told_s_ago(now_s) > TELEMETRY_STALE_S

    def is_full(self, in_flight: int, now_s: float) -> bool:
        """By its own account, or because it is silent; False where it never gave one."""
        told = self.told(now_s)
        if told is None:
            return False
        return self.is_silent(now_s) or in_flight >= told.in_flight + places_left(told)

    def now(self, now_s: float) -> float:
        """The limit that holds now: learned, or what the endpoint's own account leaves."""
        told = self.told(now_s)
        if told is None or self.is_silent(now_s):
            return self.limit
        # Counted from what was in flight then: counted from now, a burst between two accounts
        # would make room for itself, and those that end would take theirs with them.
        return min(self.limit, max(CAPACITY_MIN, told.in_flight + places_left(told)))


def places_left(load: MachineLoad) -> float:
    """
    Further requests until it is full (roofline, reliability A.2), if they are like those that run;
    below 0: so many have to end first.
    """
    room = math.inf
    if load.kv_blocks_used:
        running = max(1, load.num_running or load.in_flight)
        room = running * (CACHE_FULL / load.cache_use - 1.0)
    if load.sequences_max:
        present = load.num_running + load.num_waiting
        return min(room, load.sequences_max + QUEUE_FULL - present)
    # Without knowing its places: who waits may also wait for the next step only.
    return min(room, QUEUE_FULL - load.num_waiting) if load.num_waiting else room


class LoadSlope:
    """Decayed regression of the TTFT residual on the number in flight."""

    __slots__ = ("_at_s", "_n", "_x", "_xx", "_xy", "_y", "_yy")

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = self._yy = 0.0
        self._at_s = 0.0

    def add(self, in_flight: int, residual: float, now_s: float) -> None:
        fade = 2.0 ** (-max(0.0, now_s - self._at_s) / TTFT_HALF_LIFE_S)
        self._at_s = max(self._at_s, now_s)
        self._n = self._n * fade + 1.0
        self._x = self._x * fade + in_flight
        self._y = self._y * fade + residual
        self._xx = self._xx * fade + in_flight * in_flight
        self._xy = self._xy * fade + in_flight * residual
        self._yy = self._yy * fade + residual * residual

    def rise(self, in_flight: int) -> float:
        """
        Rise of the residual at this load over the lightest load seen; 0 unless it is significant.

        Needs loads that differ: a slow hour of the provider at an even load is not congestion.
        """
        n = self._n
        if n < TTFT_SAMPLES_MIN:
            return 0.0
        mean_x = self._x / n
        var_x = self._xx / n - mean_x * mean_x
        if var_x < 0.25:
            return 0.0
        covariance = self._xy / n - mean_x * self._y / n
        slope = covariance / var_x
        noise = max(0.0, self._yy / n - (self._y / n) ** 2 - slope * covariance)
        if slope <= SLOPE_SIGMAS * math.sqrt(noise / (n * var_x)):
            return 0.0
        lightest = max(1.0, mean_x - 2.0 * math.sqrt(var_x))
        return slope * max(0.0, in_flight - lightest)
