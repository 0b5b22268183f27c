"""Failover, commit and timers of one request, on virtual time."""

from __future__ import annotations

import pytest

from gateway.errors import FailureClass
from gateway.relay.attempts import BUFFERED_BYTES_MAX, AttemptLimits, AttemptMachine
from gateway.relay.moves import (
    Abandon,
    Answered,
    Blocked,
    Cancel,
    ClientGone,
    Commit,
    Deliver,
    Dispatch,
    Failed,
    Finish,
    Forward,
    GiveUp,
    KeepAlive,
    OpenClient,
    Read,
    Sent,
    Skipped,
    Stop,
    Tick,
)
from gateway.wire.pieces import Piece, PieceKind
from gateway.wire.usage import Usage

ROLE = Piece(kind=PieceKind.META, payload=b'{"role"}')
TOKEN = Piece(kind=PieceKind.GENERATED, payload=b'{"hi"}', visible_chars=2)
FINISH = Piece(kind=PieceKind.FINISH, payload=b'{"stop"}', finish="stop")
USAGE = Piece(kind=PieceKind.USAGE, payload=b'{"u"}', usage=Usage(input=3, output=2))
DONE = Piece(kind=PieceKind.DONE)
STREAM = AttemptLimits(is_stream=True)


def machine(
    order: str = "abc", limits: AttemptLimits = STREAM, *, may_retry: bool = True
) -> AttemptMachine:
    made = AttemptMachine(order, limits, now=0.0, may_retry=lambda: may_retry)
    assert made.start(0.0) == [Dispatch(1, order[0])]
    assert made.handle(Sent(1, 20.0), 0.0) == []
    return made


def test_stream_is_opened_at_the_first_token_with_what_came_before_it() -> None:
    one = machine()

    assert one.handle(Read(1, [ROLE]), 0.1) == []
    assert one.handle(Read(1, [TOKEN]), 0.3) == [
        Commit(1),
        OpenClient(),
        Forward(1, [ROLE, TOKEN]),
    ]
    assert one.handle(Read(1, [TOKEN]), 0.4) == [Forward(1, [TOKEN])]
    assert one.handle(Read(1, [FINISH, USAGE, DONE]), 0.5) == [
        Forward(1, [FINISH, USAGE, DONE]),
        Finish(1),
    ]
    assert one.is_over
    assert one.next_deadline() is None


def test_whole_stream_in_one_read_is_committed_and_finished() -> None:
    assert machine().handle(Read(1, [ROLE, TOKEN, FINISH, DONE]), 0.1) == [
        Commit(1),
        OpenClient(),
        Forward(1, [ROLE, TOKEN, FINISH, DONE]),
        Finish(1),
    ]


def test_failure_after_a_role_frame_falls_over_and_drops_the_frame() -> None:
    one = machine()
    one.handle(Read(1, [ROLE]), 0.1)

    assert one.handle(Failed(1, FailureClass.QUOTA), 0.2) == [Dispatch(2, "b")]
    one.handle(Sent(2, 20.0), 0.2)
    assert one.handle(Read(2, [TOKEN]), 0.3) == [Commit(2), OpenClient(), Forward(2, [TOKEN])]


def test_failure_after_commit_is_told_in_band_and_never_falls_over() -> None:
    one = machine()
    one.handle(Read(1, [TOKEN]), 0.1)

    assert one.handle(Failed(1, FailureClass.STREAM_BROKEN), 0.2) == [
        GiveUp(1, FailureClass.STREAM_BROKEN, True, None)
    ]


def test_failure_after_the_finish_reason_is_a_complete_answer() -> None:
    one = machine()
    one.handle(Read(1, [TOKEN, FINISH]), 0.1)

    assert one.handle(Failed(1, FailureClass.STREAM_BROKEN), 0.2) == [Finish(1)]


def test_at_most_two_retries_each_on_another_endpoint() -> None:
    one = machine("abcd")

    assert one.handle(Failed(1, FailureClass.CONNECT), 0.1) == [Dispatch(2, "b")]
    assert one.handle(Failed(2, FailureClass.OVERLOADED, 7.0), 0.2) == [Dispatch(3, "c")]
    assert one.handle(Failed(3, FailureClass.SERVER_ERROR, 9.0), 0.3) == [
        GiveUp(3, FailureClass.SERVER_ERROR, False, 7.0)
    ]


