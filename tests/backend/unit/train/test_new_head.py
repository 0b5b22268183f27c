"""A new head begins as the target's own last layers, or as another head; what cannot be is said."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.errors import BadCheckpoint, SetupError
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.heads.loading import load_head
from backend.speculate.heads.saving import save_head
from backend.train.corpus import Text
from backend.train.new_head import (
    METHODS,
    Method,
    default_layer_ids,
    new_head,
    start_from_head,
    start_from_target,
)
from backend.train.states import token_counts
from tests.backend.unit.train.conftest import NUM_LAYERS
from tests.support.engine_world import Tiny
from tests.support.tiny_checkpoints import VOCAB
from tests.support.training_world import DRAFT_VOCAB, NUM_DRAFTS, plan_of

HIDDEN = 64
NOISE_MAX = 0.12  # six times the deviation that matrices start with


def counts(seed: int = 0) -> Tensor:
    return torch.randint(0, 10_000, (VOCAB,), generator=torch.Generator().manual_seed(seed))


def started(target: Tiny, method: Method, *, seed: int = 0, **changes: Any) -> DraftHead:
    head = new_head(plan_of(target, method, **changes), target.model.config, counts(), seed)
    start_from_target(head, target.directory, target.model.config)
    return head


def its_layers(target: Tiny, num_layers: int) -> list[dict[str, Tensor]]:
    """The reference's last ones, by the names of their parameters."""
    layers = target.reference.model.layers[-num_layers:]
    return [{name: each.detach() for name, each in layer.named_parameters()} for layer in layers]


