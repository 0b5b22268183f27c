"""The states that a head is trained on are those of transformers, and of the engine that serves."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from backend.models.interface import FeatureTap
from backend.train.corpus import States
from backend.train.teacher import BLOCK_SIZE, Teacher
from tests.backend.unit.train.conftest import NUM_LAYERS
from tests.support.engine_world import Tiny, random_prompt
from tests.support.tiny_checkpoints import CONTEXT

TAPS = tuple(FeatureTap(layer, "in") for layer in (0, 2, NUM_LAYERS - 1))


def teacher_of(target: Tiny, rows_max: int, *, context_len: int = CONTEXT) -> Teacher:
    return Teacher(
        target.model, TAPS, context_len=context_len, rows_max=rows_max, device=torch.device("cpu")
    )


def reference_states(target: Tiny, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """(features, last): entry i of hidden_states enters layer i; the one behind all is normed."""
    with torch.inference_mode():
        out = target.reference(torch.tensor([tokens]), output_hidden_states=True)
    hidden = [each[0] for each in out.hidden_states]
    assert len(hidden) == NUM_LAYERS + 1
    return torch.cat([hidden[tap.layer] for tap in TAPS], 1), hidden[-1]


def check(found: States, target: Tiny, tokens: list[int]) -> None:
    features, last = reference_states(target, tokens)
    assert found.features.shape == features.shape
    for mine, theirs in ((found.features, features), (found.last, last)):
        assert float((mine - theirs).abs().max()) < 5e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_states_are_those_of_transformers(family: str, target: Tiny, qwen3: Tiny) -> None:
    chosen = target if family == "llama" else qwen3
    tokens = random_prompt(random.Random(1), 40)

    found = teacher_of(chosen, 64).read(tokens)

    check(found, chosen, tokens)
    # They are not nearly the same for every position, nor for every layer.
    parts = found.features.chunk(len(TAPS), 1)
    assert all(float((part[3] - part[4]).abs().max()) > 0.1 for part in parts)
    assert float((parts[1] - parts[2]).abs().max()) > 0.1


def test_the_last_state_gives_the_target_s_own_logits(target: Tiny) -> None:
    tokens = random_prompt(random.Random(2), 17)
    found = teacher_of(target, 64).read(tokens)
    with torch.inference_mode():
        logits = target.model.logits(found.last)
        expected = target.reference(torch.tensor([tokens])).logits[0]

    assert float((logits - expected).abs().max()) < 5e-4


@pytest.mark.parametrize("rows_max", [1, 7, BLOCK_SIZE, 33])
def test_texts_that_are_longer_than_a_forward_are_read_in_pieces(
    target: Tiny, rows_max: int
) -> None:
    tokens = random_prompt(random.Random(3), 2 * BLOCK_SIZE + 9)

    found = teacher_of(target, rows_max).read(tokens)

    check(found, target, tokens)


def test_nothing_of_the_text_before_is_seen(target: Tiny) -> None:
    rng = random.Random(4)
    teacher = teacher_of(target, 16)
    long, short = random_prompt(rng, 70), random_prompt(rng, 21)
    alone = teacher_of(target, 16).read(short)

    before = teacher.read(long)
    kept = before.features.clone(), before.last.clone()
    after = teacher.read(short)

    assert torch.equal(after.features, alone.features)
    assert torch.equal(after.last, alone.last)
    # What was given out is not written over by the next text.
    assert torch.equal(before.features, kept[0])
    assert torch.equal(before.last, kept[1])


def test_a_text_may_fill_the_whole_context(target: Tiny) -> None:
    tokens = random_prompt(random.Random(5), CONTEXT)

    check(teacher_of(target, 100).read(tokens), target, tokens)


def test_what_it_gives_can_be_learnt_from(target: Tiny) -> None:
    teacher = teacher_of(target, 16)
    found = teacher.read(random_prompt(random.Random(6), 20))

    assert teacher.columns == found.features.shape[1] + found.last.shape[1]
    assert teacher.dtype is torch.float32
    weight = torch.ones(found.features.shape[1], requires_grad=True)
    (found.features @ weight).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, found.features.sum(0), rtol=1e-4, atol=1e-4)
