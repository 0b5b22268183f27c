"""Whatever the endpoints, the client and the clock do, a machine keeps its promises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Deliver,
    Dispatch,
    Event,
    Failed,
    Finish,
    Forward,
    GiveUp,
    OpenClient,
    Read,
    Sent,
    Skipped,
    Stop,
    Tick,
)
from gateway.wire.pieces import Piece, PieceKind
from gateway.wire.usage import Usage

# Longer than `make check` may take; `make test` runs it.
pytestmark = pytest.mark.slow

TERMINAL = (Deliver, Finish, GiveUp, Abandon)

pieces = st.builds(
    Piece,
    kind=st.sampled_from([kind for kind in PieceKind if kind is not PieceKind.ERROR]),
    payload=st.sampled_from([b"", b"x" * 100, b"x" * 40_000]),
    finish=st.sampled_from(["", "stop", "length"]),
    usage=st.sampled_from([None, Usage(output=1)]),
)
attempts = st.integers(0, 4)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Read, attempts, st.lists(pieces, max_size=4)),
    st.builds(Read, attempts, st.lists(pieces, max_size=4)),
    st.builds(Sent, attempts, st.floats(0.1, 120.0)),
    st.builds(Failed, attempts, st.sampled_from(FailureClass), st.sampled_from([None, 0.0, 30.0])),
    st.builds(Skipped, attempts),
    st.builds(Answered, attempts),
    st.just(Tick()),
    st.sampled_from([Blocked(1), Blocked(2), ClientGone(), Stop()]),
)
steps = st.lists(st.tuples(events, st.floats(0.0, 40.0)), max_size=40)


class Witness:
    """Checks every action as it comes, and remembers."""

    def __init__(self) -> None:
        self.dispatched: list[str] = []
        self.committed: list[int] = []
        self.terminal: list[Action] = []
        self.num_opened = 0
        self.num_failed = 0

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.terminal, "nothing may follow the end"

            if isinstance(action, Dispatch):
                assert not self.committed, "no new attempt once the client has a token"
                self.dispatched.append(action.endpoint_id)
                assert action.attempt == len(self.dispatched)
            elif isinstance(action, Commit):
                self.committed.append(action.attempt)
                assert action.attempt == len(self.dispatched)
            elif isinstance(action, OpenClient):
                self.num_opened += 1
            elif isinstance(action, Forward):
                assert self.committed == [action.attempt]
                assert self.num_opened == 1
            elif isinstance(action, Cancel):
                assert action.attempt == len(self.dispatched)
            elif isinstance(action, TERMINAL):
                self.terminal.append(action)
                if isinstance(action, GiveUp):
                    assert action.is_in_band == (self.num_opened == 1)


def run(
    script: list[tuple[Event, float]], order: list[str], limits: AttemptLimits, permits: int
) -> tuple[AttemptMachine, Witness]:
    left = permits

    def may_retry() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    now = 0.0
    machine = AttemptMachine(order, limits, now=now, may_retry=may_retry)
    witness = Witness()
    witness.see(machine.start(now))
    for event, pause_s in script:
        now += pause_s
        deadline = machine.next_deadline()
        if deadline is not None and deadline < now:
            witness.see(machine.handle(Tick(), deadline))
        witness.see(machine.handle(event, now))
    num_ticks = 0
    while (deadline := machine.next_deadline()) is not None:
        now = max(now, deadline)
        witness.see(machine.handle(Tick(), now))
        num_ticks += 1
        assert num_ticks < 200, "the machine must end by itself"
    return machine, witness


@settings(max_examples=120)
@given(
    steps,
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=5),
    st.builds(
        AttemptLimits,
        is_stream=st.booleans(),
        num_choices=st.integers(1, 2),
        retries_max=st.integers(0, 3),
        total_s=st.floats(1.0, 400.0),
        keep_alive_s=st.sampled_from([0.0, 15.0]),
    ),
    st.integers(0, 3),
)
def test_machine_commits_once_never_mixes_attempts_and_always_ends(
    script: list[tuple[Event, float]], order: list[str], limits: AttemptLimits, permits: int
) -> None:
    machine, witness = run(script, order, limits, permits)

    assert machine.is_over
    assert len(witness.terminal) == 1
    assert len(witness.committed) <= 1
    assert witness.num_opened <= 1
    assert len(witness.dispatched) == len(set(witness.dispatched))
    assert machine.num_retries <= min(limits.retries_max, permits)


@given(steps, st.integers(0, 3))
def test_machine_repeats_itself_exactly(script: list[tuple[Event, float]], permits: int) -> None:
    limits = AttemptLimits(is_stream=True)
    first = run(script, list("abc"), limits, permits)[1]
    second = run(script, list("abc"), limits, permits)[1]

    assert vars(first) == vars(second)
