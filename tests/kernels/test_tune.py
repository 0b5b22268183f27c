"""`python -m kernels tune` without a GPU: what is tried, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.cases import table as cases
from kernels.cases.case import Call, Case, Maker, Work
from kernels.ops import configs
from kernels.ops.candidates import CANDIDATES, Candidate, candidates
from kernels.ops.configs import Question, Values
from kernels.ops.launching import recording
from kernels.tools import aot, trial, tune
from kernels.tools.recipes import launches_of, questions_of, recipes, with_candidates
from kernels.tools.timing import ClockTimer
from kernels.tools.trial import Found, Trial, tried
from kernels.tools.tune import chosen, gain
from tests.support.tune_world import ASKED, Clock


@pytest.fixture(scope="module")
def questions() -> dict[tuple[str, str], Question]:
    """All that serving cases ask on gfx942."""
    wanted = [each for each in recipes(["gfx942"]) if not each.is_large]
    return {(each.op, each.sizes): each for recipe in wanted for each in questions_of(recipe)}


# What is tried


def test_every_op_that_asks_has_candidates_and_every_candidate_an_op_that_asks(
    questions: dict[tuple[str, str], Question],
) -> None:
    assert {op for op, _ in questions} == set(CANDIDATES)
    idle = [
        (op, candidate)
        for op, those in CANDIDATES.items()
        for candidate in those
        if not any(candidate.suits(each.default) for each in questions.values() if each.op == op)
    ]
    # Of the table that all products share, what one of them has no use for.
    assert [each for each in idle if not each[0].startswith(("linear_", "moe_"))] == []
    assert all(candidates(question) for question in questions.values())


def test_candidates_change_something_and_keep_to_amds_practice(
    questions: dict[tuple[str, str], Question],
) -> None:
    for question in questions.values():
        found = candidates(question)
        assert len({json.dumps(each) for each in found}) == len(found)
        for values in found:
            after = {**question.default, **values}
            assert set(after) == set(question.default)
            assert after != question.default
            assert after.get("num_stages", 1) in (1, 2)
            assert after.get("waves_per_eu", 0) in (0, 2)
            assert after.get("num_warps", 4) in (1, 2, 4, 8, 16)
            assert all(value & (value - 1) == 0 for value in values.values())


def test_candidate_suits_what_it_is_for() -> None:
    wide = Candidate({"block_n": 32}, {"block_m": (16, 32)})

    assert wide.suits({"block_m": 16, "block_n": 64})
    assert not wide.suits({"block_m": 64, "block_n": 64})
    assert not wide.suits({"block_m": 16, "block_n": 32})  # nothing would change
    assert not wide.suits({"num_parts": 4})
    assert candidates(Question("sample", "", {"block": 1})) == []


def test_recipes_of_candidates_launch_what_they_name() -> None:
    [recipe, *_] = recipes(["gfx942"], ops=["gated_mul"], is_main_only=True)
    own = with_candidates([recipe])
    wide = next(each for each in own if each.tried == (("block", 2048),))

    (plain,), (other,) = launches_of(recipe), launches_of(wide)

    assert wide.shown == f"{recipe.shown} (block 2048)"
    assert (plain.grid[1], other.grid[1]) == (12, 6)
    assert {each.sizes for each in own} == {"I=12288"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_candidates_compile_within_the_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of them; `make aot ARGS=--candidates` compiles all."""
    few = {(("tile", 16),), (("part", 32),)}
    monkeypatch.setattr(
        aot,
        "with_candidates",
        lambda wanted: [each for each in with_candidates(wanted) if each.tried in few],
    )

    report = aot.run(
        ["gfx942"],
        ops=["paged_attention", "gated_delta"],
        is_main_only=True,
        has_candidates=True,
    )

    assert report.is_good, aot.shown(report)
    assert {each.tried for row in report.rows for each in row.planned.used_by} == few
    assert len(report.rows) > len(few)


# What is kept


class Script:
    """In the place of trials: the share of the default's time that each one takes, in turn."""

    def __init__(self, **shares: Sequence[float]) -> None:
        self.shares = {name: list(each) for name, each in shares.items()}
        self.asked: list[str] = []

    def __call__(self, values: Values) -> Found:
        name = "_".join(f"{key}{value}" for key, value in values.items())
        self.asked.append(name)
        share = self.shares.get(name, [1.0])
        now = share.pop(0) if len(share) > 1 else share[0]
        return Found((1.0, 3.0), (now, 3.0 * now))


def test_gain_is_the_share_saved_and_nothing_where_a_case_is_slower_or_wrong() -> None:
    assert gain(Found((1.0, 3.0), (0.9, 2.7))) == pytest.approx(0.1)
    assert gain(Found((1.0, 3.0), (1.019, 2.0))) > 0.2
    assert gain(Found((1.0, 3.0), (1.021, 2.0))) == 0.0
    assert gain(Found(wrong="first: 3 values differ")) == 0.0
    assert gain(Found((1.0,), (2.0,))) == 0.0


