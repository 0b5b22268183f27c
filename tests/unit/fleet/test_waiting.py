"""An endpoint that has gone quiet while streams wait there is sent nobody until one is answered."""

from __future__ import annotations

from gateway.fleet.fleet import Fleet
from gateway.fleet.waiting import QUIET_MIN_S, WAITING_MIN
from tests.support.fleet_world import Clock, facts, failed, make_fleet, serve

HUNG = "fast/m"


def test_several_that_wait_too_long_make_it_quiet() -> None:
    clock, fleet = _warm()
    for _ in range(WAITING_MIN):
        fleet.started(HUNG, is_stream=True)
    assert not _is_silent(fleet)
    clock.advance(QUIET_MIN_S + 2.0)
    assert _is_silent(fleet)


def test_one_slow_stream_says_nothing() -> None:
    clock, fleet = _warm()
    fleet.started(HUNG, is_stream=True)
    clock.advance(30.0)
    assert not _is_silent(fleet)


def test_a_first_token_ends_the_doubt_at_once() -> None:
    clock, fleet = _warm()
    for _ in range(WAITING_MIN + 1):
        fleet.started(HUNG, is_stream=True)
    clock.advance(QUIET_MIN_S + 2.0)
    assert _is_silent(fleet)
    fleet.first_token(HUNG)
    assert not _is_silent(fleet)


def test_whole_answers_are_not_waited_for() -> None:
    clock, fleet = _warm()
    for _ in range(10):
        fleet.started(HUNG)
    clock.advance(30.0)
    assert not _is_silent(fleet)


def test_a_whole_answer_that_was_never_sent_takes_no_stream_away() -> None:
    clock, fleet = _warm()
    for _ in range(WAITING_MIN):
        fleet.started(HUNG, is_stream=True)
    fleet.started(HUNG)
    fleet.abandoned(HUNG)
    clock.advance(QUIET_MIN_S + 2.0)
    assert _is_silent(fleet)


def test_streams_that_end_leave_nobody_waiting() -> None:
    clock, fleet = _warm()
    for _ in range(WAITING_MIN):
        fleet.started(HUNG, is_stream=True)
    for _ in range(WAITING_MIN):
        fleet.observe(failed(clock(), "timeout_first_token", endpoint_id=HUNG))
    clock.advance(30.0)
    assert not _is_silent(fleet)


def _warm() -> tuple[Clock, Fleet]:
    clock = Clock()
    fleet = make_fleet(HUNG, clock=clock)
    serve(fleet, clock, HUNG, 40)
    return clock, fleet


def _is_silent(fleet: Fleet) -> bool:
    fleet.snapshot()
    return fleet.view(facts(), [HUNG]).live[HUNG].is_silent
