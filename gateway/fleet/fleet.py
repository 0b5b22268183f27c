"""Live knowledge of all endpoints: one frozen view for decisions, one way in for outcomes."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gateway.core import (
    REFERENCE_CHARACTERS,
    AttemptOutcome,
    Endpoint,
    EndpointLive,
    FleetSnapshot,
    FleetView,
    MachineLoad,
    PriceRow,
    RequestFacts,
    Rng,
)
from gateway.fleet.affinity import Affinity
from gateway.fleet.estimator import TIMEOUT_MAX_S, EndpointEstimator
from gateway.fleet.events import FleetEvent, breaker_moved, change_points
from gateway.fleet.exploration import Credits, ExplorationLimits, MinuteCounter
from gateway.fleet.first_tokens import ttft_p95_s
from gateway.fleet.lengths import Kind, Length, Lengths, kind_of, kind_of_answer
from gateway.fleet.live import LiveEndpoint, share_with_peers
from gateway.fleet.placement import Members, placed
from gateway.fleet.sample import Sample
from gateway.fleet.sharing import Outbox
from gateway.fleet.state import STATE_VERSION, FleetState, load_endpoints, read_state
from gateway.fleet.summary import SHARE_MINUTES, summarise
from gateway.fleet.whole_times import TIMEOUT_WHOLE_MAX_S, whole_timeout_s
from gateway.stats.predictive import Calibrated

SNAPSHOT_EVERY_S = 1.0
EVENTS_MAX = 1_000
RETIRED_MAX = 256  # endpoints gone from the policy whose beliefs are kept
MEMBERS_MAX = 256  # sets of endpoints asked for

Clock = Callable[[], float]
PriceRows = Callable[[Endpoint, float], tuple[PriceRow, ...]]


class Fleet:
    """
    Estimators, breakers, in-flight counts, capacities, affinity and lengths of every endpoint.

    One event loop owns it; nothing here waits. `clock` is monotonic seconds, `wall_clock` unix
    seconds, `price_rows(endpoint, unix_s)` gives the prices valid then.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        *,
        clock: Clock,
        wall_clock: Clock,
        price_rows: PriceRows,
        new_id: Callable[[], str],
        rng: Rng | None = None,
    ) -> None:
        self.clock = clock
        self.wall_clock = wall_clock
        self._price_rows = price_rows
        self._new_id = new_id
        # Spreads reopening times, the same way for the same id in a simulation.
        self._rng: Rng = rng if rng is not None else random.Random(new_id())  # noqa: S311 - jitter, not a secret
        self._by_id: dict[str, LiveEndpoint] = {}
        self._by_key: dict[str, LiveEndpoint] = {}
        self._retired: OrderedDict[str, LiveEndpoint] = OrderedDict()
        self._moved: dict[str, list[tuple[LiveEndpoint, float]]] = {}  # id → where it led, until
        self._affinity = Affinity()
        self._lengths = Lengths()
        self._expected: dict[Kind, Length] = {}  # kept as a snapshot is
        self._members: dict[tuple[str, ...], Members] = {}
        self._started = MinuteCounter()  # of all endpoints together
        self._credits = Credits()
        self.replica = ""  # this one's name among others; "" = alone
        self._events: deque[FleetEvent] = deque(maxlen=EVENTS_MAX)
        self._snapshot: FleetSnapshot | None = None
        self._snapshot_at_s = 0.0
        self.replace_endpoints(endpoints)

    # Deciding

    def view(self, facts: RequestFacts, endpoint_ids: Sequence[str]) -> FleetView:
        """
        What `decide` may know of these endpoints now; ids the fleet does not hold are left out.

        Beliefs and prices are up to a second old and shared; in-flight, breaker and cache are
        of this instant.
        """
        now_s = self.clock()
        snapshot = self._snapshot_of(now_s)
        ids = tuple(endpoint_ids)
        members = self._members.get(ids)
        if members is None:
            members = self._find_members(ids)
        shown: dict[str, EndpointLive] = {
            endpoint_id: live.calm_view or live.view(now_s) for endpoint_id, live in members.items()
        }
        if facts.affinity_key or facts.session_key:
            shown.update(placed(facts, self._affinity, members, now_s))
        length = self._length_of(kind_of(facts), now_s)
        return FleetView(
            snapshot=snapshot,
            live=shown,
            output_tokens_expected=length.tokens,
            output_tokens_n=length.n,
            output_tokens_longest=length.longest,
            exploration_credits=self._credits.amount,
        )

    def live(self, endpoint_id: str) -> EndpointLive | None:
        """One endpoint's state of this instant; None if the fleet does not hold it."""
        found = self._by_id.get(endpoint_id)
        return found.calm_view or found.view(self.clock()) if found is not None else None

    def _length_of(self, kind: Kind, now_s: float) -> Length:
        length = self._expected.get(kind)
        if length is None:
            length = self._expected[kind] = self._lengths.known(kind, now_s)
        return length

    def _find_members(self, ids: tuple[str, ...]) -> Members:
        """Those of `ids` that the fleet holds. A policy asks for the same few sets again."""
        if len(self._members) >= MEMBERS_MAX:
            self._members.clear()
        by_id = self._by_id
        found = {each: by_id[each] for each in ids if each in by_id}
        self._members[ids] = found
        return found

    def snapshot(self) -> FleetSnapshot:
        """Beliefs and prices, at most a second old; the same object until then."""
        return self._snapshot_of(self.clock())

    def _snapshot_of(self, now_s: float) -> FleetSnapshot:
        kept = self._snapshot
        if kept is not None and 0.0 <= now_s - self._snapshot_at_s < SNAPSHOT_EVERY_S:
            return kept
        wall_s = self.wall_clock()
        share_with_peers(self._by_key.values(), now_s)
        self._expected.clear()
        built = FleetSnapshot(
            id=self._new_id(),
            at_unix_s=wall_s,
            stats={
                endpoint_id: live.estimator.stats(endpoint_id, now_s)
                for endpoint_id, live in self._by_id.items()
            },
            prices={
                endpoint_id: self._price_rows(live.endpoint, wall_s)
                for endpoint_id, live in self._by_id.items()
            },
        )
        self._snapshot = built
        self._snapshot_at_s = now_s
        return built

    def ttft_timeout_s(self, endpoint_id: str, facts: RequestFacts) -> float:
        """How long to wait for the first token; for a whole answer, for its end."""
        live = self._by_id.get(endpoint_id)
        if live is None:
            return TIMEOUT_MAX_S if facts.stream else TIMEOUT_WHOLE_MAX_S
        now_s = self.clock()
        if facts.stream:
            return live.estimator.first_token_timeout_s(
                float(facts.prompt_tokens), now_s, wants_reasoning="reasoning" in facts.needs
            )
        longest = self._length_of(kind_of(facts), now_s).longest
        return whole_timeout_s(live.estimator, facts, longest, live.everywhere, now_s)

    def estimator(self, endpoint_id: str) -> EndpointEstimator | None:
        """For who needs more than a snapshot tells; None if the endpoint is not known."""
        live = self._by_id.get(endpoint_id)
        return live.estimator if live is not None else None

    def ttft_p95_s(self, endpoint_id: str, facts: RequestFacts) -> float | None:
        """What 95 % of first tokens of such a prompt come within; None if it is not known here."""
        live = self._by_id.get(endpoint_id)
        if live is None:
            return None
        return ttft_p95_s(live.estimator, float(facts.prompt_tokens), self.clock())

    def may_probe(self, endpoint_id: str, *, in_panic: bool = False) -> bool:
        """
        Whether a request may be dispatched there now. Ask right before `started`.

        Closed: yes. Open or cooling down: no. Half-open: the first to ask takes the one place,
        until `observe` or `abandoned`. `in_panic`: nothing is closed, and this one reopens first.
        Against an endpoint of an older policy nothing is known, so it may be tried.
        """
        live = self._by_id.get(endpoint_id)
        return live is None or live.may_send(self.clock(), in_panic=in_panic)

    # Spending on learning

    def accrue_credit(self, facts: RequestFacts | None = None) -> None:
        """A request was decided: it earns its share of a credit, unless its key may not explore."""
        if facts is None or not facts.no_explore:
            self._credits.accrue()

    def spend_credit(self) -> bool:
        """Pay for one exploring request; False when there is no whole credit."""
        return self._credits.spend()

    def spend_probe(self, endpoint_id: str, cost_nanos: int) -> None:
        """Book one probe of a silent endpoint: no other for a while, and not for more an hour."""
        if (live := self._by_id.get(endpoint_id)) is not None:
            live.probed(cost_nanos, self.clock())

    def limit_exploration(self, limits: ExplorationLimits) -> None:
        """Obey the policy's `exploration`."""
        self._credits.limits = limits
        for live in (*self._by_key.values(), *self._retired.values()):
            live.probes.limits = limits

    def promise(self, endpoint_id: str) -> Callable[[], None]:
        """A decision has chosen this endpoint: its place counts as taken until what is returned
        is called, once the request has been `started` or will never be. Again changes nothing."""
        live = self._by_id.get(endpoint_id)
        return live.promise() if live is not None else lambda: None

    # Learning

    def started(self, endpoint_id: str, *, is_stream: bool = False) -> int:
        """
        A request is about to be sent there; `observe` or `abandoned` must follow.

        Returns how many are in flight there then: what its outcome will be judged by.
        """
        live = self._by_id.get(endpoint_id)
        if live is None:
            return 1
        now_s = self.clock()
        live.begin(now_s, is_stream=is_stream)
        self._started.add(now_s)
        return live.everywhere

    def first_token(self, endpoint_id: str) -> None:
        """A stream sent there has got its first token."""
        if (live := self._by_id.get(endpoint_id)) is not None:
            live.first_token(self.clock())

    def abandoned(self, endpoint_id: str, *, is_stream: bool = False) -> None:
        """A started request was never sent: nothing is learned, a probe's place is free again."""
        if (live := self._by_id.get(endpoint_id)) is not None:
            live.end()
            if is_stream:
                live.waiting.ended()
            live.breaker.release(self.clock())

    def observe(self, outcome: AttemptOutcome) -> None:
        """Learn from one ended attempt. Unknown endpoints (an old policy's) are ignored."""
        now_s = self.clock()
        live = self._by_id.get(outcome.endpoint_id)
        for place, until_s in self._moved.get(outcome.endpoint_id, ()):
            if outcome.dispatched_at_s < until_s:
                live = place  # sent to where this id led before the policy changed
                break
        if live is None:
            return
        live.learn_prefix(self._affinity, outcome, now_s)
        places = live.estimator.slowdown.places_now
        sample, alarms, news = live.learn(outcome, now_s)
        if self._snapshot is not None and sample.failure is None:
            length = self._length_of(kind_of_answer(outcome), now_s)
            live.judge(self._snapshot, sample, outcome, length, places=places, now_s=now_s)
        live.end()
        if outcome.stream and not (outcome.is_committed or outcome.was_heard):
            live.waiting.ended()
        if live.outbox is not None:
            live.outbox.add(outcome, self._rng)
        self.learn_length(sample, outcome, live, now_s)
        if alarms or news:
            wall_s, endpoint_id = self.wall_clock(), live.endpoint.id
            self._events.extend(change_points(endpoint_id, alarms, wall_s))
            if news:
                self._events.append(breaker_moved(endpoint_id, news, outcome.failure, wall_s))

    def learn_length(
        self, sample: Sample, outcome: AttemptOutcome, live: LiveEndpoint, now_s: float
    ) -> None:
        """Own answers, and those that other replicas tell of: in tokens of four characters."""
        if sample.length_tokens is None:
            return
        characters = live.estimator.tokens.characters_per_token
        self._lengths.observe(
            kind_of_answer(outcome),
            sample.length_tokens * characters / REFERENCE_CHARACTERS,
            now_s,
            is_capped=sample.is_length_capped,
        )

    def report_load(self, endpoint_id: str, load: MachineLoad) -> None:
        """An endpoint's own account of its work, queue and cache."""
        if (live := self._by_id.get(endpoint_id)) is not None:
            live.report_load(load, self.clock())

    @property
    def by_key(self) -> Mapping[str, LiveEndpoint]:
        """Live state by state key; for `gateway.fleet.replicas`."""
        return self._by_key

    # Showing and keeping

    def events(self) -> tuple[FleetEvent, ...]:
        """Audit events since the last call, oldest first; at most the newest 1,000."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    def metrics(self, endpoint_id: str) -> dict[str, object]:
        """One endpoint for the status page; raises KeyError if it is not in the fleet."""
        now_s = self.clock()
        num_started = self._started.last(SHARE_MINUTES, now_s)
        return summarise(self._by_id[endpoint_id], num_started, now_s)

    def calibration(self, endpoint_id: str) -> dict[str, dict[str, dict[str, float]]]:
        """Predicted against real times, by class and figure; raises KeyError like `metrics`."""
        return self._by_id[endpoint_id].calibration.summary(self.clock())

    def calibrated(self, facts: RequestFacts) -> dict[str, Calibrated]:
        """By endpoint, what makes an honest interval of this request's predicted time."""
        now_s = self.clock()
        scatter = self._length_of(kind_of(facts), now_s).variance
        return {
            endpoint_id: live.calibration.calibrated(facts, scatter, now_s)
            for endpoint_id, live in self._by_id.items()
        }

    def replace_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Follow the policy. State survives by (provider, base URL, model), and a way back."""
        now_s = self.clock()
        old_by_id, old_by_key = self._by_id, self._by_key
        self._by_id, self._by_key = {}, {}
        for endpoint in endpoints:
            key = endpoint.state_key
            if key in self._by_key:  # the same address listed twice, say for two tiers
                key = f"{key}|{endpoint.tier}|{endpoint.id}"
            live = old_by_key.get(key) or self._retired.pop(key, None)
            if live is None:
                live = LiveEndpoint(endpoint, self._rng, now_s)
            live.adopt(endpoint)
            live.probes.limits = self._credits.limits
            live.outbox = (live.outbox or Outbox()) if self.replica else None
            self._by_key[key] = self._by_id[endpoint.id] = live
        self._members.clear()
        self._keep_moved(old_by_id, now_s)
        for key, live in old_by_key.items():
            if key not in self._by_key:
                self._retired[key] = live
        while len(self._retired) > RETIRED_MAX:
            self._retired.popitem(last=False)
        self._snapshot = None

    def _keep_moved(self, old_by_id: Mapping[str, LiveEndpoint], now_s: float) -> None:
        """Attempts under way end where they began, though their endpoint's id moved or went."""
        for endpoint_id, places in list(self._moved.items()):
            self._moved[endpoint_id] = [place for place in places if place[0].in_flight > 0]
            if not self._moved[endpoint_id]:
                del self._moved[endpoint_id]
        for endpoint_id, live in old_by_id.items():
            if self._by_id.get(endpoint_id) is not live and live.in_flight > 0:
                self._moved.setdefault(endpoint_id, []).append((live, now_s))

    def export_state(self) -> dict[str, object]:
        """Beliefs as JSON-able values, for `import_state` after a restart."""
        now_s = self.clock()
        state = FleetState(
            version=STATE_VERSION,
            at_unix_s=self.wall_clock(),
            credits=self._credits.amount,
            endpoints={key: live.estimator.export(now_s) for key, live in self._by_key.items()},
            capacities={key: live.capacity.limit for key, live in self._by_key.items()},
            lengths=self._lengths.export(now_s),
            calibrations={
                key: live.calibration.export(now_s) for key, live in self._by_key.items()
            },
        )
        exported: dict[str, object] = msgspec.to_builtins(state)
        return exported

    def import_state(self, exported: Mapping[str, object]) -> bool:
        """Take beliefs over, aged by the time away; False if they are of no use, then start new."""
        read = read_state(exported, self.wall_clock())
        if read is None:
            return False
        state, away_s = read
        now_s = self.clock()
        load_endpoints(state, self._by_key, now_s, away_s)
        for model, histogram in state.lengths.items():
            self._lengths.load(model, histogram, now_s, away_s)
        self._credits.amount = min(self._credits.limits.credits_max, max(0.0, state.credits))
        self._snapshot = None
        return True
