"""Draft heads in the engine: the text is the plain one, and what they draft is what they should."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from backend.config import Quantization
from backend.engine.interface import Priority, SpeculationWish
from backend.models.interface import CausalModel
from backend.models.loading import load_model
from backend.speculate.protocol import Proposal, ProposeInput
from kernels.dispatch import select
from tests.backend.unit.engine.test_no_host_sync import guard
from tests.support.draft_heads import MASK_TOKEN, SavedHead, save_block_head, save_eagle3
from tests.support.draft_methods import FeatureProposers, proposer_of, reference_of
from tests.support.draft_references import BlockRules
from tests.support.draft_rounds import States
from tests.support.engine_world import (
    EngineWorld,
    Tiny,
    bytes_for,
    random_prompt,
    tiny_engine_config,
)

pytestmark = pytest.mark.slow  # all of them together; `make check` has the parts

METHODS = ("eagle3", "dflash", "dspark")
RULES = {
    "eagle3": None,
    "dflash": BlockRules(MASK_TOKEN),
    "dspark": BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla"),
}
# The only tokens that are written and drafted: so every third draft is right by chance.
WRITTEN = (50, 120, 290)
BIAS = {token: 60.0 for token in WRITTEN}
BLOCK_OF = 9
NUM_TOKENS = 12


def save(directory: Path, method: str) -> SavedHead:
    if method == "eagle3":
        return save_eagle3(directory, draft_ids=WRITTEN)
    rules = RULES[method]
    assert isinstance(rules, BlockRules)
    extra = {"block_size": BLOCK_OF}
    return save_block_head(directory, method, rules=rules, draft_ids=WRITTEN, extra=extra)


class Recording:
    """A proposer, and what it drafted behind which text."""

    def __init__(self, proposer: FeatureProposers) -> None:
        self.inner = proposer
        self.name, self.taps = proposer.name, proposer.taps
        self.num_drafts_max = proposer.num_drafts_max
        self.drafted: list[tuple[list[int], tuple[int, ...], list[int]]] = []
        self.missing: dict[int, tuple[int, ...]] = {}

    def propose(self, given: ProposeInput) -> Proposal | None:
        is_new = [self.inner.cache.blocks.lane(slot) is None for slot in given.slot_ids]
        proposal = self.inner.propose(given)
        if given.start is not None and is_new[0]:
            lane = self.inner.cache.blocks.lane(given.slot_ids[0])
            assert lane is not None
            self.missing[given.slot_ids[0]] = tuple(range(given.start - lane.gap, given.start))
        if proposal is not None:
            for row, (slot, history) in enumerate(
                zip(given.slot_ids, given.histories, strict=True)
            ):
                count = int(proposal.num_valid[row])
                drafts = proposal.token_ids[row, :count].tolist()
                self.drafted.append((list(history), self.missing[slot], drafts))
        return proposal

    def release(self, slot: int) -> None:
        self.inner.release(slot)

    def check(self, states: States, saved: SavedHead, reference: Any, *, every: int = 1) -> None:
        """Beside drafts recomputed from the whole text, from transformers' own states."""
        for tokens, missing, drafts in self.drafted[::every]:
            of_text = states.of(tokens[:-1])
            features = [of_text[index].double() for index in saved.state_indices]
            assert drafts == reference.drafts(tokens, features, len(drafts), missing)


def world_of(model: CausalModel, proposer: Any, **changes: Any) -> EngineWorld:
    given = {"rows_max": 8 * BLOCK_OF + 16, **changes}
    num_drafts = 0 if proposer is None else proposer.num_drafts_max
    return EngineWorld(model, proposer=proposer, num_drafts_max=num_drafts, **given)


