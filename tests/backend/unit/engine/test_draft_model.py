"""A second model drafts: what it would write itself, from a cache that never lacks a row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.engine.interface import SpeculationWish
from backend.errors import SetupError
from backend.models.interface import CausalModel
from backend.models.loading import load_model
from backend.speculate.proposers.draft_model import DraftModelProposer
from backend.speculate.protocol import Proposal, ProposeInput
from kernels.dispatch import select
from tests.support.engine_world import (
    EngineWorld,
    MakeWorld,
    Tiny,
    bytes_for,
    random_prompt,
    tiny_engine_config,
)
from tests.support.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.slow  # all of them together; `make check` has the parts

NUM_DRAFTS = 3


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Another model of the same vocabulary, smaller, without a likeness to the target."""
    return load_draft(tmp_path_factory.mktemp("draft"), num_hidden_layers=2, seed=9)


def load_draft(directory: Path, **changes: int) -> Tiny:
    reference = save_tiny(directory, "llama", **changes)
    loaded = load_model(directory, tiny_engine_config(), ops=select("cpu", "reference"))
    return Tiny(directory, reference, loaded.model)


class Watched(DraftModelProposer):
    """Notes the text and the drafts of every row of every round."""

    def __init__(self, draft: CausalModel, target: CausalModel, **changes: int) -> None:
        changes = {"num_drafts_max": NUM_DRAFTS, **changes}
        super().__init__(draft, target, tiny_engine_config(**changes))
        self.drafted: list[tuple[list[int], list[int]]] = []

    def propose(self, given: ProposeInput) -> Proposal | None:
        made = super().propose(given)
        if made is not None:
            for row, text in enumerate(given.histories):
                count = int(made.num_valid[row])
                self.drafted.append((list(text), made.token_ids[row, :count].tolist()))
        return made


def world_of(make_world: MakeWorld, proposer: DraftModelProposer, **changes: int) -> EngineWorld:
    return make_world(proposer=proposer, num_drafts_max=NUM_DRAFTS, **changes)


def check_drafts(proposer: Watched, draft: Tiny) -> None:
    """Every draft is what the draft model writes behind the whole text, without any cache."""
    assert proposer.drafted
    for text, drafts in proposer.drafted:
        assert draft.is_greedy(text, drafts), text