def test_candidate_that_is_better_twice_is_kept() -> None:
    script = Script(block2048=[0.9, 0.91])

    choice = chosen(ASKED, script)

    assert choice.is_kept
    assert choice.values == {"block": 2048}
    assert (choice.op, choice.sizes, choice.num_cases) == ("gated_mul", "I=12288", 2)
    assert choice.own_s / choice.default_s == pytest.approx(0.91)  # of the second time
    assert script.asked.count("block2048") == 2
    assert choice.num_tried == len(script.asked) - 1 == len(candidates(ASKED.question))


@pytest.mark.parametrize("shares", [[0.951, 0.5], [0.9, 0.96], [0.9, 1.1]])
def test_candidate_within_the_noise_or_better_once_is_not_kept(shares: list[float]) -> None:
    choice = chosen(ASKED, Script(block2048=shares))

    assert not choice.is_kept


def test_best_is_looked_at_again_first_and_the_next_if_it_was_luck() -> None:
    script = Script(block512=[0.7, 1.0], num_warps2=[0.8, 0.8], block2048=[0.9, 0.9])

    choice = chosen(ASKED, script)

    assert choice.values == {"num_warps": 2}
    assert choice.is_kept
    assert script.asked[choice.num_tried :] == ["block512", "num_warps2"]


def test_no_more_than_the_two_best_are_looked_at_again() -> None:
    script = Script(block512=[0.7, 1.0], num_warps2=[0.8, 1.0], block2048=[0.9, 0.9])

    assert not chosen(ASKED, script).is_kept
    assert "block2048" not in script.asked[-2:]


def test_wrong_candidates_are_told_and_never_kept() -> None:
    choice = chosen(ASKED, lambda values: Found(wrong="first: 2 values differ"))

    assert not choice.is_kept
    assert choice.values == {}
    assert "block 512: first: 2 values differ" in choice.wrong
    text = tune.shown([choice])
    assert text.startswith("gated_mul I=12288, block 512: first: 2 values differ")
    assert text.splitlines()[-1].split()[-2:] == ["0%", "no"]


# How one is tried


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    """An op in the place of the table's: it takes as many seconds as its `block` says."""

    def place(wrong_at: int = -1) -> Clock:
        clock = Clock()

        def op(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
            with recording("gfx942"):
                block = configs.tuned("gated_mul", "I=8", {"block": 3})["block"]
            clock.now_s += block
            assert out is not None
            return out.copy_(gate_up * (2.5 if block == wrong_at else 2.0))

        def make(maker: Maker, dtype: torch.dtype) -> Call:
            x = maker.normal(4, 8, dtype=dtype)
            return Call((x,), {"out": torch.zeros_like(x)})

        case = Case("gated_mul", "doubled", "main", make, lambda call: Work(1.0))
        monkeypatch.setattr(cases, "find", lambda op, name: case)
        monkeypatch.setattr(cases, "function", lambda name: op)
        monkeypatch.setitem(trial.REFERENCE, "gated_mul", lambda x, out: out.copy_(x * 2.0))
        return clock

    return place


def trial_of(block: int) -> Trial:
    return Trial("gated_mul", "I=8", {"block": block}, (("doubled", "float32"),), "cpu")


def test_candidate_is_timed_beside_the_default(placed: Callable[..., Clock]) -> None:
    clock = placed()

    found = tried(trial_of(2), timer=ClockTimer(clock), clock=clock)

    assert found == Found((3.0,), (2.0,))


def test_candidate_with_wrong_results_is_not_timed(placed: Callable[..., Clock]) -> None:
    clock = placed(wrong_at=2)

    found = tried(trial_of(2), timer=ClockTimer(clock), clock=clock)

    assert found.own_s == ()
    assert found.wrong.startswith("doubled: result 0: an error of ")
    assert clock.now_s == 2.0  # it ran once


def test_value_that_the_op_does_not_have_is_its_trials_fault(placed: Callable[..., Clock]) -> None:
    clock = placed()

    found = tried(replace(trial_of(2), values={"tile": 2}), timer=ClockTimer(clock), clock=clock)

    assert "ValueError: " in found.wrong
    assert "sets tile, which the op does not have" in found.wrong


def test_process_that_dies_costs_its_candidate_and_a_dead_gpu_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[object] = ["no end after 60 s; it was killed", True]
    monkeypatch.setattr(tune, "_alone", lambda work, argument, limit_s: ends.pop(0))

    assert tune.in_a_child(trial_of(2), 60.0).wrong == "no end after 60 s; it was killed"

    ends[:] = ["the process ended by signal 6 and gave no answer", "no end after 60 s"]
    with pytest.raises(
        RuntimeError, match=r"stopped answering after gated_mul I=8 with block 2 \("
    ):
        tune.in_a_child(trial_of(2), 60.0)
