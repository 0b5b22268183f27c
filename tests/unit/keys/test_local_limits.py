"""Limits in memory: windows that refill evenly, places that are freed once, a tight share."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import Caller
from gateway.errors import Overloaded, RateLimited
from gateway.keys import window
from gateway.keys.limits import Limits
from gateway.keys.local_limits import LocalLimits
from gateway.wire.limits_headers import RateLimitState
from tests.support.clocks import TurnedClock


def _caller(
    key_id: str = "k",
    *,
    rpm: int | None = None,
    tpm: int | None = None,
    concurrency: int | None = None,
) -> Caller:
    return Caller(
        tenant_id="t",
        team_id="team",
        key_id=key_id,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        concurrency_max=concurrency,
    )


@pytest.fixture
def limits(clock: TurnedClock, wall_clock: TurnedClock) -> Limits:
    return Limits(clock=clock, wall_clock=wall_clock)


def _local(clock: TurnedClock, replicas: int = 1, **options: int) -> LocalLimits:
    return LocalLimits(clock=clock, wall_clock=clock, replicas=replicas, **options)


@given(
    limit=st.integers(1, 600),
    steps=st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 50)), min_size=1, max_size=40),
)
def test_window_admits_as_an_exact_token_bucket_does(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    # The reference counts tokens in fractions: `limit` at once, refilled by limit / 60 s.
    now_ms, full_at_s = 0, 0.0
    bucket, filled_ms = Fraction(limit), 0
    for wait_ms, cost in steps:
        now_ms += wait_ms
        bucket = min(Fraction(limit), bucket + Fraction((now_ms - filled_ms) * limit, 60_000))
        filled_ms = now_ms
        now_s = now_ms / 1000
        if abs(bucket - cost) > Fraction(1, 10_000):  # not at the edge, where floats may differ
            fits = window.wait_s(full_at_s, now_s, limit=limit, cost=cost) == 0.0
            assert fits == (bucket >= cost)
        if bucket >= cost and window.wait_s(full_at_s, now_s, limit=limit, cost=cost) == 0.0:
            bucket -= cost
            full_at_s = window.taken(full_at_s, now_s, limit=limit, cost=cost)
        assert abs(window.left(full_at_s, now_s, limit=limit) - int(bucket)) <= 1


@given(limit=st.integers(1, 1000), cost=st.integers(1, 1000), taken=st.integers(0, 1000))
def test_waiting_as_long_as_told_is_enough(limit: int, cost: int, taken: int) -> None:
    cost, taken = min(cost, limit), min(taken, limit)
    full_at_s = window.taken(0.0, 1000.0, limit=limit, cost=taken)
    wait_s = window.wait_s(full_at_s, 1000.0, limit=limit, cost=cost)

    assert window.wait_s(full_at_s, 1000.0 + wait_s + 1e-6, limit=limit, cost=cost) == 0.0


@pytest.mark.anyio
async def test_requests_a_minute_are_counted_and_refill_evenly(
    limits: Limits, clock: TurnedClock, wall_clock: TurnedClock
) -> None:
    caller = _caller(rpm=3)
    states = [(await limits.admit(caller, 1)).state for _ in range(3)]
    assert [state.remaining_requests for state in states if state] == [2, 1, 0]
    assert states[0] == RateLimitState(
        now_unix_s=wall_clock(), limit_requests=3, remaining_requests=2, reset_requests_s=20.0
    )

    with pytest.raises(RateLimited, match="3 requests a minute; try again in 20 s") as caught:
        await limits.admit(caller, 1)
    assert caught.value.retry_after_s == pytest.approx(20.0)
    state = caught.value.limit_state
    assert isinstance(state, RateLimitState)
    assert (state.exceeded, state.remaining_requests) == ("requests", 0)

    clock.turn(20.0)
    await limits.admit(caller, 1)
    with pytest.raises(RateLimited):
        await limits.admit(caller, 1)


@pytest.mark.anyio
async def test_tokens_are_taken_by_estimate_and_settled_by_use(
    limits: Limits, clock: TurnedClock
) -> None:
    caller = _caller(tpm=1000)
    ticket = await limits.admit(caller, 800)
    with pytest.raises(RateLimited, match="1000 tokens a minute") as caught:
        await limits.admit(caller, 300)
    assert caught.value.retry_after_s == pytest.approx(6.0)

    ticket.settle(100)
    ticket.close()
    second = await limits.admit(caller, 300)  # 700 came back
    assert second.state is not None
    assert second.state.remaining_tokens == 600

    second.settle(2900)  # far more than thought: a debt of 2000 tokens, two minutes
    second.close()
    clock.turn(119.0)
    with pytest.raises(RateLimited):
        await limits.admit(caller, 1)
    clock.turn(2.0)
    await limits.admit(caller, 1)


@pytest.mark.anyio
async def test_unsettled_request_keeps_its_estimate(limits: Limits) -> None:
    caller = _caller(tpm=1000)
    (await limits.admit(caller, 800)).close()
    with pytest.raises(RateLimited):
        await limits.admit(caller, 300)


@pytest.mark.anyio
async def test_request_larger_than_the_limit_can_never_pass_and_says_so(limits: Limits) -> None:
    with pytest.raises(RateLimited, match="can never be served") as caught:
        await limits.admit(_caller(tpm=1000), 1001)

    assert caught.value.should_retry is False
    assert caught.value.retry_after_s is None


@pytest.mark.anyio
async def test_places_are_freed_exactly_once(limits: Limits) -> None:
    caller = _caller(concurrency=2)
    first = await limits.admit(caller, 1)
    await limits.admit(caller, 1)
    with pytest.raises(RateLimited, match="2 requests at once") as caught:
        await limits.admit(caller, 1)
    assert caught.value.retry_after_s == 1.0
    assert first.state is None

    for _ in range(3):
        first.close()
    await limits.admit(caller, 1)
    with pytest.raises(RateLimited):
        await limits.admit(caller, 1)


@pytest.mark.anyio
async def test_refused_request_takes_nothing(limits: Limits, clock: TurnedClock) -> None:
    caller = _caller(rpm=10, tpm=100, concurrency=1)
    held = await limits.admit(caller, 10)
    for tokens in (10, 95):
        with pytest.raises(RateLimited):
            await limits.admit(caller, tokens)
    held.close()
    ticket = await limits.admit(caller, 10)

    assert ticket.state is not None
    assert (ticket.state.remaining_requests, ticket.state.remaining_tokens) == (8, 80)


@pytest.mark.anyio
async def test_keys_do_not_share_and_key_without_limits_leaves_no_trace(limits: Limits) -> None:
    await limits.admit(_caller("a", rpm=1), 1)
    await limits.admit(_caller("b", rpm=1), 1)
    free = [await limits.admit(_caller("c"), 10**9) for _ in range(100)]

    assert free[0].state is None
    for ticket in free:
        ticket.settle(5)
        ticket.close()
        ticket.close()


def test_share_of_many_replicas_together_is_the_limit() -> None:
    clock = TurnedClock(0.0)
    caller = _caller(rpm=60, tpm=6000, concurrency=8)
    replicas = [_local(clock, replicas=4) for _ in range(4)]
    admitted = sum(
        not replica.admit(caller, 10).exceeded for replica in replicas for _ in range(100)
    )
    assert admitted == 8

    caller = _caller(rpm=60)
    admitted = sum(
        not replica.admit(caller, 10).exceeded for replica in replicas for _ in range(100)
    )
    assert 60 - 8 <= admitted <= 60


def test_share_below_one_request_averages_to_the_limit() -> None:
    clock = TurnedClock(0.0)
    caller = _caller(rpm=2)
    replicas = [_local(clock, replicas=8) for _ in range(8)]
    admitted = 0
    for _ in range(60 * 20):
        clock.turn(1.0)
        admitted += sum(not replica.admit(caller, 1).exceeded for replica in replicas)

    assert admitted <= 8 + 2 * 20
    assert admitted >= 2 * 20


def test_requests_that_redis_admitted_leave_no_fresh_window_for_its_loss() -> None:
    clock = TurnedClock(0.0)
    caller = _caller(rpm=60)
    local = _local(clock, replicas=2)
    for _ in range(45):  # more than its share, as Redis may allow
        local.follow(caller, 1)
    assert local.admit(caller, 1).exceeded == "requests"
    clock.turn(60.0)
    assert not local.admit(caller, 1).exceeded  # and not in debt for long


def test_keys_in_memory_are_bounded_and_open_ones_are_not_forgotten() -> None:
    clock = TurnedClock(0.0)
    local = _local(clock, keys_max=3)
    held = _caller("held", concurrency=1)
    local.admit(held, 1)
    for i in range(10):
        local.admit(_caller(f"k{i}", concurrency=1), 1)
        local.close(_caller(f"k{i}", concurrency=1), 0)
    assert local.num_open("held") == 1
    assert local.admit(held, 1).exceeded == "concurrency"

    for i in range(2):
        local.admit(_caller(f"open{i}", concurrency=1), 1)
    with pytest.raises(Overloaded, match="more than 3 API keys"):
        local.admit(_caller("one more", concurrency=1), 1)
