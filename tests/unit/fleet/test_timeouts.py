"""How long an endpoint is given, learned from what it took."""

from __future__ import annotations

import pytest

from gateway.core import Lane
from gateway.fleet.whole_times import whole_timeout_s
from gateway.wire.usage import Usage
from tests.support.estimator_world import World
from tests.support.fleet_world import facts, failed, whole


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


def answered(world: World, num: int = 100, *, in_flight: int = 1, slow: float = 1.0) -> None:
    """Whole answers, one second and a fiftieth of one a token alone."""
    for _ in range(num):
        world.now_s += 1.0
        tokens = world.rng.randint(20, 600)
        seconds = slow * (1.0 + tokens / 50.0)
        outcome = whole(world.now_s, seconds=seconds, tokens=tokens, in_flight=in_flight)
        world.estimator.observe(outcome, world.now_s)


def timeout_s(world: World, tokens: float, in_flight: int = 1, **changes: object) -> float:
    asked = facts(stream=False, **changes)
    return whole_timeout_s(world.estimator, asked, tokens, in_flight, world.now_s)


def cut(world: World, *, at_s: float, dispatched_s: float) -> None:
    late = failed(at_s, "timeout_first_token", stream=False, dispatched_at_s=dispatched_s)
    world.estimator.observe(late, at_s)


def test_timeout_of_a_whole_answer_grows_with_its_expected_length() -> None:
    world = World()
    answered(world)

    assert timeout_s(world, 50.0) == 10.0
    assert 60.0 < timeout_s(world, 1_000.0) < 90.0
    assert timeout_s(world, 100_000.0) == 600.0


def test_whole_answers_are_learned_as_of_an_endpoint_alone_and_waited_for_under_its_load() -> None:
    """Streams taught that it slows down from four at once; whole answers came while eight ran."""
    world = World()
    world.estimator.slowdown.places = 4.0
    answered(world, in_flight=8, slow=2.0)

    assert world.estimator.whole.per_token_s == pytest.approx(1.0 / 50.0, rel=0.1)
    told = world.estimator.stats("e", world.now_s)
    assert told.e2e_s_per_token == pytest.approx(1.0 / 50.0, rel=0.1)
    alone_s = timeout_s(world, 1_000.0)
    assert 60.0 < alone_s < 90.0
    assert timeout_s(world, 1_000.0, in_flight=4) == alone_s
    assert timeout_s(world, 1_000.0, in_flight=16) == pytest.approx(4.0 * alone_s)


def test_who_waits_is_not_kept_longer_by_load_that_was_never_seen_to_matter() -> None:
    world = World()
    answered(world)

    assert timeout_s(world, 1_000.0, in_flight=40) == timeout_s(world, 1_000.0)


def test_answers_cut_side_by_side_double_the_timeout_once_and_an_answer_ends_that() -> None:
    world = World()
    answered(world)
    waits = []
    for _ in range(5):
        began_s = world.now_s
        waits.append(timeout_s(world, 50.0))
        world.now_s += waits[-1]
        for _ in range(7):
            cut(world, at_s=world.now_s, dispatched_s=began_s)
        world.now_s += 1.0
    assert waits == [10.0, 20.0, 40.0, 80.0, 120.0]
    answered(world, 1)

    assert timeout_s(world, 50.0) == 10.0


def test_a_batch_line_is_given_what_all_beside_it_may_take_and_five_minutes_at_least() -> None:
    world = World()
    answered(world)
    tight_s = timeout_s(world, 1_000.0)

    assert timeout_s(world, 50.0, lane=Lane.BATCH) == 300.0
    assert timeout_s(world, 1_000.0, 7, lane=Lane.BATCH) == pytest.approx(7.0 * tight_s)
    assert timeout_s(world, 1_000.0, 64, lane=Lane.BATCH) == 600.0


def test_a_batch_line_leaves_half_of_its_time_for_another_endpoint() -> None:
    world = World()
    answered(world)
    tight_s = timeout_s(world, 1_000.0)

    assert timeout_s(world, 50.0, lane=Lane.BATCH, deadline_s=200.0) == 100.0
    assert timeout_s(world, 50.0, lane=Lane.BATCH, deadline_s=86_400.0) == 300.0
    # Never less than who waits for an answer would give it.
    assert timeout_s(world, 1_000.0, lane=Lane.BATCH, deadline_s=20.0) == tight_s
    # A deadline of who waits says what to choose, not how long to hang.
    assert timeout_s(world, 50.0, deadline_s=200.0) == 10.0
