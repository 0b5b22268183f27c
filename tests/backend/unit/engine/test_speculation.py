"""Whatever is drafted, the text is the same; what is drafted well, comes in fewer steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from backend.engine.interface import FinishReason, Priority, SpeculationWish
from backend.models.interface import FeatureTap
from backend.speculate.protocol import Proposal, ProposeInput
from tests.support.drafting_world import GuessingProposer, TappedProposer, knowing
from tests.support.engine_world import EngineWorld, MakeWorld, Tiny, bytes_for, random_prompt

pytestmark = pytest.mark.slow  # all of them together; `make check` has the parts

TOLERANCE = 1e-4
TAPS = (FeatureTap(1, "in"), FeatureTap(1, "out"), FeatureTap(0, "in"))


def prompts(count: int, seed: int = 4) -> list[list[int]]:
    rng = random.Random(seed)
    return [random_prompt(rng, rng.randrange(2, 40)) for _ in range(count)]


def texts(tiny: Tiny, asked: list[list[int]], num_tokens: int) -> list[list[int]]:
    return [[*prompt, *tiny.greedy(prompt, num_tokens)] for prompt in asked]


def drafting(make_world: MakeWorld, proposer: GuessingProposer, **changes: Any) -> EngineWorld:
    return make_world(proposer=proposer, num_drafts_max=proposer.num_drafts_max, **changes)


def test_true_drafts_come_in_a_quarter_of_the_steps(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)
    (text,) = texts(tiny, [prompt], 24)
    world = drafting(make_world, GuessingProposer(knowing([text])))

    answer = world.ask(prompt, max_tokens=21)

    assert answer.token_ids == text[len(prompt) : len(prompt) + 21]
    # One token from the prompt, then five rounds of three drafts and one more.
    assert [len(event.token_ids) for event in answer.events] == [1, 4, 4, 4, 4, 4]
    assert world.largest_error(tiny.reference, "r0") < TOLERANCE


@pytest.mark.parametrize("hit_rate", [0.0, 0.6, 0.9])
def test_any_drafts_give_the_same_text_in_any_batch(
    tiny: Tiny, make_world: MakeWorld, hit_rate: float
) -> None:
    asked = prompts(7)
    written = texts(tiny, asked, 20)
    world = drafting(make_world, GuessingProposer(knowing(written, hit_rate=hit_rate)))
    for number, prompt in enumerate(asked):
        world.add(prompt, max_tokens=20)
        for _ in range(number):
            world.step()
    world.run()

    for text, (name, answer) in zip(written, world.answers.items(), strict=True):
        assert [*answer.prompt, *answer.token_ids] == text
        assert world.largest_error(tiny.reference, name) < TOLERANCE
    num_rounds = sum(len(answer.events) for answer in world.answers.values())
    assert (num_rounds == 7 * 20) == (hit_rate == 0.0)


def test_preempted_sequences_go_on_drafting(tiny: Tiny, make_world: MakeWorld) -> None:
    asked = [random_prompt(random.Random(seed), 10) for seed in range(4)]
    written = texts(tiny, asked, 40)
    world = drafting(
        make_world,
        GuessingProposer(knowing(written, hit_rate=0.8)),
        kv_cache_bytes=bytes_for(tiny.model, 14),
        context_len_max=96,
    )
    for prompt in asked:
        world.add(prompt, max_tokens=40)
    world.run()

    assert world.engine.load().num_preemptions > 0
    for text, answer in zip(written, world.answers.values(), strict=True):
        assert [*answer.prompt, *answer.token_ids] == text


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.5, "presence_penalty": 1.0},
        {"temperature": 0.9, "frequency_penalty": 1.5, "logprobs": 2},
    ],
    ids=["drawn", "greedy-penalised", "drawn-penalised"],
)
def test_drawn_and_penalised_text_is_that_of_plain_decoding(
    make_world: MakeWorld, params: dict[str, Any]
) -> None:
    (prompt,) = prompts(1)
    plain = make_world().ask(prompt, seed=3, max_tokens=24, **params)
    guess = knowing([[*prompt, *plain.token_ids]], hit_rate=0.7)
    world = drafting(make_world, GuessingProposer(guess))

    answer = world.ask(prompt, seed=3, max_tokens=24, **params)

    assert answer.token_ids == plain.token_ids
    assert len(answer.events) < len(plain.events)
    assert [each.token_id for each in answer.logprobs] == [each.token_id for each in plain.logprobs]
    for mine, theirs in zip(answer.logprobs, plain.logprobs, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [each for each, _ in mine.top] == [each for each, _ in theirs.top]


def test_an_end_inside_of_a_round_ends_there(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)
    (text,) = texts(tiny, [prompt], 24)
    written = text[len(prompt) :]
    end = written[6]
    place = written.index(end)

    world = drafting(make_world, GuessingProposer(knowing([text])), eos_token_ids=(end,))
    stopped = world.ask(prompt, max_tokens=24)
    world = drafting(make_world, GuessingProposer(knowing([text])))
    cut = world.ask(prompt, max_tokens=7)
    world = drafting(make_world, GuessingProposer(knowing([text])), context_len_max=len(prompt) + 7)
    full = world.ask(prompt, max_tokens=24)

    assert stopped.token_ids == written[:place]
    assert (stopped.finish, stopped.events[-1].num_generated) == (FinishReason.STOP, place + 1)
    for answer in (cut, full):
        assert answer.token_ids == written[:7]
        assert answer.finish is FinishReason.LENGTH


def test_a_request_may_ask_for_fewer_drafts_or_none(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)
    (text,) = texts(tiny, [prompt], 24)
    world = drafting(make_world, GuessingProposer(knowing([text])))
    wishes = {
        "all": SpeculationWish(),
        "own": SpeculationWish(method="guessing"),
        "two": SpeculationWish(num_drafts=2),
        "more": SpeculationWish(num_drafts=99),
        "off": SpeculationWish(is_off=True),
        "other": SpeculationWish(method="something else"),
    }
    for name, wish in wishes.items():
        world.add(prompt, name=name, speculation=wish, max_tokens=13)
    world.run()

    num_rounds = {name: len(answer.events) for name, answer in world.answers.items()}
    assert num_rounds == {"all": 4, "own": 4, "two": 5, "more": 4, "off": 13, "other": 13}
    assert all(
        answer.token_ids == text[len(prompt) : len(prompt) + 13]
        for answer in world.answers.values()
    )


def test_drafts_take_no_block_from_anybody(tiny: Tiny, make_world: MakeWorld) -> None:
    """Two sequences fill the cache to the last block: no room for drafts, and none preempted."""
    asked = [random_prompt(random.Random(seed), 8) for seed in range(2)]
    written = texts(tiny, asked, 8)
    world = drafting(
        make_world,
        GuessingProposer(knowing(written)),
        kv_cache_bytes=bytes_for(tiny.model, 6),
        context_len_max=48,
    )
    for prompt in asked:
        world.add(prompt, max_tokens=8)
    world.step()
    held = world.blocks.new_table(b"elsewhere")
    assert world.blocks.grow(held, 8 * world.blocks.num_free)
    world.run()
    world.blocks.release(held)

    assert {step.num_drafts for step in world.steps} == {0, 3}
    assert world.engine.load().num_preemptions == 0
    for text, answer in zip(written, world.answers.values(), strict=True):
        assert [*answer.prompt, *answer.token_ids] == text


def test_a_method_that_fails_costs_its_drafts_only(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)

    def failing(history: Any, num_drafts: int) -> Any:
        raise RuntimeError("no idea")

    answer = drafting(make_world, GuessingProposer(failing)).ask(prompt, max_tokens=8)

    assert answer.token_ids == tiny.greedy(prompt, 8)


def test_a_method_hears_when_a_slot_is_given_back(tiny: Tiny, make_world: MakeWorld) -> None:
    proposer = GuessingProposer(lambda history, num_drafts: [])
    world = drafting(make_world, proposer)
    gone, stays = (world.add(prompt) for prompt in prompts(2))
    world.step()
    slots = {each.request_id: each.slot for each in world.scheduler.running}
    world.engine.cancel(gone)
    assert proposer.released == [slots[gone]]

    world.run()

    assert proposer.released == [slots[gone], slots[stays]]


def test_features_of_every_committed_row_reach_the_method_once(
    tiny: Tiny, make_world: MakeWorld
) -> None:
    """Of prompts piece by piece, of decoding what was accepted, nothing left out or twice."""
    asked = [random_prompt(random.Random(seed), 5 + 30 * seed) for seed in range(4)]
    written = texts(tiny, asked, 24)
    proposer = TappedProposer(knowing(written, hit_rate=0.7), taps=TAPS)
    world = drafting(make_world, proposer, rows_max=48)
    for prompt in asked:
        world.add(prompt, max_tokens=24)
        world.step()
    world.run()

    check_shown(tiny, proposer, written)
    check_written(world, written)


def test_who_skips_a_step_is_shown_its_rows_once(tiny: Tiny, make_world: MakeWorld) -> None:
    """Lines of the batch lane skip the steps of prompts that somebody waits for."""
    asked = [random_prompt(random.Random(seed), 4 + 5 * seed) for seed in range(6)]
    written = texts(tiny, asked, 24)
    proposer = TappedProposer(knowing(written, hit_rate=0.7), taps=TAPS)
    world = drafting(make_world, proposer)
    for prompt in asked[:3]:
        world.add(prompt, max_tokens=24, priority=Priority.BATCH)
    for prompt in asked[3:]:
        world.step()
        world.step()
        world.add(prompt, max_tokens=24)
    world.run()
    check_shown(tiny, proposer, written)
    check_written(world, written)


def test_who_comes_back_from_a_skipped_step_has_no_drafts_in_one(
    tiny: Tiny, make_world: MakeWorld
) -> None:
    line, answer = prompts(2)
    written = texts(tiny, [line], 24)
    proposer = TappedProposer(knowing(written), taps=TAPS)
    world = drafting(make_world, proposer)
    name = world.add(line, max_tokens=24, priority=Priority.BATCH)
    world.step()
    world.step()
    world.add(answer, max_tokens=1)
    world.run()

    check_written(world, [written[0], texts(tiny, [answer], 1)[0]])
    assert [len(event.token_ids) for event in world.answers[name].events[:4]] == [1, 4, 1, 4]
    assert world.engine.load().speculation.num_steps_by_why["returning"] == 1


def check_written(world: EngineWorld, written: list[list[int]]) -> None:
    for text, answer in zip(written, world.answers.values(), strict=True):
        assert [*answer.prompt, *answer.token_ids] == text


def check_shown(tiny: Tiny, proposer: TappedProposer, written: list[list[int]]) -> None:
    """Every row that the target computed, in order, as transformers computes it."""
    for text in written:
        fed = [each.fed for each in proposer.shown if list(each.fed) == text[: len(each.fed)]]
        # What the last round committed is shown to nobody: the sequence has ended.
        assert [len(each) for each in fed] == list(range(1, len(fed) + 1))
        assert len(text) - 5 <= len(fed) < len(text)
        with torch.inference_mode():
            states = tiny.reference(torch.tensor([text]), output_hidden_states=True).hidden_states
        expected = {TAPS[0]: states[1][0], TAPS[1]: states[2][0], TAPS[2]: states[0][0]}
        for each in proposer.shown:
            if list(each.fed) == text[: len(each.fed)]:
                for tap in TAPS:
                    mine, theirs = each.features[tap], expected[tap][len(each.fed) - 1]
                    # States grow from layer to layer; relative to the largest of a row.
                    assert float((mine - theirs).abs().max() / theirs.abs().max()) < TOLERANCE


def test_drafts_from_a_prompt_s_features_join_the_group(tiny: Tiny, make_world: MakeWorld) -> None:
    """The first round of a new sequence is drafted from its prompt, beside the others' rounds."""
    asked = prompts(4)
    written = texts(tiny, asked, 17)
    proposer = TappedProposer(knowing(written), taps=TAPS[:1])
    world = drafting(make_world, proposer)
    for prompt in asked:
        world.add(prompt, max_tokens=17)
        world.step()
        world.step()
    world.run()

    for text, answer in zip(written, world.answers.values(), strict=True):
        assert [*answer.prompt, *answer.token_ids] == text
        assert [len(event.token_ids) for event in answer.events] == [1, 4, 4, 4, 4]


def test_probabilities_are_joined_with_one_hot_rows(tiny: Tiny, make_world: MakeWorld) -> None:
    """A method that knows probabilities for some groups only."""
    asked = prompts(3)
    written = texts(tiny, asked, 17)

    class Unsure(TappedProposer):
        def propose(self, given: ProposeInput) -> Proposal | None:
            made = super().propose(given)
            if made is None or given.slots.shape[0] > 1:
                return made
            shape = (*made.token_ids.shape, tiny.model.config.vocab_size)
            return Proposal(made.token_ids, made.num_valid, torch.full(shape, 1 / shape[-1]))

    world = drafting(make_world, Unsure(knowing(written, hit_rate=0.8), taps=TAPS[:1]))
    for prompt in asked:
        world.add(prompt, max_tokens=17)
        world.step()
        world.step()
    world.run()

    for text, answer in zip(written, world.answers.values(), strict=True):
        assert [*answer.prompt, *answer.token_ids] == text
