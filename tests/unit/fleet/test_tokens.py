"""Ratios of characters, bytes, hidden and billed tokens."""

from __future__ import annotations

import pytest

from gateway.wire.usage import Usage
from tests.support.estimator_world import World
from tests.support.fleet_world import streamed


def test_characters_a_token_are_learned_and_give_speed_where_usage_is_missing() -> None:
    world = World()
    world.streams(200, visible_chars=500)
    assert world.estimator.tokens.characters_per_token == pytest.approx(2.5, rel=0.02)
    fresh = world.rate
    world.streams(40, visible_chars=500, usage=None)

    assert world.rate == pytest.approx(fresh, rel=0.08)


def test_tokens_a_byte_reach_their_p99_only_after_enough_prompts() -> None:
    world = World()
    for idx in range(150):
        dense = idx % 20 == 0
        world.estimator.observe(
            streamed(world.now_s, prompt=900 if dense else 250, text_bytes=1_000), world.now_s
        )
        if idx == 50:
            assert world.estimator.tokens.per_byte_p99() == pytest.approx(0.9, rel=0.03)
    assert world.estimator.tokens.per_byte_p99() == pytest.approx(0.9, rel=0.03)

    plain = World()
    plain.estimator.observe(streamed(plain.now_s, prompt=100, text_bytes=1_000), plain.now_s)
    assert plain.estimator.tokens.per_byte_p99() == 0.5


def test_a_bill_that_nobody_saw_takes_the_most_that_prompts_of_such_a_size_have() -> None:
    world = World()
    tokens = world.estimator.tokens
    assert tokens.prompt_tokens_most(100, world.now_s) == 50  # nothing was seen
    for idx in range(40):
        for prompt, num_bytes in ((30 + idx % 3, 100), (250 + idx % 5, 1_000)):
            world.estimator.observe(
                streamed(world.now_s, prompt=prompt, text_bytes=num_bytes), world.now_s
            )
    world.now_s += 1.0  # looked up once a second

    # The template outweighs a short text, so the two sizes are learned apart.
    assert 32 <= tokens.prompt_tokens_most(100, world.now_s) <= 35
    assert 254 <= tokens.prompt_tokens_most(1_000, world.now_s) <= 273


def test_what_was_learned_of_short_prompts_outlives_a_restart() -> None:
    world, other = World(), World()
    for _ in range(40):
        world.estimator.observe(streamed(world.now_s, prompt=32, text_bytes=100), world.now_s)
    state = world.estimator.tokens.export(world.now_s)
    other.estimator.tokens.load(state, other.now_s, 0.0)

    assert 32 <= other.estimator.tokens.prompt_tokens_most(100, other.now_s) <= 35


def test_images_do_not_count_as_tokens_of_text() -> None:
    world = World()
    world.estimator.observe(
        streamed(world.now_s, prompt=9_000, text_bytes=300, num_images=2), world.now_s
    )

    assert world.estimator.tokens.per_byte_p99() == 0.5


def test_hidden_reasoning_and_billed_failures_are_waste() -> None:
    world = World()
    world.streams(50)
    assert world.estimator.tokens.waste == pytest.approx(1.0, abs=0.01)
    world.streams(300, usage=Usage(input=0, output=200, reasoning=200))
    assert world.estimator.tokens.waste > 1.5

    broken = World()
    broken.streams(50)
    broken.streams(50, failure="stream_broken")
    assert broken.estimator.tokens.waste > 1.5
