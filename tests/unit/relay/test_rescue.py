"""Slow streams on virtual time: the decode floor, hedges, and continuation by another endpoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.errors import FailureClass
from gateway.relay.attempts import AttemptLimits, AttemptMachine
from gateway.relay.moves import (
    Abandon,
    Action,
    Blocked,
    Cancel,
    ClientGone,
    Commit,
    Continue,
    Dispatch,
    Failed,
    Finish,
    Forward,
    GiveUp,
    Heard,
    OpenClient,
    Read,
    Sent,
    Skipped,
    Tick,
)
from gateway.wire.pieces import Piece, PieceKind

ROLE = Piece(kind=PieceKind.META, payload=b'{"role"}')
TOKEN = Piece(kind=PieceKind.GENERATED, payload=b'{"abcd"}', visible_chars=4)
THOUGHT = Piece(kind=PieceKind.GENERATED, payload=b'{"hmm."}', reasoning_chars=4)
CALL = Piece(kind=PieceKind.GENERATED, payload=b'{"f(x)"}', tool_chars=4)
FINISH = Piece(kind=PieceKind.FINISH, payload=b'{"stop"}', finish="stop")
DONE = Piece(kind=PieceKind.DONE)
FLOOR = AttemptLimits(
    is_stream=True, keep_alive_s=0.0, decode_floor_tokens_per_s=5.0, decode_floor_grace_s=2.0
)
STREAM = AttemptLimits(is_stream=True, keep_alive_s=0.0)


def yes() -> bool:
    return True


def machine(
    order: str = "abc",
    limits: AttemptLimits = STREAM,
    *,
    may_retry: Callable[[], bool] = yes,
    may_hedge: Callable[[], bool] | None = None,
    continues_at: str = "",
    hedge_after_s: float | None = None,
) -> AttemptMachine:
    made = AttemptMachine(
        order, limits, now=0.0, may_retry=may_retry, may_hedge=may_hedge, continues_at=continues_at
    )
    assert made.start(0.0) == [Dispatch(1, order[0])]
    assert made.handle(Sent(1, 20.0, None, hedge_after_s), 0.0) == []
    return made


def run_until(one: AttemptMachine, until: float) -> list[tuple[float, Action]]:
    """Ticks at every deadline up to `until`, as a driver would give them."""
    seen: list[tuple[float, Action]] = []
    while (at := one.next_deadline()) is not None and at <= until:
        seen += [(at, action) for action in one.handle(Tick(), at)]
    return seen


def feed(
    one: AttemptMachine, attempt: int, piece: Piece, every_s: float, span: tuple[float, float]
) -> list[tuple[float, Action]]:
    """A piece every so often, ticks between."""
    seen = []
    num = round((span[1] - span[0]) / every_s)
    for step in range(num + 1):
        now = span[0] + step * every_s
        seen += run_until(one, now)
        seen += [(now, action) for action in one.handle(Read(attempt, [piece]), now)]
    return seen


# The floor


def test_slow_reasoning_begins_again_elsewhere_and_the_client_sees_nothing_of_it() -> None:
    one = machine(limits=FLOOR)
    assert one.handle(Read(1, [ROLE, THOUGHT]), 1.0) == [Heard(1)]
    seen = feed(one, 1, THOUGHT, 0.5, (1.5, 3.2))  # 2 a second, 5 are asked

    assert [action for _, action in seen] == [Dispatch(2, "b")]
    assert seen[0][0] == pytest.approx(3.0, abs=0.2)
    one.handle(Sent(2, 20.0), 3.2)
    assert one.handle(Read(1, [THOUGHT]), 3.3) == []
    assert one.handle(Read(2, [TOKEN]), 3.4) == [
        Cancel(1, FailureClass.TOO_SLOW),
        Commit(2),
        OpenClient(),
        Forward(2, [TOKEN]),
    ]


def test_quick_reasoning_is_shown_after_the_grace_and_a_visible_token_at_once() -> None:
    quick = machine(limits=FLOOR)
    quick.handle(Read(1, [THOUGHT]), 1.0)
    seen = feed(quick, 1, THOUGHT, 0.1, (1.1, 3.5))

    commits = [(at, action) for at, action in seen if isinstance(action, Commit)]
    assert [at for at, _ in commits] == [pytest.approx(3.0, abs=0.11)]
    assert sum(len(a.pieces) for _, a in seen if isinstance(a, Forward)) == 26  # none is lost

    one = machine(limits=FLOOR)
    one.handle(Read(1, [THOUGHT]), 1.0)
    assert one.handle(Read(1, [TOKEN]), 1.1) == [
        Commit(1),
        OpenClient(),
        Forward(1, [THOUGHT, TOKEN]),
    ]


def test_slow_stream_that_was_shown_is_left_alone() -> None:
    one = machine(limits=FLOOR)
    one.handle(Read(1, [TOKEN]), 1.0)
    seen = feed(one, 1, TOKEN, 1.0, (2.0, 20.0))

    assert {type(action) for _, action in seen} == {Forward}


def test_slow_stream_is_shown_where_nobody_may_take_over() -> None:
    for one in (machine("a", FLOOR), machine(limits=FLOOR, may_retry=lambda: False)):
        first = one.handle(Read(1, [THOUGHT]), 1.0)
        seen = first + [action for _, action in run_until(one, 3.5)]

        assert Commit(1) in seen
        assert not any(isinstance(action, Cancel | Dispatch | GiveUp) for action in seen)


@pytest.mark.parametrize(
    "end", [Failed(2, FailureClass.CONNECT), Skipped(2), Blocked(2)], ids=lambda end: type(end)
)
def test_slow_stream_goes_on_when_its_relief_fails(end: Failed | Skipped | Blocked) -> None:
    one = machine(limits=FLOOR)
    one.handle(Read(1, [THOUGHT]), 1.0)
    assert [action for _, action in run_until(one, 3.0)] == [Dispatch(2, "b")]
    one.handle(Read(1, [TOKEN]), 3.1)  # it speaks now, but its relief is on the way

    assert one.handle(end, 3.2) == [Commit(1), OpenClient(), Forward(1, [THOUGHT, TOKEN])]
    assert one.handle(Read(1, [FINISH, DONE]), 3.3) == [Forward(1, [FINISH, DONE]), Finish(1)]


def test_slow_stream_that_ends_before_its_relief_began_is_the_answer() -> None:
    one = machine(limits=FLOOR)
    one.handle(Read(1, [THOUGHT]), 1.0)
    run_until(one, 3.0)

    assert one.handle(Read(1, [TOKEN, FINISH, DONE]), 3.1) == [
        Cancel(2, FailureClass.OUTPACED),
        Commit(1),
        OpenClient(),
        Forward(1, [THOUGHT, TOKEN, FINISH, DONE]),
        Finish(1),
    ]


def test_held_reasoning_that_breaks_falls_over_unseen() -> None:
    one = machine(limits=FLOOR)
    one.handle(Read(1, [THOUGHT]), 1.0)

    assert one.handle(Failed(1, FailureClass.STREAM_BROKEN), 1.1) == [Dispatch(2, "b")]


def test_client_that_reads_slowly_is_not_taken_for_a_slow_endpoint() -> None:
    one = machine(limits=FLOOR, continues_at="abc")
    one.handle(Read(1, [TOKEN]), 1.0)
    one.pause_ended(2.9)

    assert run_until(one, 4.8) == []
    assert [action for _, action in run_until(one, 5.0)] == [Dispatch(2, "b", 1)]


def test_read_that_comes_with_the_end_of_the_grace_does_not_show_a_slow_stream() -> None:
    one = machine(limits=FLOOR)
    one.handle(Read(1, [THOUGHT]), 1.0)

    # The event comes before the tick that is due with it.
    assert one.handle(Read(1, [THOUGHT]), 3.01) == [Dispatch(2, "b")]


# Hedges


def test_hedge_goes_out_at_the_delay_and_the_first_to_generate_wins() -> None:
    for winner, loser in ((1, 2), (2, 1)):
        one = machine(may_hedge=yes, hedge_after_s=0.8)
        assert run_until(one, 0.79) == []
        assert run_until(one, 0.8) == [(0.8, Dispatch(2, "b"))]
        one.handle(Sent(2, 20.0, None, 0.1), 0.8)
        assert run_until(one, 3.0) == [], "one hedge a request"
        one.handle(Read(loser, [ROLE]), 3.0)
        assert one.handle(Read(winner, [TOKEN]), 3.1) == [
            Cancel(loser, FailureClass.OUTPACED),
            Commit(winner),
            OpenClient(),
            Forward(winner, [TOKEN]),
        ]
        assert one.handle(Read(loser, [TOKEN]), 3.2) == []
        assert one.num_retries == 0


def test_no_hedge_without_permit_without_peer_or_after_the_first_token() -> None:
    def no() -> bool:
        return False

    asked: list[int] = []

    def counts() -> bool:
        asked.append(1)
        return True

    for one in (
        machine(may_hedge=no, hedge_after_s=0.8),
        machine(may_hedge=None, hedge_after_s=0.8),
        machine("a", may_hedge=counts, hedge_after_s=0.8),
    ):
        assert run_until(one, 5.0) == []
    spoken = machine(may_hedge=counts, hedge_after_s=0.8)
    spoken.handle(Read(1, [TOKEN]), 0.5)
    assert run_until(spoken, 5.0) == []
    assert not asked


@pytest.mark.parametrize("end", [Skipped(2), Blocked(2), Failed(2, FailureClass.INVALID_REQUEST)])
def test_hedge_that_fails_changes_nothing(end: Skipped | Blocked | Failed) -> None:
    one = machine(may_hedge=yes, hedge_after_s=0.8)
    run_until(one, 0.8)

    assert one.handle(end, 0.9) == []
    assert one.handle(Read(1, [TOKEN]), 1.0)[0] == Commit(1)


def test_hedge_takes_over_when_the_first_fails_and_the_third_when_both_do() -> None:
    one = machine(may_hedge=yes, hedge_after_s=0.8)
    run_until(one, 0.8)

    assert one.handle(Failed(1, FailureClass.CONNECT), 0.9) == []
    assert one.handle(Failed(2, FailureClass.SERVER_ERROR), 1.0) == [Dispatch(3, "c")]


def test_fault_of_the_request_ends_its_hedge_too() -> None:
    one = machine(may_hedge=yes, hedge_after_s=0.8)
    run_until(one, 0.8)

    assert one.handle(Failed(1, FailureClass.CONTENT_REFUSED), 0.9) == [
        Cancel(2, FailureClass.OUTPACED),
        GiveUp(1, FailureClass.CONTENT_REFUSED, False, None),
    ]


def test_client_that_leaves_pays_one_of_two() -> None:
    one = machine(may_hedge=yes, hedge_after_s=0.8)
    run_until(one, 0.8)

    assert one.handle(ClientGone(), 0.9) == [
        Cancel(2, FailureClass.OUTPACED),
        Cancel(1, FailureClass.CLIENT_GONE),
        Abandon(2),
    ]


# Continuation


def test_broken_text_is_continued_once_by_an_endpoint_that_can() -> None:
    one = machine("abcd", continues_at="acd")
    one.handle(Read(1, [ROLE, TOKEN]), 1.0)

    assert one.handle(Failed(1, FailureClass.STREAM_BROKEN), 1.1) == [Dispatch(2, "c", 1)]
    one.handle(Sent(2, 20.0), 1.1)
    assert one.handle(Read(2, [ROLE]), 1.2) == []
    assert one.handle(Read(2, [TOKEN]), 1.3) == [Continue(2, 1), Forward(2, [TOKEN])]
    assert one.handle(Failed(2, FailureClass.STREAM_BROKEN), 1.4) == [
        GiveUp(2, FailureClass.STREAM_BROKEN, True, None)
    ]


@pytest.mark.parametrize("piece", [THOUGHT, CALL])
def test_what_is_more_than_text_is_not_continued(piece: Piece) -> None:
    one = machine(continues_at="abc")
    one.handle(Read(1, [piece, TOKEN]), 1.0)

    assert one.handle(Failed(1, FailureClass.STREAM_BROKEN), 1.1) == [
        GiveUp(1, FailureClass.STREAM_BROKEN, True, None)
    ]


def test_continuation_that_says_nothing_is_followed_by_the_next_then_told() -> None:
    limits = AttemptLimits(is_stream=True, retries_max=1)
    one = machine(limits=limits, continues_at="abc")
    one.handle(Read(1, [TOKEN]), 1.0)
    one.handle(Failed(1, FailureClass.STREAM_BROKEN), 1.1)
    assert one.handle(Failed(2, FailureClass.CONNECT), 1.2) == [
        GiveUp(1, FailureClass.STREAM_BROKEN, True, None)  # the retries are spent
    ]

    other = machine(continues_at="abc")
    other.handle(Read(1, [TOKEN]), 1.0)
    other.handle(Failed(1, FailureClass.STREAM_BROKEN), 1.1)
    assert other.handle(Skipped(2), 1.2) == [Dispatch(3, "c", 1)]
    # An empty answer of "stop" is no end that anybody has vouched for.
    assert other.handle(Read(3, [ROLE, FINISH, DONE]), 1.3) == [
        Cancel(3, FailureClass.SERVER_ERROR),
        GiveUp(1, FailureClass.STREAM_BROKEN, True, None),
    ]


def test_stalled_text_is_continued_and_what_it_still_says_is_dropped() -> None:
    one = machine(limits=FLOOR, continues_at="abc")
    one.handle(Read(1, [TOKEN]), 1.0)
    assert run_until(one, 3.1) == [(3.0, Dispatch(2, "b", 1))]
    assert one.handle(Read(1, [TOKEN]), 3.2) == [], (
        "the client's text is what the other goes on from"
    )

    assert one.handle(Read(2, [TOKEN]), 3.3) == [
        Cancel(1, FailureClass.TOO_SLOW),
        Continue(2, 1),
        Forward(2, [TOKEN]),
    ]
    assert one.handle(Read(2, [FINISH, DONE]), 3.4) == [Forward(2, [FINISH, DONE]), Finish(2)]


def test_stalled_text_that_wakes_up_goes_on_when_its_relief_fails() -> None:
    one = machine(limits=FLOOR, continues_at="abc")
    one.handle(Read(1, [TOKEN]), 1.0)
    run_until(one, 3.1)
    one.handle(Read(1, [TOKEN, TOKEN]), 3.2)

    assert one.handle(Failed(2, FailureClass.CONNECT), 3.3) == [Forward(1, [TOKEN, TOKEN])]
    assert one.handle(Read(1, [FINISH, DONE]), 3.4)[-1] == Finish(1)


def test_time_of_the_whole_request_ends_a_continuation() -> None:
    limits = AttemptLimits(is_stream=True, total_s=5.0, keep_alive_s=0.0)
    one = machine(limits=limits, continues_at="abc")
    one.handle(Read(1, [TOKEN]), 1.0)
    one.handle(Failed(1, FailureClass.STREAM_BROKEN), 1.1)

    assert [action for _, action in run_until(one, 5.0)] == [
        Cancel(2, FailureClass.TIMEOUT_IDLE),
        GiveUp(1, FailureClass.STREAM_BROKEN, True, None),
    ]
