"""What one request gets, whoever else is there: its own tokens, its own end, its own price."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from backend.engine.interface import FinishReason, Priority
from backend.errors import BadRequest, ContextOverflow, OutOfMemory, Overloaded, SetupError
from tests.support.engine_world import EngineWorld, MakeWorld, Tiny, bytes_for, random_prompt
from tests.support.tiny_checkpoints import VOCAB, reference_logits


def prompts(count: int, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [random_prompt(rng, rng.randrange(2, 40)) for _ in range(count)]


def test_thirty_two_requests_all_finish_and_none_starves(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world(kv_cache_bytes=bytes_for(tiny.model, 40))
    for prompt in prompts(32):
        world.add(prompt, max_tokens=24)
    served: dict[str, int] = {}

    for number in range(2000):
        for event in world.step():
            served.setdefault(event.request_id, number)
        if not world.engine.has_work():
            break

    assert [len(answer.token_ids) for answer in world.answers.values()] == [24] * 32
    # Eight run at once and each needs 24 steps: by arrival, a first token in every fourth part.
    for index in range(32):
        assert served[f"r{index}"] <= (index // 8 + 1) * 24 + 32
    for answer in world.answers.values():
        assert tiny.is_greedy(answer.prompt, answer.token_ids)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 40},
        {"temperature": 1.5, "min_p": 0.02, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    ],
    ids=["plain", "filtered", "penalised"],
)
def test_a_seeded_request_gives_the_same_tokens_alone_and_in_any_batch(
    make_world: MakeWorld, tiny: Tiny, params: dict[str, Any]
) -> None:
    prompt = prompts(1, seed=11)[0]
    alone = make_world().ask(prompt, seed=42, max_tokens=30, **params)
    again = make_world().ask(prompt, seed=42, max_tokens=30, **params)
    other = make_world().ask(prompt, seed=43, max_tokens=30, **params)
    crowded = make_world(kv_cache_bytes=bytes_for(tiny.model, 30), context_len_max=96)
    for number, each in enumerate(prompts(6)):
        crowded.add(each, max_tokens=30, temperature=1.0, seed=number, logprobs=2)
    name = crowded.add(prompt, seed=42, max_tokens=30, **params)
    crowded.run()

    assert again.token_ids == alone.token_ids
    assert other.token_ids != alone.token_ids
    assert crowded.answers[name].token_ids == alone.token_ids
    # It was preempted and drew some of its tokens from a prompt's last row.
    assert len(crowded.positions(name)) > len(set(crowded.positions(name)))


def test_penalties_count_every_token_of_the_answer(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world()
    prompt = prompts(1)[0]
    frequency, repetition = 0.7, 1.3

    answer = world.ask(
        prompt, max_tokens=20, frequency_penalty=frequency, repetition_penalty=repetition
    )

    logits = reference_logits(tiny.reference, [*prompt, *answer.token_ids])
    for place, token_id in enumerate(answer.token_ids):
        row = logits[len(prompt) + place - 1].clone()
        before = answer.token_ids[:place]
        for seen in {*prompt, *before}:
            row[seen] = row[seen] / repetition if row[seen] > 0 else row[seen] * repetition
        for seen in before:
            row[seen] -= frequency
        assert int(row.argmax()) == token_id
    assert not tiny.is_greedy(prompt, answer.token_ids)


def test_a_request_without_a_seed_is_drawn_anew(make_world: MakeWorld) -> None:
    world = make_world()
    prompt = prompts(1)[0]

    first, second = (world.ask(prompt, temperature=1.0, max_tokens=16) for _ in range(2))

    assert first.token_ids != second.token_ids


def test_logprobs_are_those_of_the_model(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world()
    prompt = prompts(1)[0]
    world.add(prompt, name="many", max_tokens=6, logprobs=7, temperature=1.0, seed=1)
    world.add(prompt, name="own", max_tokens=6, logprobs=0)
    world.add(prompt, name="none", max_tokens=6)
    world.run()

    many, own, none = (world.answers[name] for name in ("many", "own", "none"))
    logits = reference_logits(tiny.reference, [*prompt, *many.token_ids])
    expected = torch.log_softmax(logits, 1)[len(prompt) - 1 : -1]
    assert [each.token_id for each in many.logprobs] == many.token_ids
    for row, each in zip(expected, many.logprobs, strict=True):
        assert math.isclose(each.logprob, float(row[each.token_id]), abs_tol=1e-4)
        best = row.topk(7)
        assert [token_id for token_id, _ in each.top] == best.indices.tolist()
        assert [value for _, value in each.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert [len(each.top) for each in own.logprobs] == [0] * 6
    assert none.logprobs == []


def test_an_end_token_ends_and_is_counted_but_not_shown(tiny: Tiny, make_world: MakeWorld) -> None:
    prompt = prompts(1)[0]
    expected = tiny.greedy(prompt, 8)
    end = next(token_id for token_id in expected if expected.index(token_id) >= 3)
    place = expected.index(end)

    by_model = make_world(eos_token_ids=(end,)).ask(prompt, logprobs=1)
    ignored = make_world(eos_token_ids=(end,)).ask(prompt, ignore_eos=True)
    by_request = make_world().ask(prompt, stop_token_ids=(end,))

    for answer in (by_model, by_request):
        assert answer.token_ids == expected[:place]
        assert answer.finish is FinishReason.STOP
        assert answer.events[-1].num_generated == place + 1
    assert [each.token_id for each in by_model.logprobs] == expected[:place]
    assert ignored.token_ids == expected
    assert ignored.finish is FinishReason.LENGTH


def test_the_model_s_own_ends_count_where_none_are_given(tiny: Tiny, make_world: MakeWorld) -> None:
    answer = make_world(eos_token_ids=None).ask(prompts(1)[0], logit_bias={2: 100.0})

    assert tiny.model.config.eos_token_ids == (2,)
    assert answer.finish is FinishReason.STOP
    assert answer.token_ids == []
    assert answer.events[-1].num_generated == 1


def test_a_full_context_ends_an_answer(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world(context_len_max=30)
    prompt = random_prompt(random.Random(1), 25)

    answer = world.ask(prompt, max_tokens=100)

    assert answer.token_ids == tiny.greedy(prompt, 5)
    assert answer.finish is FinishReason.LENGTH


def test_interactive_requests_go_before_batch(make_world: MakeWorld) -> None:
    world = make_world(sequences_max=2)
    for _ in range(4):
        world.add(prompts(1)[0], priority=Priority.BATCH, max_tokens=20)
    for _ in range(3):
        world.step()
    name = world.add(prompts(1, seed=9)[0], max_tokens=4)

    world.step()
    num_first = len(world.answers[name].token_ids)
    world.run()

    assert num_first == 1
    assert world.engine.load().num_preemptions == 1
    assert all(len(answer.token_ids) in (4, 20) for answer in world.answers.values())


def test_a_batch_request_is_not_held_back_for_ever(make_world: MakeWorld) -> None:
    """Interactive requests without end, always two more than there are places."""
    world = make_world(sequences_max=2, batch_age_s=1.0)
    name = world.add(prompts(1)[0], priority=Priority.BATCH, max_tokens=6)

    for number in range(400):
        while len(world.scheduler.waiting) < 3:
            world.add(prompts(1, seed=number)[0], max_tokens=3)
        world.step()
        if world.answers[name].finish:
            break

    assert len(world.answers[name].token_ids) == 6
    assert world.now_s < 2.5


def test_what_a_caller_can_mend_is_refused_at_once(make_world: MakeWorld) -> None:
    world = make_world(context_len_max=32)
    with pytest.raises(BadRequest, match="empty"):
        world.add([])
    with pytest.raises(BadRequest, match="vocabulary of 320"):
        world.add([5, VOCAB])
    with pytest.raises(ContextOverflow, match="32 tokens"):
        world.add([5] * 32)
    with pytest.raises(BadRequest, match="logit_bias"):
        world.add([5], logit_bias={VOCAB: 1.0})
    world.add([5] * 31, name="twice")
    with pytest.raises(BadRequest, match="twice"):
        world.add([5], name="twice")
    world.run()

    assert world.answers["twice"].finish is FinishReason.LENGTH


def test_a_full_queue_says_when_to_come_again(make_world: MakeWorld) -> None:
    world = make_world(waiting_max=3, sequences_max=1)
    world.add([5, 6, 7], max_tokens=200)
    for _ in range(20):
        world.step()
    for _ in range(3):
        world.add([5, 6, 7], max_tokens=1)

    with pytest.raises(Overloaded, match="3 requests wait") as caught:
        world.add([5, 6, 7])

    # The only one that runs has 180 tokens to go at a hundredth of a second each.
    assert caught.value.retry_after_s == pytest.approx(1.8, abs=0.1)
    world.engine.close()


def test_memory_for_less_than_one_sequence_is_refused(tiny: Tiny, make_world: MakeWorld) -> None:
    enough = bytes_for(tiny.model, 4)
    with pytest.raises(OutOfMemory, match=f"at least {enough} bytes"):
        EngineWorld(tiny.model, context_len_max=32, kv_cache_bytes=enough - 1)

    world = make_world(context_len_max=32, kv_cache_bytes=enough)

    assert len(world.ask([5] * 8, max_tokens=100).token_ids) == 24


def test_sizes_that_do_not_go_together_are_refused(tiny: Tiny) -> None:
    with pytest.raises(SetupError, match="raise rows_max"):
        EngineWorld(tiny.model, rows_max=8, sequences_max=8)


def test_load_tells_what_is_there(tiny: Tiny, make_world: MakeWorld) -> None:
    world = make_world(sequences_max=2, kv_cache_bytes=bytes_for(tiny.model, 40))
    for _ in range(3):
        world.add(random_prompt(random.Random(1), 16), max_tokens=10)
    before = world.engine.load()
    world.step()
    world.step()
    now = world.engine.load()

    assert (before.num_running, before.num_waiting, before.waiting_prompt_tokens) == (0, 3, 48)
    assert (now.num_running, now.num_waiting, now.waiting_prompt_tokens) == (2, 1, 16)
    assert before.kv_blocks_total == now.kv_blocks_total == 40
    assert (before.kv_blocks_used, now.kv_blocks_used) == (0, 6)
    # Four tokens and 32 of prompts in what counts as the first second.
    assert now.tokens_per_s == 4.0
    assert now.prompt_tokens_per_s == 32.0


def test_step_costs_are_measured_by_batch_size(make_world: MakeWorld) -> None:
    world = make_world()
    world.step_s = 0.0
    forward = world.runner.forward

    def slow(*given: Any) -> Any:
        step = given[0]
        world.now_s += 0.1 * len(step.decodes) + 0.01 * sum(c.num_tokens for c in step.chunks)
        return forward(*given)

    world.runner.forward = slow
    world.add([5] * 20, max_tokens=6)
    world.add([6] * 20, max_tokens=12)
    world.run()

    load = world.engine.load()
    assert dict(load.decode_step_s) == pytest.approx({1: 0.1, 2: 0.2})
    assert load.prefill_token_s == pytest.approx(0.01)


def test_close_ends_everything(make_world: MakeWorld) -> None:
    world = make_world(sequences_max=1)
    for prompt in prompts(3):
        world.add(prompt)
    world.step()

    world.engine.close()
    world.step()

    assert {answer.finish for answer in world.answers.values()} == {FinishReason.CANCELLED}
