"""The discrete-event engine: a heap, a virtual clock, and the product's own attempt machine.

No I/O and no time of its own. A request's failover, time-outs and retries are decided by
`gateway.relay.attempts.AttemptMachine`, as in the gateway; the world only plays the endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

from gateway.core import AttemptOutcome
from gateway.errors import FailureClass
from gateway.prices.rows import cost_nanos
from gateway.relay.attempts import AttemptLimits, AttemptMachine
from gateway.relay.moves import (
    Action,
    Cancel,
    Commit,
    Dispatch,
    Event,
    Failed,
    Finish,
    GiveUp,
    Read,
    Sent,
    Skipped,
    Tick,
)
from gateway.relay.retry_budget import RetryBudget
from gateway.simulator.routing.arrivals import Arrival
from gateway.simulator.routing.places import Foreseen, Place
from gateway.simulator.routing.records import EventLog, Served
from gateway.simulator.routing.router import Ask, NowhereNow, Router
from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.usage import Usage

CHARACTERS_PER_TOKEN = 4.0  # of the reference tokenizer
READ_EVERY_S = 5.0  # between the first and the last token, so that no idle timer runs out
WAIT_MAX_S = 2.0  # how long a request waits for a place, as at the gateway's admission
RETRIES_MAX = 2
LIMITS = AttemptLimits(is_stream=True, retries_max=RETRIES_MAX)
_TENANT = "simulated"
_TOKEN = (Piece(kind=PieceKind.GENERATED, visible_chars=1),)
_END = (Piece(kind=PieceKind.FINISH, finish="stop"), Piece(kind=PieceKind.DONE))


class _Attempt:
    """One attempt on its way."""

    __slots__ = ("fate", "is_over", "outcome", "place", "place_idx")

    def __init__(
        self, place: Place, place_idx: int, fate: Foreseen, outcome: AttemptOutcome
    ) -> None:
        self.place = place
        self.place_idx = place_idx
        self.fate = fate
        self.outcome = outcome
        self.is_over = False


class _Run:
    """One request and its machine."""

    __slots__ = ("arrival", "ask", "attempts", "machine", "router", "served", "tick_at_s")

    def __init__(self, arrival: Arrival, ask: Ask, router: Router, served: Served) -> None:
        self.arrival = arrival
        self.ask = ask
        self.router = router
        self.served = served
        self.machine: AttemptMachine | None = None
        self.attempts: dict[int, _Attempt | None] = {}
        self.tick_at_s = float("inf")


class Simulation:
    """Plays one workload against one set of routers (one a replica). `run` once."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        places: Sequence[Place],
        routers: Sequence[Router],
        *,
        log: EventLog | None = None,
    ) -> None:
        self.now_s = 0.0
        self.served: list[Served] = []
        self._arrivals = arrivals
        self._places = places
        self._idx_of = {place.spec.id: idx for idx, place in enumerate(places)}
        self._routers = routers
        self._retries = [RetryBudget() for _ in routers]
        self._log = log
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()

    # The clock

    def at(self, when_s: float, what: Callable[..., None], *args: object) -> None:
        """Call `what` at a virtual time; ties go in the order of asking."""
        heappush(self._heap, (when_s, next(self._order), what, args))

    def every(self, interval_s: float, what: Callable[[], None]) -> None:
        """Call `what` again and again while requests still arrive."""

        def again() -> None:
            what()
            if self._arrivals and self.now_s < self._arrivals[-1].at_s:
                self.at(self.now_s + interval_s, again)

        self.at(interval_s, again)

    def run(self) -> list[Served]:
        """Play to the end; one row a request, by arrival."""
        if self._arrivals:
            self.at(self._arrivals[0].at_s, self._arrive, 0)
        heap = self._heap
        while heap:
            self.now_s, _, what, args = heappop(heap)
            what(*args)
        return self.served

    # A request

    def _arrive(self, idx: int) -> None:
        if idx + 1 < len(self._arrivals):
            self.at(self._arrivals[idx + 1].at_s, self._arrive, idx + 1)
        arrival = self._arrivals[idx]
        # Multiplying by an odd number spreads neighbours over the replicas, as a balancer does.
        replica = (idx * 2_654_435_761 >> 8) % len(self._routers)
        served = Served(
            idx=idx, at_s=arrival.at_s, prompt_tokens=arrival.prompt_tokens, replica=replica
        )
        self.served.append(served)
        run = _Run(arrival, _ask(idx, arrival), self._routers[replica], served)
        self._begin(run, self.now_s + WAIT_MAX_S)

    def _begin(self, run: _Run, until_s: float) -> None:
        """Ask the router; where only a place is missing, ask again as the gateway's line does."""
        try:
            order = run.router.order(run.ask, self.now_s)
        except NowhereNow as busy:
            again_s = self.now_s + max(0.05, min(busy.free_in_s, 0.25))
            if again_s <= until_s:
                self.at(again_s, self._begin, run, until_s)
                return
            order = ()
        if not order:
            self._close(run, has_failed=True)
            return
        run.served.explored = run.router.explored
        retries = self._retries[run.served.replica]
        retries.begin(_TENANT, self.now_s)
        run.machine = AttemptMachine(
            order,
            LIMITS,
            now=self.now_s,
            may_retry=lambda: retries.take(_TENANT, self.now_s),
        )
        self._perform(run, run.machine.start(self.now_s))

    def _handle(self, run: _Run, event: Event) -> None:
        assert run.machine is not None
        if isinstance(event, Failed):
            self._end(run, event.attempt, event.failure)
        self._perform(run, run.machine.handle(event, self.now_s))

    def _perform(self, run: _Run, actions: Sequence[Action]) -> None:
        machine = run.machine
        assert machine is not None
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatch(run, action)
            elif isinstance(action, Cancel):
                self._end(run, action.attempt, action.failure)
            elif isinstance(action, Commit):
                run.served.ttft_s = self.now_s - run.arrival.at_s
                committed = run.attempts[action.attempt]
                assert committed is not None
                committed.outcome.is_committed = True
                run.router.first_token(committed.outcome.endpoint_id, self.now_s)
            elif isinstance(action, Finish):
                self._end(run, action.attempt, None)
                self._finish(run, action.attempt)
            elif isinstance(action, GiveUp):
                self._close(run, has_failed=True)
        deadline_s = machine.next_deadline()
        if deadline_s is not None and deadline_s < run.tick_at_s:
            run.tick_at_s = deadline_s
            self.at(deadline_s, self._tick, run)

    def _tick(self, run: _Run) -> None:
        machine = run.machine
        assert machine is not None
        run.tick_at_s = float("inf")
        deadline_s = machine.next_deadline()
        if deadline_s is None:
            return
        if deadline_s > self.now_s:  # what was due then has been put off
            run.tick_at_s = deadline_s
            self.at(deadline_s, self._tick, run)
        else:
            self._perform(run, machine.handle(Tick(), self.now_s))

    def _finish(self, run: _Run, attempt_no: int) -> None:
        attempt = run.attempts[attempt_no]
        assert attempt is not None
        served = run.served
        served.winner = attempt.place_idx
        served.cached_tokens = attempt.fate.cached_tokens
        served.useful_characters = run.arrival.output_tokens * CHARACTERS_PER_TOKEN
        self._close(run, has_failed=False)

    def _close(self, run: _Run, *, has_failed: bool) -> None:
        run.served.done_s = self.now_s - run.arrival.at_s
        run.served.has_failed = has_failed
        if run.machine is not None:
            self._retries[run.served.replica].end(_TENANT)
        if self._log is not None:
            self._log.add(self.now_s, "failed" if has_failed else "done", run.served.idx)

    # An attempt

    def _dispatch(self, run: _Run, action: Dispatch) -> None:
        now_s, number = self.now_s, action.attempt
        place_idx = self._idx_of[action.endpoint_id]
        place = self._places[place_idx]
        if now_s < place.spec.appears_at_s or not run.router.may_send(action.endpoint_id, now_s):
            run.attempts[number] = None
            self.at(now_s, self._handle, run, Skipped(number))
            return
        fate = place.foresee(run.arrival, run.served.idx, now_s)
        outcome = _outcome(run, action.endpoint_id, number, now_s)
        attempt = run.attempts[number] = _Attempt(place, place_idx, fate, outcome)
        outcome.in_flight = run.router.started(action.endpoint_id, now_s)
        place.begin(run.arrival, fate, now_s)
        served = run.served
        served.num_attempts += 1
        if served.first < 0:
            served.first = place_idx
        if self._log is not None:
            self._log.add(now_s, "sent", served.idx, action.endpoint_id)
        timeout_s = run.router.first_token_timeout_s(action.endpoint_id, run.ask)
        self.at(now_s, self._handle, run, Sent(number, timeout_s))
        is_hang = fate.failure is FailureClass.TIMEOUT_FIRST_TOKEN
        if not is_hang and fate.fails_at_s > fate.ttft_s:
            self.at(now_s + fate.ttft_s, self._read, run, number, attempt)
        if fate.failure is None:
            self.at(now_s + fate.whole_s, self._last, run, number, attempt)
        elif fate.fails_at_s < float("inf"):
            failed = Failed(number, fate.failure, fate.retry_after_s)
            self.at(now_s + fate.fails_at_s, self._fail, run, attempt, failed)

    def _read(self, run: _Run, number: int, attempt: _Attempt) -> None:
        """A token came; the next one that is worth an event is five seconds off."""
        if attempt.is_over:
            return
        outcome, now_s = attempt.outcome, self.now_s
        if outcome.first_generated_at_s is None:
            outcome.first_generated_at_s = outcome.first_visible_at_s = now_s
        outcome.last_generated_at_s = now_s
        next_s = now_s + READ_EVERY_S
        fate = attempt.fate
        if next_s < outcome.dispatched_at_s + min(fate.whole_s, fate.fails_at_s):
            self.at(next_s, self._read, run, number, attempt)
        self._handle(run, Read(number, _TOKEN))

    def _last(self, run: _Run, number: int, attempt: _Attempt) -> None:
        if attempt.is_over:
            return
        attempt.outcome.last_generated_at_s = self.now_s
        attempt.outcome.finish = "stop"
        self._handle(run, Read(number, _END))

    def _fail(self, run: _Run, attempt: _Attempt, failed: Failed) -> None:
        if attempt.is_over:
            return
        attempt.outcome.retry_after_s = failed.retry_after_s
        self._handle(run, failed)

    def _end(self, run: _Run, number: int, failure: FailureClass | None) -> None:
        """Close an attempt's books: what it produced, what it costs, what the router learns."""
        attempt = run.attempts.get(number)
        if attempt is None or attempt.is_over:
            return
        attempt.is_over = True
        now_s, outcome, fate = self.now_s, attempt.outcome, attempt.fate
        outcome.ended_at_s = now_s
        outcome.failure = failure.value if failure is not None else ""
        has_begun = outcome.first_generated_at_s is not None
        share = 1.0
        if failure is not None:
            share = 0.0 if not has_begun else _share(outcome, fate, now_s)
        tokens = fate.output_tokens if failure is None else int(share * fate.output_tokens)
        outcome.num_frames = tokens
        characters = share * run.arrival.output_tokens * CHARACTERS_PER_TOKEN
        outcome.visible_chars = int(characters)
        if has_begun:
            outcome.usage = Usage(
                input=fate.prompt_tokens - fate.cached_tokens,
                cached_read=fate.cached_tokens,
                output=tokens,
            )
            row = attempt.place.price(outcome.dispatched_at_s)
            run.served.cost_nanos += cost_nanos(row, outcome.usage)
        attempt.place.end()
        if self._log is not None:
            self._log.add(now_s, f"ended {outcome.failure}", run.served.idx, outcome.endpoint_id)
        run.router.ended(outcome, now_s)


