"""All live state of one endpoint, and the small frozen part of it that a decision sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from msgspec import structs

from gateway.core import AttemptOutcome, Endpoint, EndpointLive, FleetSnapshot, MachineLoad, Rng
from gateway.errors import FAILURES, FailureClass
from gateway.fleet.affinity import Affinity, endpoint_seed
from gateway.fleet.breaker import Breaker
from gateway.fleet.calibration import Calibration
from gateway.fleet.capacity import Capacity
from gateway.fleet.estimator import EndpointEstimator
from gateway.fleet.exploration import MinuteCounter, ProbeBudget
from gateway.fleet.lengths import Length
from gateway.fleet.load_history import LoadHistory
from gateway.fleet.sample import Sample
from gateway.fleet.sharing import Elsewhere, EndpointNews, Outbox, as_own
from gateway.fleet.waiting import Waiting

CACHE_RATIO_N0 = 4_000.0  # tokens
CACHE_RATIO_FADE = 0.98  # a reused prefix


class LiveEndpoint:
    """In-flight count, breaker, capacity and beliefs of one endpoint. Lives by `state_key`."""

    __slots__ = (
        "_cache_expected",
        "_cache_seen",
        "breaker",
        "calibration",
        "calm_view",
        "capacity",
        "elsewhere",
        "endpoint",
        "estimator",
        "held",
        "in_flight",
        "is_quiet",
        "loads",
        "num_rate_limited",
        "outbox",
        "probes",
        "promised",
        "seed",
        "started",
        "waiting",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, rng: Rng, now_s: float) -> None:
        self.endpoint = endpoint
        self.seed = endpoint_seed(endpoint.id)
        self.estimator = EndpointEstimator(now_s)
        self.calibration = Calibration()
        self.breaker = Breaker(rng, now_s)
        self.capacity = Capacity()
        self.loads = LoadHistory()
        self.probes = ProbeBudget()
        self.started = MinuteCounter()
        self.num_rate_limited = MinuteCounter()
        self.in_flight = 0
        self.held = ""  # an operator's word: "paused" | "draining"
        self.waiting = Waiting()
        self.is_quiet = False  # streams wait and nothing comes; judged once a second
        self.promised = 0  # decided for and not begun: a burst must not decide by one and the same
        self.elsewhere = Elsewhere()
        self.outbox: Outbox | None = None  # only where there are other replicas
        self._cache_seen = 0.0
        self._cache_expected = 0.0
        # The view of a closed endpoint without cached tokens, until its in-flight count changes;
        # whatever else could change it does so at the end of a request.
        self.calm_view: EndpointLive | None = None

    def adopt(self, endpoint: Endpoint) -> None:
        """The policy changed; address and model did not, so beliefs stay."""
        if endpoint.id != self.endpoint.id:
            self.seed = endpoint_seed(endpoint.id)
        self.endpoint = endpoint
        self.calm_view = None

    def hold(self, held: str) -> None:
        """Send nothing new there (`held`: EndpointLive's word), or with "" send again."""
        if held != self.held:
            self.held = held
            self.calm_view = None

    def begin(self, now_s: float, *, is_stream: bool = False) -> None:
        self.in_flight += 1
        if is_stream:
            self.waiting.began(now_s)
        self.capacity.pace.started(now_s)
        self.started.add(now_s)
        self.calm_view = None

    def first_token(self, now_s: float) -> None:
        """One of the streams that wait here has got its first token."""
        self.waiting.first_token(now_s)
        self.is_quiet = False

    def judge_quiet(self, now_s: float) -> None:
        """Once a second: has it gone quiet?"""
        if self.waiting.num == 0:
            self.is_quiet = False
            return
        self.is_quiet = self.waiting.is_quiet(now_s, self.estimator.ttft_p99_s(now_s))
        if self.is_quiet:
            self.calm_view = None

    def promise(self) -> Callable[[], None]:
        """Count a place as taken until what is returned is called; again changes nothing."""
        is_kept = True
        self._promise(1)

        def let_go() -> None:
            nonlocal is_kept
            if is_kept:
                is_kept = False
                self._promise(-1)

        return let_go

    def _promise(self, places: int) -> None:
        self.promised += places
        self.calm_view = None

    def probed(self, cost_nanos: int, now_s: float) -> None:
        self.probes.sent(cost_nanos, now_s)
        self.calm_view = None

    def end(self) -> None:
        self.in_flight = max(0, self.in_flight - 1)
        self.calm_view = None

    @property
    def everywhere(self) -> int:
        """In flight, those of other replicas as last heard of included."""
        return self.in_flight + self.elsewhere.total

    def news(self, now_s: float) -> EndpointNews:
        """What happened here since the last call."""
        outcomes = self.outbox.take(now_s) if self.outbox is not None else ()
        return EndpointNews(in_flight=self.in_flight, outcomes=outcomes)

    def hear(
        self, replica: str, news: EndpointNews, now_s: float, age_s: float
    ) -> list[tuple[Sample, AttemptOutcome]]:
        """Another replica's news of `age_s` ago: its samples and failures count like own ones."""
        self.elsewhere.hear(replica, news.in_flight, now_s)
        self.breaker.num_others = self.elsewhere.num_replicas
        heard = []
        for told in news.outcomes:
            outcome = as_own(told, now_s, age_s)
            sample, _, _ = self.estimator.observe(outcome, now_s)
            failure = sample.failure
            if failure is None or not FAILURES[failure].counts_as_capacity:
                self._judge_elsewhere(sample, outcome, now_s)
            heard.append((sample, outcome))
        self.calm_view = None
        return heard

    def view(
        self, now_s: float, cached: int = 0, *, is_last: bool = False, is_home: bool = False
    ) -> EndpointLive:
        """What a decision sees."""
        capacity = self.capacity
        if (
            self.breaker.is_closed
            and not (self.held or self.is_quiet or capacity.has_telemetry)
            and capacity.cooling_s(now_s) <= 0.0
            and not self.probes.is_spent(now_s)
        ):
            quiet = EndpointLive(
                endpoint_id=self.endpoint.id,
                in_flight=self.everywhere + self.promised,
                capacity=capacity.limit,
                places=self.estimator.slowdown.places_now,
                cached_tokens=cached,
                is_last_used=is_last,
                is_home=is_home,
            )
            if not (cached or is_last or is_home):
                self.calm_view = quiet
            return quiet
        state, reopens_in_s = self.shut(now_s)
        return EndpointLive(
            endpoint_id=self.endpoint.id,
            in_flight=self.everywhere + self.promised,
            # No decision has to look for a hold: whatever is held has no room.
            capacity=0.0 if self.held else capacity.now(now_s),
            places=min(self.estimator.slowdown.places_now, capacity.now(now_s)),
            breaker=state,
            reopens_in_s=reopens_in_s,
            cached_tokens=cached,
            is_last_used=is_last,
            is_home=is_home,
            is_cooling=state == "open" and self.breaker.is_closed,
            was_probed=self.probes.is_spent(now_s),
            is_full=capacity.is_full(self.everywhere + self.promised, now_s),
            is_silent=self.is_quiet or capacity.is_silent(now_s),
            machine=capacity.told(now_s),
            held=self.held,
        )

    def shut(self, now_s: float) -> tuple[str, float]:
        """
        Breaker word and seconds until a request may go.

        A cool-down asked for by Retry-After shuts an endpoint like an open breaker, though it is
        no failure and needs no probe.
        """
        state, reopens_in_s = self.breaker.status(now_s)
        cooling_s = self.capacity.cooling_s(now_s)
        if cooling_s > 0.0:
            return "open", max(cooling_s, reopens_in_s)
        return state, reopens_in_s

    def is_closed(self, now_s: float) -> bool:
        return self.calm_view is not None or (not self.held and self.shut(now_s)[0] == "closed")

    def report_load(self, load: MachineLoad, now_s: float) -> None:
        sent = self.everywhere + self.promised
        self.capacity.report(structs.replace(load, in_flight=sent), now_s)
        self.loads.add(load, now_s)
        self.calm_view = None

    def may_send(self, now_s: float, *, in_panic: bool = False) -> bool:
        if (self.held or self.capacity.cooling_s(now_s) > 0.0) and not in_panic:
            return False
        return self.breaker.may_send(now_s, in_panic=in_panic)

    def learn(
        self, outcome: AttemptOutcome, now_s: float
    ) -> tuple[Sample, list[tuple[str, int]], str]:
        """Take in one attempt: (sample, change points, breaker "opened" | "closed" | "")."""
        sample, residual, alarms = self.estimator.observe(outcome, now_s)
        failure = sample.failure
        is_push_back = failure is not None and FAILURES[failure].counts_as_capacity
        if is_push_back and self.capacity.is_old_news(outcome.dispatched_at_s):
            # Of one burst that was too much for it, only the first refusal is a failure.
            self.breaker.release(outcome.dispatched_at_s)
            news = ""
        else:
            news = self._judge(sample, outcome, now_s)
        if is_push_back:
            self.num_rate_limited.add(now_s)
            self.capacity.pushed_back(
                self.everywhere,
                outcome.dispatched_at_s,
                outcome.retry_after_s,
                now_s,
                is_overload=failure is FailureClass.OVERLOADED,
            )
        elif failure is None:
            self.capacity.succeeded(self.everywhere, residual, now_s, outcome.dispatched_at_s)
        if news == "closed":
            self.capacity.restart()
        return sample, alarms, news

    def _judge(self, sample: Sample, outcome: AttemptOutcome, now_s: float) -> str:
        dispatched_at_s = outcome.dispatched_at_s
        if sample.is_success is None:
            self.breaker.release(dispatched_at_s)
            return ""
        if sample.is_success:
            return "closed" if self.breaker.succeeded(dispatched_at_s, now_s) else ""
        return "opened" if self.breaker.failed(dispatched_at_s, now_s) else ""

    def _judge_elsewhere(self, sample: Sample, outcome: AttemptOutcome, now_s: float) -> None:
        if sample.is_success is not None:
            self.breaker.heard(sample.is_success, outcome.dispatched_at_s, now_s)

    def judge(
        self,
        snapshot: FleetSnapshot,
        sample: Sample,
        outcome: AttemptOutcome,
        length: Length,
        *,
        places: float,
        now_s: float,
    ) -> None:
        """Hold what `decide` was told against what came; `places` is from before it was learned."""
        told = snapshot.stats.get(self.endpoint.id)
        if told is not None:
            load = outcome.in_flight / places if outcome.in_flight > places else 1.0
            self.calibration.judge(told, sample, outcome, length, load, now_s)

    def learn_prefix(self, affinity: Affinity, outcome: AttemptOutcome, now_s: float) -> None:
        """Where this prompt's beginning is cached from now on, and how much of it came cached."""
        has_read = outcome.first_generated_at_s is not None or not outcome.failure
        if not (outcome.affinity_key or outcome.session_key) or not has_read:
            return
        endpoint_id = self.endpoint.id
        usage = None if outcome.usage_estimated else outcome.usage
        prompt = usage.input_total if usage is not None else outcome.prompt_tokens_expected
        if usage is not None and usage.input_total > 0:
            expected = max(
                affinity.tokens(outcome.session_key, endpoint_id, now_s),
                affinity.tokens(outcome.affinity_key, endpoint_id, now_s),
            )
            if expected > 0:
                self.learn_cache(float(min(expected, prompt)), float(usage.cached_read))
        if outcome.session_key:
            affinity.record(outcome.session_key, endpoint_id, prompt, now_s)
        if outcome.affinity_key:
            # Only the hashed prefix is shared; of a longer prompt, what came back cached.
            known = affinity.tokens(outcome.affinity_key, endpoint_id, now_s)
            shared = min(prompt, known) if known else prompt
            if usage is not None and usage.cached_read > 0:
                shared = usage.cached_read
            affinity.record(outcome.affinity_key, endpoint_id, shared, now_s)

    def learn_cache(self, expected_tokens: float, seen_tokens: float) -> None:
        """A prefix that should have been cached was sent: how much of it was."""
        self._cache_seen = self._cache_seen * CACHE_RATIO_FADE + min(seen_tokens, expected_tokens)
        self._cache_expected = self._cache_expected * CACHE_RATIO_FADE + expected_tokens

    @property
    def cache_ratio(self) -> float:
        """Share of the expected cached tokens that really are cached; 1 before any reuse."""
        return (self._cache_seen + CACHE_RATIO_N0) / (self._cache_expected + CACHE_RATIO_N0)


def share_with_peers(lives: Iterable[LiveEndpoint], now_s: float) -> None:
    """Give each estimator the median of its model's others; forget replicas gone silent."""
    groups: dict[str, list[tuple[LiveEndpoint, float | None, float | None]]] = {}
    for live in lives:
        live.judge_quiet(now_s)
        if live.elsewhere.num_replicas:
            if live.elsewhere.total:
                live.calm_view = None
            live.elsewhere.forget(now_s)
            live.breaker.num_others = live.elsewhere.num_replicas
        model = live.endpoint.canonical_model or live.endpoint.model
        groups.setdefault(model, []).append((live, *live.estimator.peer_means()))
    for members in groups.values():
        for live, _, _ in members:
            others = [member for member in members if member[0] is not live]
            ttfts = [ttft for _, ttft, _ in others if ttft is not None]
            rates = [rate for _, _, rate in others if rate is not None]
            live.estimator.set_peers(
                median(ttfts) if ttfts else None, median(rates) if rates else None
            )
