"""With every rescue on: the client's bytes are of one attempt, or of one and its continuation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.errors import FailureClass
from gateway.relay.attempts import AttemptLimits, AttemptMachine
from gateway.relay.moves import (
    Abandon,
    Action,
    Answered,
    Blocked,
    Cancel,
    ClientGone,
    Commit,
    Continue,
    Deliver,
    Dispatch,
    Event,
    Failed,
    Finish,
    Forward,
    GiveUp,
    Read,
    Sent,
    Skipped,
    Stop,
    Tick,
)
from gateway.wire.pieces import Piece, PieceKind

# Longer than `make check` may take; `make test` runs it.
pytestmark = pytest.mark.slow

TERMINAL = (Deliver, Finish, GiveUp, Abandon)
ENDS = (Failed, Skipped, Answered, Blocked)

kinds = st.sampled_from([
    Piece(kind=PieceKind.META, payload=b"role"),
    Piece(kind=PieceKind.GENERATED, payload=b"text", visible_chars=4),
    Piece(kind=PieceKind.GENERATED, payload=b"more", visible_chars=40),
    Piece(kind=PieceKind.GENERATED, payload=b"hmm", reasoning_chars=4),
    Piece(kind=PieceKind.GENERATED, payload=b"f(x)", tool_chars=4),
    Piece(kind=PieceKind.GENERATED, payload=b"x" * 30_000, reasoning_chars=9),
    Piece(kind=PieceKind.FINISH, payload=b"stop", finish="stop"),
    Piece(kind=PieceKind.DONE),
])  # fmt: skip
# Which of the running attempts an event is of, counted from the newest.
whose = st.integers(0, 2)
happenings = st.one_of(
    st.tuples(st.just("read"), whose, st.lists(kinds, min_size=1, max_size=3)),
    st.tuples(st.just("read"), whose, st.lists(kinds, min_size=1, max_size=3)),
    st.tuples(st.just("sent"), whose, st.floats(0.1, 30.0)),
    st.tuples(st.just("failed"), whose, st.sampled_from(FailureClass)),
    st.tuples(st.just("skipped"), whose, st.none()),
    st.tuples(st.just("blocked"), whose, st.none()),
    st.tuples(st.just("tick"), whose, st.none()),
    st.tuples(st.sampled_from(["tick", "tick", "tick", "gone", "stop"]), whose, st.none()),
)
scripts = st.lists(st.tuples(happenings, st.floats(0.0, 3.0)), max_size=40)


def event_of(what: str, attempt: int, more: object, step: int) -> Event:
    made: dict[str, Event] = {
        "tick": Tick(), "gone": ClientGone(), "stop": Stop(),
        "skipped": Skipped(attempt), "blocked": Blocked(attempt),
    }  # fmt: skip
    if what in made:
        return made[what]
    if what == "read":
        assert isinstance(more, list)
        # Every piece has its own payload, so that a byte can be told from every other.
        return Read(
            attempt,
            [
                structs.replace(piece, payload=b"%d/%d/%d " % (attempt, step, idx) + piece.payload)
                for idx, piece in enumerate(more)
            ],
        )
    if what == "sent":
        assert isinstance(more, float)
        return Sent(attempt, 20.0, None, more)
    assert isinstance(more, FailureClass)
    return Failed(attempt, more)


class Witness:
    """What went out, and which attempts run."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.continues: dict[int, int] = {}
        self.read: dict[int, list[Piece]] = {}
        self.sent: list[tuple[int, Piece]] = []  # (attempt, piece) that the client got
        self.speakers: list[int] = []
        self.dispatched: list[str] = []
        self.terminal: list[Action] = []
        self.cancelled: list[int] = []

    def hear(self, event: Event) -> None:
        if isinstance(event, Read) and event.attempt in self.running:
            self.read.setdefault(event.attempt, []).extend(event.pieces)
        if isinstance(event, ENDS) and event.attempt in self.running:
            speaks = self.speakers and event.attempt == self.speakers[-1]
            if not (isinstance(event, Skipped) and speaks):
                self.running.remove(event.attempt)

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.terminal, "nothing may follow the end"

            if isinstance(action, Dispatch):
                self.dispatched.append(action.endpoint_id)
                assert action.attempt == len(self.dispatched)
                self.running.append(action.attempt)
                assert len(self.running) <= 2
                self.continues[action.attempt] = action.continues
                assert bool(action.continues) == bool(self.speakers)
            elif isinstance(action, Cancel):
                self.running.remove(action.attempt)
                self.cancelled.append(action.attempt)
            elif isinstance(action, Commit):
                assert not self.speakers
                self.speakers.append(action.attempt)
            elif isinstance(action, Continue):
                assert self.speakers == [action.of]
                assert self.continues[action.attempt] == action.of
                self.speakers.append(action.attempt)
            elif isinstance(action, Forward):
                assert action.attempt == self.speakers[-1]
                self.sent += [(action.attempt, piece) for piece in action.pieces]
            elif isinstance(action, TERMINAL):
                self.terminal.append(action)


