"""Steps repeated from a capture give the bits that the layers give, and no others run from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.config import DType, EngineConfig, Quantization
from backend.models import captured
from backend.models.interface import CausalModel, FeatureTap
from backend.models.loading import load_model
from kernels.dispatch import Ops, do_only, select
from tests.support.tiny_checkpoints import (
    BLOCK_SIZE,
    VOCAB,
    Chunk,
    save_tiny,
    step_input,
    step_logits,
)

pytestmark = pytest.mark.compiler

INT8 = EngineConfig(dtype=DType.FLOAT32, quantization=Quantization.INT8, rows_max=64)
NUM_BLOCKS = 24
BLOCKS = ((7, 2, 9, 4, 11), (5, 3, 8, 12, 1), (10, 6, 20, 21, 22))


@dataclass(slots=True)
class Counted:
    """Captures as the native ops make them, and how often each was repeated."""

    ops: Ops
    num_captures: int = 0
    num_repeats: int = 0
    fails: bool = False
    made: list[bool] = field(default_factory=list)

    def capture(self, work: Callable[[], None]) -> Callable[[], bool] | None:
        self.num_captures += 1
        repeat = self.ops.capture(work)
        self.made.append(repeat is not None)
        if repeat is None:
            return None

        def counted() -> bool:
            self.num_repeats += 1
            return not self.fails and repeat()

        return counted


@pytest.fixture(scope="module")
def directory(tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("tiny")
    save_tiny(path)
    return path


def models(directory: Path) -> tuple[CausalModel, CausalModel, Counted]:
    """One without captures, one with them, and the count of its captures."""
    native = select("cpu", "native")
    counted = Counted(native)
    plain = load_model(directory, INT8, ops=replace(native, capture=do_only)).model
    return (
        plain,
        load_model(directory, INT8, ops=replace(native, capture=counted.capture)).model,
        (counted),
    )


def steps(num_tokens: int, at_once: int, query_len: int = 1) -> list[list[list[Chunk]]]:
    """`at_once` sequences from their first token on."""
    drawn = torch.randint(
        0, VOCAB, (at_once, num_tokens), generator=torch.Generator().manual_seed(1)
    )
    return [
        [
            [
                Chunk(drawn[idx, at : at + query_len].tolist(), at, BLOCKS[idx])
                for idx in range(at_once)
            ]
        ]
        for at in range(0, num_tokens, query_len)
    ]


def logits_of(model: CausalModel, given: list[list[list[Chunk]]]) -> list[Tensor]:
    cache = model.make_cache(NUM_BLOCKS, BLOCK_SIZE)
    return [step_logits(model, cache, groups) for groups in given]


@pytest.mark.parametrize(("at_once", "query_len"), [(1, 1), (3, 1), (2, 4)])
def test_a_repeated_step_is_the_step_to_the_bit(
    directory: Path, at_once: int, query_len: int
) -> None:
    plain, repeating, counted = models(directory)
    given = steps(5 * BLOCK_SIZE, at_once, query_len)

    expected, actual = logits_of(plain, given), logits_of(repeating, given)

    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
    assert (counted.num_captures, counted.num_repeats) == (1, len(given) - 1)
    assert counted.made == [True]


def test_each_shape_and_each_cache_has_a_capture_of_its_own(directory: Path) -> None:
    plain, repeating, counted = models(directory)
    given = [groups for pair in zip(steps(6, 1), steps(6, 2), strict=True) for groups in pair]

    for _ in range(2):
        expected, actual = logits_of(plain, given), logits_of(repeating, given)
        assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))

    assert counted.num_captures == 4


def test_prompts_and_mixes_are_not_captured(directory: Path) -> None:
    _, model, counted = models(directory)
    cache = model.make_cache(NUM_BLOCKS, BLOCK_SIZE)
    prompt = list(range(captured.QUERY_LEN_MAX + 1))

    step_logits(model, cache, [[Chunk(prompt, 0, BLOCKS[0])]])
    step_logits(model, cache, [[Chunk([1], 0, BLOCKS[0])], [Chunk([2, 3], 0, BLOCKS[1])]])

    assert counted.num_captures == 0


def test_states_for_drafts_are_repeated_too_each_into_its_own_buffers(directory: Path) -> None:
    """What enters the first layer, what enters the second, and what leaves the last one."""
    plain, repeating, counted = models(directory)
    size, last = plain.config.hidden_size, plain.config.num_layers - 1
    taps = (FeatureTap(0, "in"), FeatureTap(1, "in"), FeatureTap(last, "out"))
    sets = [{tap: torch.zeros(8, size) for tap in taps} for _ in range(3)]
    expected, *others = sets
    caches = [model.make_cache(NUM_BLOCKS, BLOCK_SIZE) for model in (plain, repeating)]

    for turn in range(6):
        given = [[Chunk([turn + 5, turn + 9], 2 * turn, BLOCKS[0])]]
        actual = others[turn % 2]
        with torch.inference_mode():
            normed = [
                model.forward(step_input(given, BLOCK_SIZE, features), cache).clone()
                for model, cache, features in zip(
                    (plain, repeating), caches, (expected, actual), strict=True
                )
            ]
        assert torch.equal(*normed)
        for tap in taps:
            assert torch.equal(actual[tap], expected[tap])
            assert actual[tap][:2].any()
            assert not actual[tap][2:].any()

    assert counted.made == [True, True]  # one for each set of buffers
    assert counted.num_repeats == 4


def test_a_repeat_that_fails_lets_the_op_say_why(directory: Path) -> None:
    _, model, counted = models(directory)
    cache = model.make_cache(NUM_BLOCKS, BLOCK_SIZE)
    step_logits(model, cache, [[Chunk([1], 0, BLOCKS[0])]])

    with pytest.raises(IndexError, match="slot not below"):
        step_logits(model, cache, [[Chunk([1], 1, (NUM_BLOCKS + 5, *BLOCKS[0][1:]))]])
    assert counted.num_repeats == 1


def test_a_repeat_that_fails_for_a_passing_reason_is_done_by_the_layers(directory: Path) -> None:
    plain, repeating, counted = models(directory)
    counted.fails = True
    given = steps(4, 1)

    expected, actual = logits_of(plain, given), logits_of(repeating, given)

    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_only_so_many_captures_are_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "CAPTURES_MAX", 2)
    _, model, counted = models(directory)
    given = [steps(1, 1)[0], steps(1, 2)[0], steps(1, 3)[0]]

    for _ in range(2):
        logits_of(model, given)

    assert counted.num_captures == 6
