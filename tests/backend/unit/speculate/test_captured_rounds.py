"""Rounds repeated from a capture draft what the ops draft one by one, and no others run from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config import Quantization
from backend.speculate import captured_rounds
from backend.speculate.proposers.dflash import DFlashProposer
from kernels.dispatch import Ops, do_only, select
from tests.support.draft_heads import MASK_TOKEN, save_block_head
from tests.support.draft_methods import NUM_DRAFTS, proposer_of
from tests.support.draft_references import BlockRules
from tests.support.draft_rounds import Rounds, States, play
from tests.support.engine_world import Tiny

pytestmark = pytest.mark.compiler

RULES = {
    "dflash": BlockRules(MASK_TOKEN),
    "dspark": BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla"),
}


@dataclass(slots=True)
class Counted:
    """Captures as the native ops make them, and how often each was repeated."""

    ops: Ops
    num_captures: int = 0
    num_repeats: int = 0
    fails: bool = False

    def capture(self, work: Callable[[], None]) -> Callable[[], bool] | None:
        self.num_captures += 1
        repeat = self.ops.capture(work)
        assert repeat is not None, "torch took part"

        def counted() -> bool:
            self.num_repeats += 1
            return not self.fails and repeat()

        return counted

    def counting(self) -> Ops:
        return replace(self.ops, capture=self.capture)


@pytest.fixture(params=["dflash", "dspark"])
def make(
    request: pytest.FixtureRequest, target: Tiny, tmp_path: Path
) -> Callable[[Ops], DFlashProposer]:
    saved = save_block_head(tmp_path, request.param, rules=RULES[request.param])

    def made(ops: Ops) -> DFlashProposer:
        proposer = proposer_of(target, saved, ops=ops, quantization=Quantization.INT8)
        assert isinstance(proposer, DFlashProposer)
        return proposer

    return made


def drafts_of(proposer: DFlashProposer, states: States) -> list[dict[int, list[int]]]:
    """Of every round of a long play."""
    rounds, found = Rounds(proposer, states, NUM_DRAFTS), []

    def note(given: Rounds) -> None:
        found.append({slot: list(each.drafts) for slot, each in given.running.items()})

    play(rounds, note, lookahead=0)
    return found


def test_repeated_rounds_draft_the_same(
    make: Callable[[Ops], DFlashProposer], states: States
) -> None:
    native = select("cpu", "native")
    counted = Counted(native)

    expected = drafts_of(make(replace(native, capture=do_only)), states)

    assert drafts_of(make(counted.counting()), states) == expected
    assert len({str(each) for each in expected}) > 5
    assert counted.num_repeats > 0
    shapes = counted.num_captures
    assert 1 < shapes < 10


def test_a_round_that_cannot_be_repeated_runs_as_it_is(
    make: Callable[[Ops], DFlashProposer], states: States
) -> None:
    counted = Counted(select("cpu", "native"), fails=True)

    found = drafts_of(make(counted.counting()), states)

    assert counted.num_repeats > 0
    assert found == drafts_of(make(select("cpu", "native")), states)


def test_large_rounds_and_prompts_are_not_captured(
    make: Callable[[Ops], DFlashProposer], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_rounds, "ROWS_MAX", 6)
    counted = Counted(select("cpu", "native"))
    rounds = Rounds(make(counted.counting()), states, NUM_DRAFTS)

    rounds.admit(1, rounds.prompt(5))
    assert counted.num_captures == 0
    rounds.round({1: 1})
    assert counted.num_captures == 1
    rounds.admit(2, rounds.prompt(5))
    rounds.round({1: 0, 2: 2})
    assert counted.num_captures == 1


def test_old_captures_are_forgotten(
    make: Callable[[Ops], DFlashProposer], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_rounds, "CAPTURES_MAX", 1)
    counted = Counted(select("cpu", "native"))
    proposer: Any = make(counted.counting())
    rounds = Rounds(proposer, states, NUM_DRAFTS)
    rounds.admit(1, rounds.prompt(5))

    for num_drafts in (4, 2, 4, 2):
        rounds.round({1: 1}, verified=2, num_drafts=num_drafts)

    assert len(proposer._rounds._known) == 1
    assert counted.num_captures >= 3


def test_picks_in_one_call_are_those_of_slot_after_slot(
    target: Tiny, states: States, tmp_path: Path
) -> None:
    saved = save_block_head(tmp_path, "dspark", rules=RULES["dspark"])
    ops = select("cpu", "native")
    proposers: list[Any] = [
        proposer_of(target, saved, ops=ops, quantization=Quantization.INT8) for _ in range(2)
    ]
    assert proposers[0]._w2_int8 is not None
    proposers[0]._w2_int8 = None

    expected, found = (drafts_of(each, states) for each in proposers)

    assert found == expected


def test_without_captures_nothing_is_kept_from_round_to_round(states: States) -> None:
    """Where the ops cannot repeat, each round runs on what it was given."""
    seen: list[torch.Tensor] = []

    class Given:
        def shape(self) -> tuple[int, ...]:
            return (1, 1)

        def copied(self) -> Any:
            return Given()

        def tensors(self) -> tuple[torch.Tensor, ...]:
            return ()

    def work(given: Any) -> torch.Tensor:
        seen.append(given)
        return torch.zeros(1)

    rounds = captured_rounds.CapturedRounds(select("cpu", "reference"), work)
    given: list[Any] = [Given() for _ in range(3)]
    for each in given:
        rounds.run(each)

    assert seen[1:] == given[1:]
    assert list(rounds._known.values()) == [None]