def test_single_candidate_is_tried_once() -> None:
    assert machine("a").handle(Failed(1, FailureClass.RATE_LIMITED, 3.0), 0.1) == [
        GiveUp(1, FailureClass.RATE_LIMITED, False, 3.0)
    ]


def test_endpoint_named_twice_is_tried_once() -> None:
    one = machine("aab")

    assert one.handle(Failed(1, FailureClass.CONNECT), 0.1) == [Dispatch(2, "b")]


def test_no_retry_without_a_permit() -> None:
    assert machine(may_retry=False).handle(Failed(1, FailureClass.CONNECT), 0.1) == [
        GiveUp(1, FailureClass.CONNECT, False, None)
    ]


@pytest.mark.parametrize("failure", [FailureClass.INVALID_REQUEST, FailureClass.CONTENT_REFUSED])
def test_fault_of_the_request_is_not_tried_elsewhere(failure: FailureClass) -> None:
    assert machine().handle(Failed(1, failure), 0.1) == [GiveUp(1, failure, False, None)]


def test_answer_that_helps_the_caller_is_reported_over_a_later_failure() -> None:
    one = machine("ab")

    assert one.handle(Failed(1, FailureClass.CONTEXT_TOO_LONG), 0.1) == [Dispatch(2, "b")]
    assert one.handle(Failed(2, FailureClass.CONNECT), 0.2) == [
        GiveUp(1, FailureClass.CONTEXT_TOO_LONG, False, None)
    ]


def of_models(order: str, models: str, *, may_retry: bool = True) -> AttemptMachine:
    made = AttemptMachine(order, STREAM, now=0.0, may_retry=lambda: may_retry, models=models)
    made.start(0.0)
    return made


def test_fallback_model_is_tried_once_the_retries_of_the_model_before_are_spent() -> None:
    one = of_models("abcdef", "mmmmnn")

    assert one.handle(Failed(1, FailureClass.CONNECT), 0.1) == [Dispatch(2, "b")]
    assert one.handle(Failed(2, FailureClass.CONNECT), 0.2) == [Dispatch(3, "c")]
    assert one.handle(Failed(3, FailureClass.CONNECT), 0.3) == [Dispatch(4, "e")]
    assert one.handle(Failed(4, FailureClass.CONNECT), 0.4) == [Dispatch(5, "f")]
    assert one.handle(Failed(5, FailureClass.CONNECT), 0.5) == [
        GiveUp(5, FailureClass.CONNECT, False, None)
    ]


def test_fallback_model_needs_a_permit_of_the_retry_budget_too() -> None:
    one = of_models("ab", "mn", may_retry=False)

    assert one.handle(Failed(1, FailureClass.CONNECT), 0.1) == [
        GiveUp(1, FailureClass.CONNECT, False, None)
    ]


def test_refused_content_may_be_taken_by_another_model_but_not_by_the_same_elsewhere() -> None:
    one = of_models("abc", "mmn")

    assert one.handle(Failed(1, FailureClass.CONTENT_REFUSED), 0.1) == [Dispatch(2, "c")]
    assert one.handle(Failed(2, FailureClass.CONNECT), 0.2) == [
        GiveUp(1, FailureClass.CONTENT_REFUSED, False, None)
    ]


def test_skipped_endpoint_costs_no_retry() -> None:
    one = machine("abcd", may_retry=False)
    one = AttemptMachine("abcd", STREAM, now=0.0, may_retry=lambda: False)
    one.start(0.0)

    assert one.handle(Skipped(1), 0.0) == [Dispatch(2, "b")]
    assert one.handle(Skipped(2), 0.0) == [Dispatch(3, "c")]
    assert one.num_retries == 0
    assert one.handle(Skipped(3), 0.0) == [Dispatch(4, "d")]
    assert one.handle(Skipped(4), 0.0) == [GiveUp(4, None, False, None)]


