"""How long an endpoint is given, learned from what it took."""

from __future__ import annotations

import pytest

from gateway.wire.usage import Usage
from tests.support.estimator_world import World
from tests.support.fleet_world import failed, whole


def test_first_token_timeout_is_three_times_p99_for_this_prompt() -> None:
    world = World()
    world.streams(300, base_s=3.0, prefill=1_000.0)
    p99_s = world.estimator.histograms["ttft_base"].quantile(0.99) or 0.0
    short_s = world.estimator.first_token_timeout_s(0.0, world.now_s)

    assert short_s == pytest.approx(3.0 * p99_s, rel=0.02)
    assert world.estimator.first_token_timeout_s(4_000.0, world.now_s) > 1.8 * short_s
    assert world.estimator.first_token_timeout_s(1e6, world.now_s) == 120.0


def test_fast_endpoint_still_gets_ten_seconds() -> None:
    world = World()
    world.streams(100)

    assert world.estimator.first_token_timeout_s(1_000.0, world.now_s) == 10.0


def test_cold_endpoint_is_given_time_and_more_after_each_timeout() -> None:
    world = World()
    waits = []
    for _ in range(4):
        waits.append(world.estimator.first_token_timeout_s(100.0, world.now_s))
        world.estimator.observe(failed(world.now_s, "timeout_first_token"), world.now_s)
    assert waits == [30.0, 60.0, 120.0, 120.0]
    world.streams(10)

    assert world.estimator.first_token_timeout_s(100.0, world.now_s) == 10.0


def test_reasoning_endpoint_is_not_cut_off_while_it_thinks() -> None:
    world = World()
    assert world.estimator.first_token_timeout_s(10.0, 0.0, wants_reasoning=True) == 120.0
    world.streams(100, base_s=80.0, usage=Usage(input=500, output=200, reasoning=3_000))

    assert world.estimator.first_token_timeout_s(500.0, world.now_s) == 300.0


def test_timeout_of_a_whole_answer_grows_with_its_expected_length() -> None:
    world = World()
    for _ in range(100):
        world.now_s += 1.0
        tokens = world.rng.randint(20, 600)
        world.estimator.observe(
            whole(world.now_s, seconds=1.0 + tokens / 50.0, tokens=tokens), world.now_s
        )

    assert world.estimator.whole_timeout_s(50.0, world.now_s) == 10.0
    assert 60.0 < world.estimator.whole_timeout_s(1_000.0, world.now_s) < 90.0
    assert world.estimator.whole_timeout_s(100_000.0, world.now_s) == 600.0