def is_noise(tensor: Tensor) -> bool:
    return 0.0 < float(tensor.detach().abs().max()) < NOISE_MAX


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("num_layers", [1, 2, NUM_LAYERS])
@pytest.mark.parametrize("method", METHODS)
def test_layers_are_the_target_s_last_ones(
    method: Method, num_layers: int, family: str, target: Tiny, qwen3: Tiny
) -> None:
    chosen = target if family == "llama" else qwen3
    head = started(chosen, method, num_layers=num_layers)

    own = [dict(layer.named_parameters()) for layer in head.draft_layers]
    for index, (mine, theirs) in enumerate(zip(own, its_layers(chosen, num_layers), strict=True)):
        assert ("self_attn.q_norm.weight" in mine) == (family == "qwen3")
        is_fusing = method == "eagle3" and index == 0
        extra = {"hidden_norm.weight"} if is_fusing else set()
        assert set(mine) - set(theirs) == extra
        assert set(theirs) - set(mine) == set()
        for name, tensor in theirs.items():
            found = mine[name].detach()
            if is_fusing and name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
                # The embedding's half comes first, and is to be learnt.
                assert is_noise(found[:, :HIDDEN])
                found = found[:, HIDDEN:]
            assert torch.equal(found, tensor), f"{index} {name}"
        if is_fusing:
            assert torch.equal(mine["hidden_norm.weight"], theirs["input_layernorm.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_both_ends_of_the_layers(target: Tiny, method: Method) -> None:
    head = started(target, method)

    assert torch.equal(head.norm.weight, target.reference.model.norm.weight)
    # The last feature goes through as it is; the others begin as noise.
    assert head.fc.weight.shape == (HIDDEN, 3 * HIDDEN)
    assert is_noise(head.fc.weight[:, : 2 * HIDDEN])
    assert is_noise(head.fc.weight[:, 2 * HIDDEN :] - torch.eye(HIDDEN))
    assert head.embed_tokens is None
    assert head.lm_head is None
    if isinstance(head, DSparkHead):
        assert head.markov_head is not None
        assert head.confidence_head is not None
        # What a token makes likely is nothing at first.
        assert not head.markov_head.markov_w2.weight.any()
        assert is_noise(head.markov_head.markov_w1.weight)
        assert not head.confidence_head.proj.bias.any()


def test_the_draft_vocabulary_is_what_is_written_most(target: Tiny) -> None:
    rng = random.Random(0)
    frequent = rng.sample(range(VOCAB), DRAFT_VOCAB)
    texts = [Text("k", (1, 1, 1), tuple(frequent * 3)), Text("k", (2,), (7, 8, 9, 7))]
    plan = plan_of(target, "eagle3")

    head = new_head(plan, target.model.config, token_counts(texts, VOCAB), 0)

    assert head.target_ids().tolist() == sorted(frequent)
    whole = plan_of(target, "eagle3", draft_vocab_size=VOCAB)
    assert new_head(whole, target.model.config, counts(), 0).d2t is None


@pytest.mark.parametrize("method", METHODS)
def test_noise_goes_by_the_seed(target: Tiny, method: Method) -> None:
    first, again, other = (started(target, method, seed=seed).own_state() for seed in (3, 3, 4))

    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


@pytest.mark.parametrize("num_drafts", [2, NUM_DRAFTS, 9])
@pytest.mark.parametrize("method", METHODS)
def test_a_new_head_can_be_written_and_read(
    target: Tiny, tmp_path: Path, method: Method, num_drafts: int
) -> None:
    head = started(target, method, num_drafts=num_drafts)

    save_head(head, tmp_path, num_drafts=num_drafts, dtype=torch.float32)
    found = load_head(tmp_path, target.model.config)

    # Which tokens begin and end a text is the target's to know.
    shape = replace(head.head_config.shape, bos_token_id=None, eos_token_ids=())
    assert found.head_config == replace(head.head_config, shape=shape)
    assert found.head_config.taps(NUM_LAYERS) == head.head_config.taps(NUM_LAYERS)
    own, read = head.own_state(), found.own_state()
    assert set(own) == set(read)
    assert all(torch.equal(own[name], read[name]) for name in own)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_ids": (0, 1, NUM_LAYERS)}, "layer 4 is not one of the target's 4"),
        ({"layer_ids": (-1, 1, 2)}, "layer -1 is not one of the target's 4"),
        ({"draft_vocab_size": VOCAB + 1}, f"the target has {VOCAB}"),
        ({"draft_vocab_size": 0}, "a draft vocabulary of 0 tokens"),
        ({"num_layers": NUM_LAYERS + 1}, "5 layers .* the target has 4"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_plan_that_the_target_does_not_have_the_layers_for(
    target: Tiny, method: Method, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SetupError, match=said):
        new_head(plan_of(target, method, **changes), target.model.config, counts(), 0)


def test_a_block_of_one_draft_could_not_be_read_again(target: Tiny) -> None:
    with pytest.raises(SetupError, match="2 drafts or more"):
        new_head(plan_of(target, "dspark", num_drafts=1), target.model.config, counts(), 0)
    for method in ("eagle3", "dflash"):
        new_head(plan_of(target, method, num_drafts=1), target.model.config, counts(), 0)


def test_a_target_without_its_weights_is_named(target: Tiny, tmp_path: Path) -> None:
    head = new_head(plan_of(target, "eagle3"), target.model.config, counts(), 0)

    with pytest.raises(BadCheckpoint, match=str(tmp_path)):
        start_from_target(head, tmp_path, target.model.config)


@pytest.mark.parametrize("num_layers", range(1, 40))
def test_the_usual_layers_are_the_target_s(num_layers: int) -> None:
    found = default_layer_ids(num_layers)

    assert len(found) == 3
    assert all(0 <= layer < num_layers for layer in found)
    if num_layers >= 8:
        assert found[0] < found[1] < found[2] == num_layers - 2


def test_a_head_may_start_from_another(target: Tiny) -> None:
    other = started(target, "dspark", seed=1)
    with torch.no_grad():
        for each in other.parameters():
            each.add_(0.01)
    head = started(target, "dspark", seed=2)

    start_from_head(head, other)

    theirs = other.own_state()
    assert all(torch.equal(each, theirs[name]) for name, each in head.own_state().items())


def test_of_another_method_what_is_alike_is_taken(target: Tiny) -> None:
    other, head = started(target, "dflash", seed=1), started(target, "dspark", seed=2)
    assert isinstance(head, DSparkHead)
    assert head.markov_head is not None
    markov = head.markov_head.markov_w1.weight.detach().clone()

    start_from_head(head, other)

    assert torch.equal(head.fc.weight, other.fc.weight)
    assert torch.equal(head.markov_head.markov_w1.weight, markov)


def test_a_head_of_another_size_is_no_start(target: Tiny) -> None:
    head = started(target, "eagle3")

    for other, said in (
        (started(target, "dflash"), r"no layers.0.hidden_norm.weight of shape \[64\]"),
        (started(target, "eagle3", layer_ids=(0, 1)), r"no fc.weight of shape \[64, 192\]"),
        (started(target, "eagle3", draft_vocab_size=9), "a draft vocabulary of another size"),
    ):
        assert isinstance(head, Eagle3Head)
        with pytest.raises(SetupError, match=said):
            start_from_head(head, other)
