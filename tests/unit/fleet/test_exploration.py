"""Exploration credits, probes and share counters."""

from __future__ import annotations

from gateway.fleet.exploration import Credits, MinuteCounter, ProbeBudget


def test_fifty_requests_earn_one_credit() -> None:
    purse = Credits()
    for _ in range(49):
        purse.accrue()
    assert not purse.spend()
    purse.accrue()

    assert purse.spend()
    assert not purse.spend()


def test_at_most_twenty_credits_pile_up() -> None:
    purse = Credits()
    for _ in range(5_000):
        purse.accrue()

    assert [purse.spend() for _ in range(21)] == [True] * 20 + [False]


def test_exploration_costs_two_percent_of_requests_at_most() -> None:
    purse, num_spent = Credits(), 0
    for _ in range(10_000):
        purse.accrue()
        num_spent += purse.spend()

    assert 199 <= num_spent <= 200


def test_endpoint_is_probed_once_in_ten_minutes() -> None:
    budget = ProbeBudget()
    assert not budget.is_spent(0.0)
    budget.sent(1_000_000, 600.0)
    assert budget.is_spent(1_199.0)

    assert not budget.is_spent(1_200.0)


def test_probes_cost_a_cent_an_hour_at_most() -> None:
    budget = ProbeBudget()
    budget.sent(8_000_000, 600.0)
    assert not budget.is_spent(1_200.0)
    budget.sent(1_000_000, 1_200.0)
    assert budget.is_spent(4_199.0)

    assert not budget.is_spent(4_200.0)


def test_counter_forgets_what_is_older_than_asked() -> None:
    counter = MinuteCounter()
    for now_s in (0.0, 30.0, 70.0, 130.0):
        counter.add(now_s)

    assert counter.last(1, 130.0) == 1
    assert counter.last(2, 130.0) == 2
    assert counter.last(5, 130.0) == 4
    assert counter.last(15, 130.0 + 15 * 60.0) == 0
    assert counter.last(15, 1e9) == 0