def written_by(world: EngineWorld, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    names = []
    for prompt in prompts:
        names.append(world.add(prompt, max_tokens=num_tokens, logit_bias=BIAS))
        world.step()
    world.run()
    world.check_empty()
    return [world.answers[name].token_ids for name in names]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(8)
    return [random_prompt(rng, rng.randrange(2, 30)) for _ in range(8)]


@pytest.fixture(scope="module")
def plain(target: Tiny, prompts: list[list[int]]) -> list[list[int]]:
    return written_by(world_of(target.model, None), prompts, NUM_TOKENS)


@pytest.mark.parametrize(("num_drafts", "batch"), [(4, 1), (1, 8), (8, 8)])
@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_the_plain_one(
    target: Tiny, tmp_path: Path, prompts: list[list[int]], plain: list[list[int]], method: str,
    num_drafts: int, batch: int,
) -> None:  # fmt: skip
    proposer = proposer_of(target, save(tmp_path, method), num_drafts_max=num_drafts)
    assert proposer.num_drafts_max == num_drafts
    world = world_of(target.model, proposer)

    assert written_by(world, prompts[:batch], NUM_TOKENS) == plain[:batch]
    num_rounds = sum(len(answer.events) for answer in world.answers.values())
    assert num_rounds < NUM_TOKENS * batch, "not one draft was accepted"


@pytest.mark.parametrize("quantization", list(Quantization))
@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_the_plain_one_for_every_number_of_drafts(
    target: Tiny, tmp_path: Path, method: str, quantization: Quantization
) -> None:
    """Also where the model and the head compute in int8, with the kernels of this machine."""
    config = tiny_engine_config(quantization=quantization)
    model = load_model(target.directory, config, ops=select("cpu")).model
    saved = save(tmp_path, method)
    rng = random.Random(4)
    prompts = [random_prompt(rng, rng.randrange(2, 50)) for _ in range(8)]
    expected = written_by(world_of(model, None), prompts, 40)
    for num_drafts in range(1, 9):
        for batch in (1, 8):
            proposer = proposer_of(
                Tiny(target.directory, target.reference, model),
                saved,
                ops=select("cpu"),
                num_drafts_max=num_drafts,
                quantization=quantization,
            )
            found = written_by(world_of(model, proposer), prompts[:batch], 40)
            assert found == expected[:batch], f"{num_drafts} drafts, batch {batch}"


@pytest.mark.parametrize("method", METHODS)
def test_drafts_in_the_engine_are_those_of_the_formulas(
    target: Tiny, states: States, tmp_path: Path, method: str
) -> None:
    """Pieces of prompts beside decoding, conversations that go on, a sequence that is put off."""
    saved = save(tmp_path, method)
    proposer = Recording(proposer_of(target, saved, context_len_max=96))
    world = world_of(
        target.model,
        proposer,
        rows_max=48,
        context_len_max=96,
        kv_cache_bytes=bytes_for(target.model, 14),
    )
    rng = random.Random(2)
    turns = [random_prompt(rng, 21), random_prompt(rng, 40), random_prompt(rng, 9)]
    answers = written_by(world, turns, 20)
    more = [
        [*turn, *answer, *random_prompt(rng, 4)]
        for turn, answer in zip(turns, answers, strict=True)
    ]
    written_by(world, [*more, random_prompt(rng, 30)], 24)
    # Whole blocks of a prompt that is known: only its last token is computed, in a copied block.
    written_by(world, [turns[1]], 6)
    for _ in range(4):
        world.add(random_prompt(rng, 10), max_tokens=44, logit_bias=BIAS)
    world.run()

    assert world.engine.load().num_preemptions > 0
    assert any(answer.events[-1].num_cached_tokens for answer in world.answers.values())
    # At most the last round of a text was never shown.
    assert all(len(each) <= 1 + proposer.num_drafts_max for each in proposer.missing.values())
    assert max(len(drafts) for _, _, drafts in proposer.drafted) == proposer.num_drafts_max
    proposer.check(states, saved, reference_of(target, saved, RULES[method]), every=23)


@pytest.mark.parametrize("method", METHODS)
def test_who_skips_steps_has_the_same_drafts_afterwards(
    target: Tiny, states: States, tmp_path: Path, prompts: list[list[int]], method: str
) -> None:
    """Lines of the batch lane make room for prompts; the head's cache gets no hole from it."""
    saved = save(tmp_path, method)
    proposer = Recording(proposer_of(target, saved))
    world = world_of(target.model, proposer)
    for prompt in prompts[:3]:
        world.add(prompt, max_tokens=40, logit_bias=BIAS, priority=Priority.BATCH)
    for prompt, num_tokens in zip(prompts[3:6], (1, 20, 20), strict=True):
        for _ in range(4):
            world.step()
        world.add(prompt, max_tokens=num_tokens, logit_bias=BIAS)
    world.run()

    expected = world_of(target.model, None)
    for prompt, num_tokens in zip(prompts[:6], (40, 40, 40, 1, 20, 20), strict=True):
        expected.add(prompt, max_tokens=num_tokens, logit_bias=BIAS)
    expected.run()
    told = [answer.token_ids for answer in world.answers.values()]
    assert told == [answer.token_ids for answer in expected.answers.values()]
    assert world.engine.load().speculation.num_steps_by_why["returning"] > 0
    assert not any(proposer.missing.values())
    proposer.check(states, saved, reference_of(target, saved, RULES[method]), every=5)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_waits_for_nothing(
    target: Tiny, tmp_path: Path, prompts: list[list[int]], method: str
) -> None:
    world = world_of(target.model, proposer_of(target, save(tmp_path, method)))
    _, caught = guard(world)

    written_by(world, [*prompts[:3], prompts[0]], 6)

    assert caught == []


@pytest.mark.parametrize("method", METHODS)
def test_a_text_may_end_at_the_context_s_end(target: Tiny, tmp_path: Path, method: str) -> None:
    changes = {"context_len_max": 40}
    prompt = random_prompt(random.Random(5), 30)
    expected = written_by(world_of(target.model, None, **changes), [prompt], 30)
    proposer = proposer_of(target, save(tmp_path, method), **changes)

    assert written_by(world_of(target.model, proposer, **changes), [prompt], 30) == expected
    assert len(expected[0]) == 10


@pytest.mark.parametrize("method", METHODS)
def test_a_failed_call_costs_drafts_and_nothing_else(
    target: Tiny, tmp_path: Path, prompts: list[list[int]], plain: list[list[int]], method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Who runs then gets no more drafts; who comes later does."""
    proposer = proposer_of(target, save(tmp_path, method))
    real, made, failed = proposer._drafts, [], []

    def failing(given: ProposeInput, *rest: Any) -> Proposal | None:
        if len(given.slot_ids) == 3 and not failed:
            failed.append(len(made))
            raise RuntimeError("a kernel gave up")
        proposal = real(given, *rest)
        made.append(0 if proposal is None else int(proposal.num_valid.sum()))
        return proposal

    proposer._drafts = failing  # type: ignore[method-assign] # one call is to go wrong
    world = world_of(target.model, proposer)

    assert written_by(world, prompts[:3], NUM_TOKENS) == plain[:3]
    assert "a kernel gave up" in caplog.text
    assert sum(made[: failed[0]]) > 0
    assert len(made) > failed[0]
    assert sum(made[failed[0] :]) == 0
    assert written_by(world, prompts[3:4], NUM_TOKENS) == plain[3:4]
    assert max(made[-4:]) > 0


@pytest.mark.parametrize("method", METHODS)
def test_who_wants_no_drafts_is_not_shown(
    target: Tiny, tmp_path: Path, prompts: list[list[int]], plain: list[list[int]], method: str
) -> None:
    proposer = proposer_of(target, save(tmp_path, method))
    world = world_of(target.model, proposer)
    wishes = [SpeculationWish(is_off=number % 2 == 0) for number in range(4)]
    for prompt, wish in zip(prompts, wishes, strict=False):
        world.add(prompt, max_tokens=NUM_TOKENS, logit_bias=BIAS, speculation=wish)
    world.run()

    found = [answer.token_ids for answer in world.answers.values()]
    assert found == plain[:4]
    rounds = [len(answer.events) for answer in world.answers.values()]
    assert rounds[0] == rounds[2] == NUM_TOKENS
    assert max(rounds[1], rounds[3]) < NUM_TOKENS
