"""Retries stay a fifth of the traffic and three."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.retry_budget import FLOOR, SHARE, RetryBudget


def test_lone_request_may_be_retried_thrice() -> None:
    budget = RetryBudget()
    budget.begin("t", 100.0)

    assert [budget.take("t", 100.0) for _ in range(4)] == [True, True, True, False]
    assert budget.num_denied == 1


def test_fifth_of_the_requests_may_be_retried_besides() -> None:
    budget = RetryBudget()
    for _ in range(50):
        budget.begin("t", 100.0)

    assert sum(budget.take("t", 100.0) for _ in range(50)) == 13


def test_permits_come_back_when_the_window_has_passed() -> None:
    budget = RetryBudget()
    budget.begin("t", 100.0)
    budget.end("t")
    for _ in range(3):
        budget.take("t", 100.0)

    assert not budget.take("t", 109.9)
    assert budget.take("t", 110.0)


def test_slow_failures_of_requests_in_flight_have_a_budget() -> None:
    budget = RetryBudget()
    for _ in range(50):
        budget.begin("t", 100.0)

    assert sum(budget.take("t", 190.0) for _ in range(50)) == 13


def test_tenant_that_retries_much_does_not_take_the_permits_of_others() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.begin("calm", 100.0)
    budget.begin("wild", 100.0)

    assert sum(budget.take("wild", 100.0) for _ in range(50)) == FLOOR
    assert budget.take("calm", 100.0)


def test_number_of_tenants_remembered_is_bounded() -> None:
    budget = RetryBudget(tenants_max=10)
    for number in range(1_000):
        budget.begin(f"t{number}", 100.0)
        budget.end(f"t{number}")

    assert len(budget._tenants) == 10


def test_f10_general_outage_does_not_multiply_the_load() -> None:
    """Half of all attempts fail everywhere, 100 requests a second, each wants two retries."""
    budget = RetryBudget()
    num_requests = num_attempts = 0
    for tick in range(900):
        now = 1000.0 + tick / 100
        budget.begin("t", now)
        num_requests += 1
        num_attempts += 1
        for _ in range(2):
            if (num_requests * 7 + num_attempts) % 2 and budget.take("t", now):
                num_attempts += 1
        budget.end("t")

    assert num_attempts <= (1 + SHARE) * num_requests + FLOOR


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 3.0)), max_size=200))
def test_retries_of_any_ten_seconds_are_bounded(steps: list[tuple[bool, float]]) -> None:
    budget = RetryBudget()
    now = 50.0
    requests: list[float] = []
    retries: list[float] = []
    for is_request, pause_s in steps:
        now += pause_s
        if is_request:
            budget.begin("t", now)
            budget.end("t")
            requests.append(now)
        elif budget.take("t", now):
            retries.append(now)
            recent = [at for at in requests if int(at) > int(now) - 10]
            spent = [at for at in retries if int(at) > int(now) - 10]
            assert len(spent) <= FLOOR + SHARE * len(recent)
