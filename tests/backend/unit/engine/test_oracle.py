"""Every row that the engine computes, however it was batched, equals transformers' own."""

from __future__ import annotations

import random

import pytest

from tests.support.engine_world import EngineWorld, MakeWorld, Tiny, bytes_for, random_prompt

TOLERANCE = 1e-4


@pytest.fixture
def rng() -> random.Random:
    return random.Random(3)


def assert_equal(world: EngineWorld, tiny: Tiny) -> None:
    """Logits of every row, and the greedy text, of every request."""
    for name, answer in world.answers.items():
        assert world.largest_error(tiny.reference, name) < TOLERANCE
        assert tiny.is_greedy(answer.prompt, answer.token_ids)


def test_prefill_and_decode(tiny: Tiny, make_world: MakeWorld, rng: random.Random) -> None:
    world = make_world()

    answer = world.ask(random_prompt(rng, 13), max_tokens=20)

    assert answer.token_ids == tiny.greedy(answer.prompt, 20)
    assert world.positions("r0") == list(range(13 + 19))
    assert_equal(world, tiny)


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 64, 101])
def test_chunked_prefill(
    tiny: Tiny, make_world: MakeWorld, rng: random.Random, num_tokens: int
) -> None:
    world = make_world(rows_max=24, prefills_max=2)

    world.ask(random_prompt(rng, num_tokens), max_tokens=4)

    assert world.positions("r0") == list(range(num_tokens + 3))
    assert len(world.steps) >= num_tokens / 24 + 3
    assert_equal(world, tiny)


def test_prefix_hit(tiny: Tiny, make_world: MakeWorld, rng: random.Random) -> None:
    world = make_world()
    prompt = random_prompt(rng, 21)
    first = world.ask(prompt, max_tokens=12)
    # The next turn of a conversation: prompt, answer and something new.
    longer = [*prompt, *first.token_ids, *random_prompt(rng, 5)]

    again = world.ask(longer, max_tokens=6)

    # Of 33 tokens the last has never been computed; 32 fill four blocks.
    assert again.events[-1].num_cached_tokens == 32
    assert min(world.positions("r1")) == 32
    assert_equal(world, tiny)


@pytest.mark.parametrize("num_answer", [10, 11, 12])
def test_the_last_token_of_an_answer_is_in_no_cached_block(
    tiny: Tiny, make_world: MakeWorld, rng: random.Random, num_answer: int
) -> None:
    """Prompt and answer are 15, 16 and 17 tokens; what comes last was drawn, never computed."""
    world = make_world()
    first = world.ask(random_prompt(rng, 5), max_tokens=num_answer)

    again = world.ask([*first.prompt, *first.token_ids, *random_prompt(rng, 3)])

    assert again.events[-1].num_cached_tokens == (16 if num_answer == 12 else 8)
    assert_equal(world, tiny)


@pytest.mark.parametrize("num_tokens", [16, 17])
def test_the_same_prompt_again_is_computed_from_its_last_token_or_block(
    tiny: Tiny, make_world: MakeWorld, rng: random.Random, num_tokens: int
) -> None:
    world = make_world()
    prompt = random_prompt(rng, num_tokens)
    world.ask(prompt, max_tokens=3)

    again = world.ask(prompt, max_tokens=3)

    assert again.token_ids == world.answers["r0"].token_ids
    is_whole = num_tokens == 16
    assert min(world.positions("r1")) == (15 if is_whole else 16)
    assert sum(len(step.copies) for step in world.steps) == is_whole
    assert_equal(world, tiny)


def test_a_block_copied_on_write_leaves_its_readers_alone(
    tiny: Tiny, make_world: MakeWorld, rng: random.Random
) -> None:
    """Two requests with one prompt of whole blocks, while the first is still decoding."""
    world = make_world()
    prompt = random_prompt(rng, 16)
    world.add(prompt, max_tokens=30)
    for _ in range(4):
        world.step()
    world.add(prompt, max_tokens=30, logit_bias={9: 50.0})

    world.run()

    assert world.answers["r1"].token_ids == [9] * 30
    for name in ("r0", "r1"):
        assert world.largest_error(tiny.reference, name) < TOLERANCE
    assert tiny.is_greedy(prompt, world.answers["r0"].token_ids)


def test_tenants_share_no_prefix(tiny: Tiny, make_world: MakeWorld, rng: random.Random) -> None:
    world = make_world()
    prompt = random_prompt(rng, 24)
    world.ask(prompt, tenant=b"a")

    other = world.ask(prompt, tenant=b"b")
    same = world.ask(prompt, tenant=b"b")

    assert other.events[-1].num_cached_tokens == 0
    assert same.events[-1].num_cached_tokens == 23
    assert_equal(world, tiny)


def test_mixed_batches(tiny: Tiny, make_world: MakeWorld, rng: random.Random) -> None:
    world = make_world(rows_max=40)
    for number in range(10):
        world.add(random_prompt(rng, 3 + 7 * number), max_tokens=10 + number)
        world.step()

    world.run()

    mixed = [step for step in world.steps if step.decodes and step.chunks]
    assert len(mixed) > 5
    assert max(len(step.decodes) for step in world.steps) > 4
    assert_equal(world, tiny)


def test_preemption(tiny: Tiny, make_world: MakeWorld, rng: random.Random) -> None:
    """Blocks for two and a half answers, and four of them."""
    num_blocks = 14
    world = make_world(
        kv_cache_bytes=bytes_for(tiny.model, num_blocks), context_len_max=96, sequences_max=4
    )
    for _ in range(4):
        world.add(random_prompt(rng, 10), max_tokens=40)

    world.run()

    assert world.engine.load().num_preemptions > 0
    assert all(len(answer.token_ids) == 40 for answer in world.answers.values())
    recomputed = [name for name in world.answers if len(world.positions(name)) > 49]
    assert recomputed
    assert_equal(world, tiny)


def test_preemption_without_prefix_cache(
    tiny: Tiny, make_world: MakeWorld, rng: random.Random
) -> None:
    world = make_world(
        kv_cache_bytes=bytes_for(tiny.model, 14),
        context_len_max=96,
        sequences_max=4,
        is_prefix_cached=False,
    )
    for _ in range(4):
        world.add(random_prompt(rng, 10), max_tokens=40)

    world.run()

    assert world.engine.load().num_preemptions > 0
    assert_equal(world, tiny)
