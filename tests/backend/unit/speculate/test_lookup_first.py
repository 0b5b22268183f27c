"""Lookups before a head's drafts: the text is the plain one, and the head misses no row by it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.errors import SetupError
from backend.serving.draft_check import check_draft
from backend.speculate.proposers.lookup_first import TRUSTED_LEN, LookupFirstProposer, _merged
from backend.speculate.protocol import Proposal
from backend.speculate.registry import HEAD_METHODS, PROPOSERS, head_method
from tests.backend.unit.engine.test_no_host_sync import guard
from tests.support.draft_heads import MASK_TOKEN, save_block_head, save_eagle3
from tests.support.draft_methods import proposer_of, reference_of
from tests.support.draft_references import BlockRules
from tests.support.draft_rounds import States
from tests.support.drafting_world import propose_input
from tests.support.engine_world import EngineWorld, Tiny, random_prompt, tiny_engine_config

NUM_DRAFTS = 4
# Few tokens, so that a text soon repeats itself.
WRITTEN = (50, 120, 290)
BIAS = {token: 60.0 for token in WRITTEN}
SPARK = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")


class Watching:
    """A method, and which of its proposals were whose."""

    def __init__(self, target: Tiny, directory: Path, method: str) -> None:
        if method == "eagle3":
            self.saved, rules = save_eagle3(directory, draft_ids=WRITTEN), None
        else:
            rules = SPARK
            self.saved = save_block_head(
                directory, "dspark", rules=SPARK, draft_ids=WRITTEN, extra={"block_size": 5}
            )
        self.head = proposer_of(target, self.saved, rows_max=120)
        self.inner = LookupFirstProposer(self.head)
        self.reference: Any = reference_of(target, self.saved, rules)
        self.name, self.taps = self.inner.name, self.inner.taps
        self.num_drafts_max = self.inner.num_drafts_max
        self.made: list[tuple[list[int], list[int], bool]] = []  # text, drafts, looked up

    def propose(self, given: Any) -> Proposal | None:
        proposal = self.inner.propose(given)
        found = self.inner._lookup.find(given) if given.num_drafts else []
        if proposal is not None:
            for row, history in enumerate(given.histories):
                drafts = proposal.token_ids[row, : int(proposal.num_valid[row])].tolist()
                self.made.append((list(history), drafts, bool(found[row])))
        return proposal

    def release(self, slot: int) -> None:
        self.inner.release(slot)


def texts_of(world: EngineWorld, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    given = {"max_tokens": 30, "logit_bias": BIAS, **params}
    names = [world.add(prompt, **given) for prompt in prompts]
    world.run()
    world.check_empty()
    return [world.answers[name].token_ids for name in names]


def world_of(target: Tiny, proposer: Any) -> EngineWorld:
    num_drafts = 0 if proposer is None else proposer.num_drafts_max
    return EngineWorld(target.model, proposer=proposer, num_drafts_max=num_drafts, rows_max=120)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [random_prompt(rng, rng.randrange(2, 20)) for _ in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("method", ["eagle3", "dspark"])
def test_text_is_the_plain_one_and_every_draft_is_the_heads_or_the_texts(
    target: Tiny,
    states: States,
    prompts: list[list[int]],
    tmp_path: Path,
    method: str,
    batch: int,
    params: dict[str, Any],
) -> None:
    """The head's own drafts are those of a head that reads the whole text at once: where lookups
    were verified in place of its own, it has still seen every row with the right token behind."""
    watching = Watching(target, tmp_path, method)

    plain = texts_of(world_of(target, None), prompts[:batch], **params)
    drafted = texts_of(world_of(target, watching), prompts[:batch], **params)

    assert drafted == plain
    num_looked_up = 0
    for tokens, drafts, is_looked_up in watching.made:
        if is_looked_up:
            num_looked_up += 1
            end = tuple(tokens[-TRUSTED_LEN:])
            places = range(len(tokens) - TRUSTED_LEN)
            before = {tuple(tokens[place : place + TRUSTED_LEN]) for place in places}
            assert end in before
        else:
            of_text = states.of(tokens[:-1])
            features = [of_text[index].double() for index in watching.saved.state_indices]
            assert drafts == watching.reference.drafts(tokens, features, len(drafts), ())
    assert 0 < num_looked_up < len(watching.made)


def test_rows_that_were_looked_up_replace_the_heads_and_nothing_else() -> None:
    given = propose_input([[1, 2], [3, 4], [5, 6]], [3, 3, 3], pad=1)
    tokens = torch.arange(12).view(4, 3)
    probs = torch.full((4, 3, 20), 0.05)
    head = Proposal(tokens, torch.tensor([3, 3, 3, 0]), probs)

    made = _merged(head, [[], [17, 18], []], given)

    assert made is not None
    assert made.token_ids[0].tolist() == [0, 1, 2]
    assert made.token_ids[1, :2].tolist() == [17, 18]
    assert made.num_valid.tolist() == [3, 2, 3, 0]
    assert made.probs is not None
    one_hot = torch.zeros(2, 20)
    one_hot[0, 17] = one_hot[1, 18] = 1.0
    assert torch.equal(made.probs[1, :2], one_hot)
    assert torch.equal(made.probs[0], probs[0])
    assert torch.equal(made.probs[2], probs[2])


def test_a_head_that_lost_its_rows_leaves_the_lookups() -> None:
    given = propose_input([[1, 2], [3, 4]], [3, 3])

    made = _merged(None, [[9], []], given)

    assert made is not None
    assert made.num_valid.tolist() == [1, 0]
    assert made.token_ids[0, 0] == 9


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle3", "dspark"])
def test_no_value_of_the_device_is_read(
    target: Tiny, prompts: list[list[int]], tmp_path: Path, method: str
) -> None:
    world = world_of(target, Watching(target, tmp_path, method).inner)
    kinds, caught = guard(world)

    texts_of(world, prompts)

    assert caught == []
    assert kinds


def test_each_head_can_be_had_with_lookups(tmp_path: Path, target: Tiny) -> None:
    for method in HEAD_METHODS:
        assert f"{method}+ngram" in PROPOSERS
        assert head_method(f"{method}+ngram") == head_method(method) == method
    assert head_method("ngram") is None
    assert head_method("draft_model") is None
    config = tiny_engine_config(proposer="dspark+ngram", num_drafts_max=4)
    with pytest.raises(SetupError, match="draft_path"):
        PROPOSERS["dspark+ngram"](target.model, config)
    # Of which target the head is, is looked at as for the head alone.
    assert check_draft(tmp_path, _no_tokenizer(), config) is None


def _no_tokenizer() -> Any:
    return Tensor  # never looked at without a head