def test_refused_money_ends_the_request() -> None:
    assert machine().handle(Blocked(1), 0.1) == [GiveUp(1, None, False, None)]


def test_first_token_timeout_cancels_and_falls_over() -> None:
    one = machine()
    one.handle(Read(1, [ROLE]), 5.0)  # a role frame does not stop the clock

    assert one.next_deadline() == 10.0
    assert one.handle(Tick(), 10.0) == [OpenClient()]
    assert one.handle(Tick(), 20.0) == [
        Cancel(1, FailureClass.TIMEOUT_FIRST_TOKEN),
        Dispatch(2, "b"),
    ]


def test_status_line_goes_out_after_ten_seconds_and_failover_still_works() -> None:
    one = machine()

    assert one.handle(Tick(), 10.0) == [OpenClient()]
    assert one.handle(Failed(1, FailureClass.SERVER_ERROR), 11.0) == [Dispatch(2, "b")]
    one.handle(Sent(2, 20.0), 11.0)
    assert one.handle(Read(2, [TOKEN]), 12.0) == [Commit(2), Forward(2, [TOKEN])]


def test_error_after_the_early_status_line_is_in_band() -> None:
    one = machine("a")
    one.handle(Tick(), 10.0)

    assert one.handle(Failed(1, FailureClass.OVERLOADED), 11.0) == [
        GiveUp(1, FailureClass.OVERLOADED, True, None)
    ]


def test_plain_request_is_never_opened_early() -> None:
    one = machine(limits=AttemptLimits(is_stream=False))

    assert one.next_deadline() == 20.0
    assert one.handle(Tick(), 15.0) == []
    assert one.handle(Answered(1), 16.0) == [Commit(1), Deliver(1)]


def test_keep_alives_fill_silence_of_fifteen_seconds() -> None:
    one = machine(limits=AttemptLimits(is_stream=True, idle_s=60.0))
    one.handle(Read(1, [TOKEN]), 1.0)

    assert one.next_deadline() == 16.0
    assert one.handle(Tick(), 16.0) == [KeepAlive()]
    one.handle(Read(1, [TOKEN]), 20.0)
    assert one.handle(Tick(), 31.0) == []
    assert one.handle(Tick(), 35.0) == [KeepAlive()]


def test_keep_alives_can_be_switched_off() -> None:
    one = machine(limits=AttemptLimits(is_stream=True, keep_alive_s=0.0))
    one.handle(Read(1, [TOKEN]), 1.0)

    assert one.next_deadline() == 31.0


def test_silent_upstream_is_cut_after_the_idle_time() -> None:
    one = machine(limits=AttemptLimits(is_stream=True, keep_alive_s=0.0))
    one.handle(Read(1, [TOKEN]), 1.0)

    assert one.handle(Tick(), 31.0) == [
        Cancel(1, FailureClass.TIMEOUT_IDLE),
        GiveUp(1, FailureClass.TIMEOUT_IDLE, True, None),
    ]


def test_upstream_comments_reset_the_idle_timer_but_not_the_content_timer() -> None:
    one = machine(limits=AttemptLimits(is_stream=True, keep_alive_s=0.0))
    one.handle(Read(1, [TOKEN]), 0.0)
    for second in range(20, 300, 20):
        assert one.handle(Read(1, []), float(second)) == []
        assert one.handle(Tick(), float(second)) == []

    assert one.next_deadline() == 300.0
    assert one.handle(Tick(), 300.0)[0] == Cancel(1, FailureClass.TIMEOUT_IDLE)


def test_pings_do_not_reset_the_content_timer() -> None:
    ping = Piece(kind=PieceKind.META, event="ping")
    one = machine(limits=AttemptLimits(is_stream=True, keep_alive_s=0.0))
    one.handle(Read(1, [TOKEN]), 0.0)
    for second in range(20, 300, 20):
        one.handle(Read(1, [ping]), float(second))

    assert one.handle(Tick(), 300.0)[0] == Cancel(1, FailureClass.TIMEOUT_IDLE)