def _share(outcome: AttemptOutcome, fate: Foreseen, now_s: float) -> float:
    """Of the answer, what had come when it was cut off."""
    begun_s = now_s - outcome.dispatched_at_s - fate.ttft_s
    return min(1.0, max(0.0, begun_s / max(1e-9, fate.whole_s - fate.ttft_s)))


def _ask(idx: int, arrival: Arrival) -> Ask:
    # As the gateway does, from the first 1,024 tokens: two blocks.
    has_prefix = len(arrival.blocks) > 1
    prefix = f"{hash(arrival.blocks[:2]) & 0xFFFF_FFFF_FFFF_FFFF:016x}" if has_prefix else ""
    return Ask(
        idx=idx,
        prompt_tokens=arrival.prompt_tokens,
        prefix_key=prefix,
        session_key=arrival.session,
        deadline_s=arrival.deadline_s,
    )


def _outcome(run: _Run, endpoint_id: str, number: int, now_s: float) -> AttemptOutcome:
    ask = run.ask
    return AttemptOutcome(
        attempt_id=f"{ask.idx}.{number}",
        request_id=str(ask.idx),
        endpoint_id=endpoint_id,
        surface=Surface.CHAT,
        stream=True,
        dispatched_at_s=now_s,
        headers_at_s=now_s,
        prompt_tokens_expected=ask.prompt_tokens,
        text_bytes=ask.prompt_tokens * 4,
        key_id="simulated",
        model="model",
        affinity_key=ask.prefix_key,
        session_key=ask.session_key,
        status=200,
    )