def run(
    script: list[tuple[tuple[str, int, object], float]],
    limits: AttemptLimits,
    permits: int,
    continues_at: str,
) -> tuple[AttemptMachine, Witness, int]:
    left, num_hedges = permits, 0

    def may_retry() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    def may_hedge() -> bool:
        nonlocal num_hedges
        num_hedges += 1
        return True

    now = 0.0
    machine = AttemptMachine(
        "abcd", limits, now=now, may_retry=may_retry, may_hedge=may_hedge,
        continues_at=continues_at,
    )  # fmt: skip
    witness = Witness()
    witness.see(machine.start(now))
    for step, ((what, back, more), pause_s) in enumerate(script):
        now += pause_s
        deadline = machine.next_deadline()
        if deadline is not None and deadline < now:
            witness.see(machine.handle(Tick(), deadline))
        attempt = max(1, len(witness.dispatched) - back)
        event = event_of(what, attempt, more, step)
        if not machine.is_over:
            witness.hear(event)
        witness.see(machine.handle(event, now))
    num_ticks = 0
    while (deadline := machine.next_deadline()) is not None:
        now = max(now, deadline)
        witness.see(machine.handle(Tick(), now))
        num_ticks += 1
        assert num_ticks < 2_000, "the machine must end by itself"
    return machine, witness, num_hedges


limits_of = st.builds(
    AttemptLimits,
    is_stream=st.just(True),
    retries_max=st.integers(0, 3),
    total_s=st.floats(1.0, 100.0),
    keep_alive_s=st.sampled_from([0.0, 15.0]),
    decode_floor_tokens_per_s=st.sampled_from([None, 1.0, 5.0, 50.0]),
    decode_floor_grace_s=st.sampled_from([0.5, 2.0]),
)


@settings(max_examples=250)
@given(scripts, limits_of, st.integers(0, 4), st.sampled_from(["", "abcd", "bd"]))
def test_answers_are_never_glued_together(
    script: list[tuple[tuple[str, int, object], float]],
    limits: AttemptLimits,
    permits: int,
    continues_at: str,
) -> None:
    machine, witness, num_hedges = run(script, limits, permits, continues_at)

    assert machine.is_over
    assert len(witness.terminal) == 1
    assert len(witness.speakers) <= 2
    assert num_hedges <= 1
    assert machine.num_retries <= limits.retries_max
    assert len(witness.dispatched) == len(set(witness.dispatched))
    for attempt in witness.speakers:
        # What the client got of an attempt is how its stream began, with nothing left out: all of
        # it, or what came before another took over (of a continuation without its greeting).
        got = [piece for number, piece in witness.sent if number == attempt]
        had = witness.read.get(attempt, [])
        if witness.continues[attempt]:
            assert witness.dispatched[attempt - 1] in continues_at
            got = [piece for piece in got if piece.kind is not PieceKind.META]
            had = [piece for piece in had if piece.kind is not PieceKind.META]
        assert got == had[: len(got)]
        is_last = attempt == witness.speakers[-1]
        if is_last and isinstance(witness.terminal[0], Finish):
            assert got == had
    if isinstance(witness.terminal[0], Finish):
        # Who is told that the answer is whole has ended; whoever ran beside it was cancelled.
        assert [one for one in witness.running if one != witness.terminal[0].attempt] == []
        assert witness.terminal[0].attempt == witness.speakers[-1]
    elif not isinstance(witness.terminal[0], Deliver):
        assert witness.running == []


@given(scripts, limits_of, st.integers(0, 4))
def test_machine_with_rescue_repeats_itself_exactly(
    script: list[tuple[tuple[str, int, object], float]], limits: AttemptLimits, permits: int
) -> None:
    first = run(script, limits, permits, "abcd")[1]
    second = run(script, limits, permits, "abcd")[1]

    assert vars(first) == vars(second)