def test_missing_end_mark_after_the_finish_reason_is_waited_for_briefly() -> None:
    one = machine()
    one.handle(Read(1, [TOKEN, FINISH]), 1.0)

    assert one.next_deadline() == 6.0
    assert one.handle(Tick(), 6.0) == [Finish(1)]


def test_other_choices_may_go_on_after_one_finish_reason() -> None:
    one = machine(limits=AttemptLimits(is_stream=True, num_choices=2, keep_alive_s=0.0))
    one.handle(Read(1, [TOKEN, FINISH]), 1.0)

    assert one.next_deadline() == 31.0
    assert one.handle(Read(1, [TOKEN]), 20.0) == [Forward(1, [TOKEN])]
    one.handle(Read(1, [FINISH]), 21.0)
    assert one.next_deadline() == 26.0


def test_total_deadline_ends_the_request() -> None:
    one = machine(limits=AttemptLimits(is_stream=True, total_s=15.0))

    assert one.handle(Tick(), 15.0) == [
        Cancel(1, FailureClass.TIMEOUT_FIRST_TOKEN),
        GiveUp(1, FailureClass.TIMEOUT_FIRST_TOKEN, False, None),
    ]


def test_stream_without_content_falls_over() -> None:
    one = machine("ab")

    assert one.handle(Read(1, [ROLE, FINISH, DONE]), 0.1) == [
        Cancel(1, FailureClass.SERVER_ERROR),
        Dispatch(2, "b"),
    ]


@pytest.mark.parametrize("finish", ["length", "content_filter", "tool_calls", "max_tokens"])
def test_empty_stream_with_a_telling_finish_reason_is_an_answer(finish: str) -> None:
    ended = Piece(kind=PieceKind.FINISH, finish=finish)

    assert machine().handle(Read(1, [ROLE, ended, DONE]), 0.1) == [
        Commit(1),
        OpenClient(),
        Forward(1, [ROLE, ended, DONE]),
        Finish(1),
    ]


def test_empty_stream_with_billed_hidden_tokens_is_an_answer() -> None:
    actions = machine().handle(Read(1, [ROLE, FINISH, USAGE, DONE]), 0.1)

    assert actions[-1] == Finish(1)


def test_too_much_before_the_first_token_is_a_fault_of_the_endpoint() -> None:
    flood = Piece(kind=PieceKind.META, payload=bytes(BUFFERED_BYTES_MAX // 2 + 1))
    one = machine("ab")

    assert one.handle(Read(1, [flood]), 0.1) == []
    assert one.handle(Read(1, [flood]), 0.2) == [
        Cancel(1, FailureClass.SERVER_ERROR),
        Dispatch(2, "b"),
    ]


def test_large_first_token_is_not_held_against_the_endpoint() -> None:
    big = Piece(kind=PieceKind.GENERATED, payload=bytes(2 * BUFFERED_BYTES_MAX))

    assert machine().handle(Read(1, [ROLE, big]), 0.1)[0] == Commit(1)


def test_client_that_leaves_closes_the_attempt() -> None:
    one = machine()
    one.handle(Read(1, [TOKEN]), 0.1)

    assert one.handle(ClientGone(), 0.2) == [Cancel(1, FailureClass.CLIENT_GONE), Abandon(1)]
    assert one.handle(Read(1, [TOKEN]), 0.3) == []


def test_shutdown_is_told_in_band_once_the_stream_runs() -> None:
    one = machine()
    one.handle(Read(1, [TOKEN]), 0.1)

    assert one.handle(Stop(), 0.2) == [
        Cancel(1, FailureClass.CLIENT_GONE),
        GiveUp(1, None, True, None, is_shutdown=True),
    ]


def test_late_events_of_a_replaced_attempt_change_nothing() -> None:
    one = machine()
    one.handle(Failed(1, FailureClass.CONNECT), 0.1)
    one.handle(Sent(2, 20.0), 0.1)

    for late in (Read(1, [TOKEN]), Failed(1, FailureClass.CONNECT), Answered(1), Sent(1, 0.0)):
        assert one.handle(late, 0.2) == []
    assert one.committed is None
