"""The circuit breaker on virtual time."""

from __future__ import annotations

import pytest

from gateway.fleet.breaker import PROBE_EXPIRES_S, TURN_S, Breaker
from tests.support.fleet_world import FixedRng


class Low(FixedRng):
    def random(self) -> float:
        return 0.0


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(FixedRng(), at_s)
    for _ in range(3):
        breaker.failed(at_s, at_s)
    return breaker


def test_third_failure_in_a_row_opens_it_for_ten_seconds() -> None:
    breaker = Breaker(FixedRng(), 0.0)
    assert [breaker.failed(0.0, 0.0) for _ in range(3)] == [False, False, True]

    assert breaker.status(0.0) == ("open", 10.0)
    assert not breaker.may_send(9.9)
    assert breaker.status(10.0) == ("half_open", 0.0)


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(FixedRng(), 0.0)
    for _ in range(2):
        breaker.failed(0.0, 0.0)
        breaker.succeeded(0.0, 0.0)

    assert breaker.status(0.0)[0] == "closed"


def test_less_than_half_success_of_six_samples_opens_it() -> None:
    breaker = Breaker(FixedRng(), 0.0)
    moves = [
        breaker.failed(0.0, 0.0) if is_failure else breaker.succeeded(0.0, 0.0)
        for is_failure in (True, True, False, True, False, True, True)
    ]

    assert moves == [False] * 5 + [True, False]
    assert breaker.status(0.0)[0] == "open"


def test_old_failures_have_lost_their_weight() -> None:
    breaker = Breaker(FixedRng(), 0.0)
    for at_s in range(0, 2_000, 120):  # two in a row, every four minutes a success
        breaker.failed(float(at_s), float(at_s))
        if at_s % 240 == 0:
            breaker.succeeded(float(at_s), float(at_s))

    assert breaker.is_closed


def test_half_open_lets_exactly_one_request_through() -> None:
    breaker = opened()

    assert [breaker.may_send(11.0) for _ in range(3)] == [True, False, False]
    assert breaker.status(11.0)[0] == "open"


def test_open_breaker_refuses_until_probe_succeeds() -> None:
    breaker = opened()
    assert breaker.may_send(10.0)
    assert breaker.succeeded(10.0, 12.0)

    assert breaker.status(12.0) == ("closed", 0.0)
    assert breaker.failed(12.0, 12.0) is False


def test_failed_probe_doubles_the_time_up_to_two_minutes() -> None:
    breaker, now_s, waits = opened(), 0.0, []
    for _ in range(6):
        waits.append(breaker.status(now_s)[1])
        now_s += waits[-1]
        assert breaker.may_send(now_s)
        assert breaker.failed(now_s, now_s)

    assert waits == [10.0, 20.0, 40.0, 80.0, 120.0, 120.0]


def test_reopening_soon_after_closing_goes_on_doubling_and_later_starts_anew() -> None:
    for calm_s, expected_s in ((60.0, 20.0), (121.0, 10.0)):
        breaker = opened()
        breaker.may_send(10.0)
        breaker.succeeded(10.0, 10.0)
        now_s = 10.0 + calm_s
        for _ in range(3):
            breaker.failed(now_s, now_s)
        assert breaker.status(now_s) == ("open", expected_s)


def test_jitter_spreads_reopening_by_a_fifth() -> None:
    breaker = Breaker(Low(), 0.0)
    for _ in range(3):
        breaker.failed(0.0, 0.0)

    assert breaker.status(0.0)[1] == pytest.approx(8.0)


def test_probe_whose_client_left_does_not_wedge_half_open() -> None:
    breaker = opened()
    assert breaker.may_send(10.0)
    breaker.release(10.0)

    assert breaker.status(10.5) == ("half_open", 0.0)
    assert breaker.may_send(10.5)


def test_probe_that_never_reports_frees_its_place_in_the_end() -> None:
    breaker = opened()
    breaker.may_send(10.0)

    assert not breaker.may_send(10.0 + PROBE_EXPIRES_S - 0.1)
    assert breaker.may_send(10.0 + PROBE_EXPIRES_S)


def test_stragglers_sent_before_the_probe_are_no_verdict() -> None:
    breaker = opened()
    breaker.may_send(10.0)

    assert not breaker.succeeded(2.0, 11.0)  # a long stream from before the outage
    assert not breaker.failed(2.0, 11.0)
    assert breaker.status(11.0)[0] == "open"
    assert breaker.succeeded(10.0, 12.0)


def test_failures_while_open_do_not_prolong_it() -> None:
    breaker = opened()
    for _ in range(50):
        breaker.failed(-1.0, 5.0)

    assert breaker.status(5.0) == ("open", 5.0)


def test_panic_lets_one_request_through_an_open_breaker_and_believes_it() -> None:
    breaker = opened()
    assert not breaker.may_send(3.0)
    assert breaker.may_send(3.0, in_panic=True)
    assert not breaker.may_send(3.0, in_panic=True)
    assert breaker.succeeded(3.0, 4.0)

    assert breaker.is_closed


def test_closing_forgives_the_failures_that_opened_it() -> None:
    breaker = Breaker(FixedRng(), 0.0)
    for is_failure in (True, True, False, True, True, False, True, True):
        (breaker.failed if is_failure else breaker.succeeded)(0.0, 0.0)
    assert breaker.may_send(10.0)
    breaker.succeeded(10.0, 10.0)
    breaker.failed(11.0, 11.0)

    assert breaker.is_closed


def test_probe_of_another_replica_counts_as_own() -> None:
    breaker = opened()
    assert breaker.heard(False, 9.0, 9.5)
    assert breaker.status(9.5) == ("open", 20.0)
    assert breaker.heard(True, 30.0, 31.0)
    assert breaker.status(31.0) == ("closed", 0.0)


def test_what_another_sent_before_it_knew_is_no_probe() -> None:
    breaker = opened()
    assert not breaker.heard(False, 7.9, 9.0)
    assert not breaker.heard(True, 7.9, 9.0)
    assert breaker.status(9.0) == ("open", 1.0)


def test_results_elsewhere_open_a_closed_one_as_own_do() -> None:
    breaker = Breaker(FixedRng(), 0.0)
    assert [breaker.heard(False, 0.0, 1.0) for _ in range(3)] == [False, False, True]


def test_own_probe_is_no_verdict_once_another_failed() -> None:
    breaker = opened()
    assert breaker.may_send(10.0)
    assert breaker.heard(False, 10.5, 11.0)

    assert not breaker.succeeded(10.0, 12.0)
    assert breaker.status(12.0) == ("open", 19.0)


def test_the_more_replicas_the_longer_until_each_probes() -> None:
    for num_others, expected_s in ((0, 10.0), (1, 10.0 + 0.5 * TURN_S), (15, 10.0 + 7.5 * TURN_S)):
        breaker = Breaker(FixedRng(), 0.0)
        breaker.num_others = num_others
        for _ in range(3):
            breaker.failed(0.0, 0.0)

        assert breaker.status(0.0)[1] == pytest.approx(expected_s)