def some_prompts(count: int, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [random_prompt(rng, rng.randrange(1, 60)) for _ in range(count)]


def test_drafts_are_what_the_draft_model_writes_itself(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld
) -> None:
    """Of several sequences at once, whatever was accepted of the rounds before."""
    proposer = Watched(draft.model, tiny.model)
    world = world_of(make_world, proposer)
    asked = some_prompts(6)
    for prompt in asked:
        world.add(prompt, max_tokens=20)
        world.step()
    world.run()

    check_drafts(proposer, draft)
    for answer in world.answers.values():
        assert tiny.is_greedy(answer.prompt, answer.token_ids)


def test_a_draft_that_is_the_target_is_always_right(tiny: Tiny, make_world: MakeWorld) -> None:
    """Round after round is accepted as a whole: the row of its last draft must be made up for."""
    proposer = Watched(tiny.model, tiny.model)
    world = world_of(make_world, proposer)
    names = [world.add(prompt, max_tokens=21) for prompt in some_prompts(3)]
    world.run()

    check_drafts(proposer, tiny)
    for name in names:
        assert [len(event.token_ids) for event in world.answers[name].events] == [1, 4, 4, 4, 4, 4]
    (figures,) = world.engine.load().speculation.figures
    assert figures.acceptance_rate == 1.0


def test_without_the_second_token_a_whole_round_would_leave_a_hole(
    tiny: Tiny, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with that row written nowhere: drafts go wrong, and only acceptance shows it."""
    proposer = Watched(tiny.model, tiny.model)
    last_tokens = proposer._last_tokens

    def forgetful(given: ProposeInput, lanes: Sequence[object]) -> tuple[torch.Tensor, ...]:
        tokens, is_new = last_tokens(given, lanes)  # type: ignore[arg-type]  # lanes go through
        return tokens, torch.zeros_like(is_new)

    monkeypatch.setattr(proposer, "_last_tokens", forgetful)
    world = world_of(make_world, proposer)
    (prompt,) = some_prompts(1)
    answer = world.ask(prompt, max_tokens=40)

    assert tiny.is_greedy(prompt, answer.token_ids)
    (figures,) = world.engine.load().speculation.figures
    assert figures.acceptance_rate is not None
    assert figures.acceptance_rate < 0.9


def test_steps_without_drafts_are_caught_up_with(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld
) -> None:
    """No free blocks for drafts for a while: nobody asks the draft model, the text goes on."""
    proposer = Watched(draft.model, tiny.model)
    world = world_of(
        make_world, proposer, kv_cache_bytes=bytes_for(tiny.model, 24), context_len_max=96
    )
    prompt = random_prompt(random.Random(5), 9)
    world.add(prompt, max_tokens=40)
    for number in range(12):
        held = world.blocks.new_table(b"elsewhere")
        if number % 3:
            world.blocks.grow(held, 8 * (world.blocks.num_free - 1))
        world.step()
        world.step()
        world.blocks.release(held)
    world.run()

    assert {step.num_drafts for step in world.steps} == {0, NUM_DRAFTS}
    check_drafts(proposer, draft)


def test_preempted_sequences_and_prefixes_that_were_seen_before(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld
) -> None:
    proposer = Watched(draft.model, tiny.model)
    world = world_of(
        make_world, proposer, kv_cache_bytes=bytes_for(tiny.model, 14), context_len_max=96
    )
    shared = random_prompt(random.Random(6), 17)
    for number in range(4):
        world.add([*shared, 50 + number], max_tokens=30)
        world.step()
    world.run()
    world.ask([*shared, 50], max_tokens=12)

    assert world.engine.load().num_preemptions > 0
    assert world.answers["r4"].events[-1].num_cached_tokens > 0
    check_drafts(proposer, draft)


def test_a_long_prompt_is_computed_in_pieces(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld
) -> None:
    proposer = Watched(draft.model, tiny.model)
    world = world_of(make_world, proposer)
    world.ask(random_prompt(random.Random(7), 140), max_tokens=9)

    check_drafts(proposer, draft)


def test_where_the_draft_has_no_room_the_answer_goes_on_without(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld, tmp_path: Path
) -> None:
    """A cache for one sequence, and a context that is shorter than the target's."""
    small = Watched(draft.model, tiny.model, kv_cache_bytes=1, sequences_max=2)
    world = world_of(make_world, small)
    for prompt in some_prompts(2):
        world.add(prompt, max_tokens=60)
    world.run()
    short = load_draft(tmp_path, num_hidden_layers=1, max_position_embeddings=32)
    proposer = Watched(short.model, tiny.model)
    world_of(make_world, proposer).ask(random_prompt(random.Random(8), 12), max_tokens=40)

    check_drafts(small, draft)
    check_drafts(proposer, short)
    longest = max(len(text) + len(drafts) for text, drafts in proposer.drafted if drafts)
    assert longest == 32
    for answer in world.answers.values():
        assert tiny.is_greedy(answer.prompt, answer.token_ids)


def test_who_wants_no_drafts_is_not_fed_to_the_draft(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld
) -> None:
    proposer = Watched(draft.model, tiny.model)
    world = world_of(make_world, proposer)
    plain, drafted = some_prompts(2)
    world.add(plain, max_tokens=12, speculation=SpeculationWish(is_off=True))
    world.add(drafted, max_tokens=12)
    world.run()

    assert {tuple(text[: len(drafted)]) for text, _ in proposer.drafted} == {tuple(drafted)}


def test_a_failure_costs_drafts_and_nothing_else(
    tiny: Tiny, draft: Tiny, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = Watched(draft.model, tiny.model)
    world = world_of(make_world, proposer)
    first, second = some_prompts(2)
    world.add(first, max_tokens=20)
    for _ in range(3):
        world.step()
    with monkeypatch.context() as patched:
        patched.setattr(proposer, "_forward", lambda *given: 1 / 0)
        world.step()
    world.run()
    num_before = len(proposer.drafted)
    world.ask(second, max_tokens=12)

    check_drafts(proposer, draft)
    assert num_before < len(proposer.drafted)
    for answer in world.answers.values():
        assert tiny.is_greedy(answer.prompt, answer.token_ids)


@pytest.mark.parametrize("vocab_size", [300, 340])
def test_vocabularies_that_only_pad_may_differ_in_size(
    tiny: Tiny, make_world: MakeWorld, tmp_path: Path, vocab_size: int
) -> None:
    """Of a smaller one the missing ids are never drafted, of a larger one those too many."""
    other = load_draft(tmp_path, num_hidden_layers=2, vocab_size=vocab_size)
    proposer = Watched(other.model, tiny.model)
    world = world_of(make_world, proposer)
    for prompt in some_prompts(2):
        world.add(prompt, max_tokens=12, temperature=1.0)
    world.run()

    drafts = [token for _, each in proposer.drafted for token in each]
    assert drafts
    assert max(drafts) < min(vocab_size, 320)


def test_the_model_is_named_in_the_configuration(tiny: Tiny, draft: Tiny) -> None:
    config = tiny_engine_config(proposer="draft_model", num_drafts_max=2)

    with pytest.raises(SetupError, match="draft_model needs a model"):
        DraftModelProposer.make(tiny.model, config)
    made = DraftModelProposer.make(tiny.model, replace(config, draft_path=str(draft.directory)))
    assert (made.name, made.num_drafts_max, made.taps) == ("draft_model", 2, ())
