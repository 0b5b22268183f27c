"""What goes wrong in one request stays in it; what goes wrong in a step does not end the engine."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backend.engine.interface import FinishReason
from backend.errors import BadRequest
from tests.support.engine_world import EngineWorld, MakeWorld, Tiny, bytes_for, random_prompt


def prompts(count: int, num_tokens: int = 12) -> list[list[int]]:
    rng = random.Random(num_tokens)
    return [random_prompt(rng, num_tokens) for _ in range(count)]


def assert_unharmed(world: EngineWorld, tiny: Tiny, *names: str) -> None:
    for name in names:
        answer = world.answers[name]
        assert answer.error is None
        assert tiny.is_greedy(answer.prompt, answer.token_ids)
        assert answer.finish is FinishReason.LENGTH


def test_cancel_in_the_middle_of_a_prompt(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world(rows_max=24)
    other = world.add(prompts(1)[0], max_tokens=20)
    world.step()
    long = world.add(prompts(1, 200)[0])
    for _ in range(3):
        world.step()
    before = world.engine.load()

    world.engine.cancel(long)
    after = world.engine.load()
    world.run()

    assert before.waiting_prompt_tokens > 100
    assert before.kv_blocks_used - after.kv_blocks_used == 26
    assert after.num_running == 1
    assert world.answers[long].finish is FinishReason.CANCELLED
    assert_unharmed(world, tiny, other)


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_cancel_while_it_waits_begins_or_decodes(
    tiny: Tiny, make_world: MakeWorld, num_steps: int
) -> None:
    world = make_world()
    gone, other = (world.add(prompt, max_tokens=12) for prompt in prompts(2))
    for _ in range(num_steps):
        world.step()

    world.engine.cancel(gone)
    world.engine.cancel(gone)
    world.engine.cancel("nobody")
    world.run()

    assert len(world.answers[gone].token_ids) == num_steps
    assert world.answers[gone].finish is FinishReason.CANCELLED
    assert_unharmed(world, tiny, other)


def test_a_slot_is_clean_for_its_next_sequence(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world(sequences_max=1)
    long = prompts(1, 60)[0]
    first = world.add(long, logit_bias={11: 90.0}, presence_penalty=2.0, temperature=1.5)
    world.step()
    world.engine.cancel(first)

    second = world.ask(prompts(1)[0])

    assert world.answers[first].token_ids == [11]
    assert len(second.token_ids) == 8
    assert tiny.is_greedy(second.prompt, second.token_ids)


def test_an_error_in_one_request_s_sampling_ends_that_one(
    tiny: Tiny, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    set_slot = world.runner.sampler.set_slot

    def failing(slot: int, params: Any, seed: int, *ids: Any) -> None:
        if seed == 13:
            raise RuntimeError("a secret of the server")
        if seed == 14:
            raise BadRequest("logit_bias is nonsense", param="logit_bias")
        set_slot(slot, params, seed, *ids)

    monkeypatch.setattr(world.runner.sampler, "set_slot", failing)
    good, bad, worse, late = (
        world.add(prompt, seed=seed)
        for prompt, seed in zip(prompts(4), (1, 14, 13, 2), strict=True)
    )
    world.run()

    assert world.answers[bad].finish is world.answers[worse].finish is FinishReason.ERROR
    assert world.answers[bad].error == "logit_bias is nonsense"
    assert world.answers[worse].error == "the request failed (RuntimeError)"
    assert_unharmed(world, tiny, good, late)


def test_an_error_at_one_request_s_commit_ends_that_one(
    tiny: Tiny, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    good, bad = (world.add(prompt) for prompt in prompts(2))
    commit = world.scheduler.commit

    def failing(sequence: Any, num_computed: int) -> None:
        if sequence.request_id == bad and num_computed == 15:
            raise ZeroDivisionError
        commit(sequence, num_computed)

    monkeypatch.setattr(world.scheduler, "commit", failing)
    world.run()

    assert world.answers[bad].error == "the request failed (ZeroDivisionError)"
    assert_unharmed(world, tiny, good)


def test_no_block_for_one_sequence_ends_that_one(tiny: Tiny, make_world: MakeWorld) -> None:
    """Somebody outside holds blocks, so that even alone the long one has no room to grow."""
    world = make_world(kv_cache_bytes=bytes_for(tiny.model, 8), context_len_max=64)
    held = world.blocks.new_table(b"elsewhere")
    assert world.blocks.grow(held, 32)
    short = world.add(prompts(1)[0], max_tokens=12)
    long = world.add(prompts(2)[1], max_tokens=40)
    too_long = world.add(prompts(1, 40)[0])

    world.run()
    world.blocks.release(held)
    again = world.ask(prompts(1, 40)[0])

    assert_unharmed(world, tiny, short)
    for name in (long, too_long):
        assert world.answers[name].finish is FinishReason.ERROR
        assert "no free block" in str(world.answers[name].error)
    assert len(world.answers[long].token_ids) == 32 - 12 + 1
    assert len(again.token_ids) == 8


@pytest.mark.parametrize("stage", ["forward", "verify", "fetch"])
def test_a_failed_step_ends_who_was_running_and_nobody_else(
    tiny: Tiny, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    world = make_world(sequences_max=2)
    running = [world.add(prompt) for prompt in prompts(2)]
    waiting = world.add(prompts(3)[2])
    for _ in range(3):
        world.step()

    def failing(*given: Any) -> Any:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patched:
        if stage == "fetch":
            patched.setattr("backend.engine.engine.fetch", failing)
        else:
            patched.setattr(world.runner, stage, failing)
        world.step()
    later = world.ask(prompts(1)[0])

    for name in running:
        assert world.answers[name].finish is FinishReason.ERROR
        assert world.answers[name].error == (
            "a step of the engine failed (RuntimeError); send the request again"
        )
        assert len(world.answers[name].token_ids) == 3
    assert_unharmed(world, tiny, waiting)
    assert tiny.is_greedy(later.prompt, later.token_ids)


def test_a_failed_forward_leaves_no_wrong_prefix(tiny: Tiny, make_world: MakeWorld) -> None:
    """The blocks of the failed step were never computed: nobody may take them for a prefix."""
    world = make_world()
    prompt = prompts(1, 32)[0]
    world.add(prompt)
    world.model.fails_at_forward = RuntimeError("no")
    world.step()
    world.model.fails_at_forward = None

    again = world.ask(prompt)

    assert again.events[-1].num_cached_tokens == 0
    assert tiny.is_greedy(prompt, again.token_ids)
