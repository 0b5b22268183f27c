"""`python -m kernels tune` without a GPU: what is tried, what is kept, and what is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cases import table as cases
from kernels.cases.case import Call, Case, Maker, Work
from kernels.ops import configs
from kernels.ops.candidates import CANDIDATES, Candidate, candidates
from kernels.ops.configs import Question, Values
from kernels.ops.launching import recording
from kernels.targets import find
from kernels.tools import aot, commands, trial, tune, tuned_file
from kernels.tools.bench import Device
from kernels.tools.recipes import launches_of, questions_of, recipes, with_candidates
from kernels.tools.timing import ClockTimer
from kernels.tools.trial import Found, Trial, tried
from kernels.tools.tune import Asked, chosen, gain
from kernels.tools.tuned_file import Choice, Progress
from tests.support.source_tree import ROOT

ASKED = Asked(
    Question("gated_mul", "I=12288", {"block": 1024, "num_warps": 4}),
    (("first", "bfloat16"), ("second", "bfloat16")),
)


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


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


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


# What is written


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the place of kernels/ops/tuned."""
    (tmp_path / "tuned").mkdir()
    monkeypatch.setattr(configs, "files", lambda package: tmp_path)
    configs._of.cache_clear()
    yield tmp_path / "tuned"
    configs._of.cache_clear()


def device(clock: Clock) -> Device:
    return Device("cuda", "a chip", find("gfx942"), ClockTimer(clock), clock)


class Trials:
    """In the place of child processes: each takes its time, and one candidate is fast."""

    def __init__(self, clock: Clock, fast: Values, each_s: float = 1.0) -> None:
        self.clock, self.fast, self.each_s = clock, fast, each_s
        self.made: list[Trial] = []

    def __call__(self, made: Trial, limit_s: float) -> Found:
        self.made.append(made)
        self.clock.now_s += self.each_s
        return Found((1.0,), (0.5 if made.values == self.fast else 1.0,))


OTHER = Asked(replace(ASKED.question, sizes="I=704"), ASKED.cases)


def test_what_is_kept_is_written_read_back_and_used(folder: Path) -> None:
    clock, out = Clock(), folder / "gfx942.json"
    trials = Trials(clock, {"block": 2048})
    progress = Progress(out, "a chip")
    [recipe, *_] = recipes(["gfx942"], ops=["gated_mul"], is_main_only=True)
    (before,) = launches_of(recipe)

    is_done = tune.run([ASKED], device(clock), progress, out, try_it=trials, tell=lambda line: None)

    assert is_done
    assert json.loads(out.read_text()) == {"gated_mul": {"I=12288": {"block": 2048}}}
    configs._of.cache_clear()
    (after,) = launches_of(recipe)
    assert (before.grid[1], after.grid[1]) == (12, 6)
    [other, *_] = recipes(["gfx950"], ops=["gated_mul"], is_main_only=True)
    assert launches_of(other)[0].grid[1] == 12  # another chip's file
    assert {(each.op, each.sizes, each.cases, each.device) for each in trials.made} == {
        ("gated_mul", "I=12288", ASKED.cases, "cuda")
    }


def test_run_ends_in_time_and_the_next_one_goes_on(folder: Path) -> None:
    clock, out = Clock(), folder / "gfx942.json"
    first = Trials(clock, {"block": 2048}, each_s=30.0)
    num_tries = len(candidates(ASKED.question)) + 1
    limit_s = tune.TRIAL_S_MAX + 30.0 * (num_tries + 1)

    is_done = tune.run(
        [ASKED, OTHER], device(clock), Progress(out, "a chip"), out, limit_s=limit_s, try_it=first,
        tell=lambda line: None,
    )  # fmt: skip

    assert not is_done
    assert clock.now_s <= limit_s
    second, progress = Trials(clock, {"block": 512}), Progress(out, "a chip")
    assert progress.has(ASKED.question)
    assert not progress.has(OTHER.question)
    assert tune.run(
        [ASKED, OTHER], device(clock), progress, out, try_it=second, tell=lambda line: None
    )
    assert {each.sizes for each in second.made} == {"I=704"}
    assert json.loads(out.read_text()) == {
        "gated_mul": {"I=12288": {"block": 2048}, "I=704": {"block": 512}}
    }
    progress.forget()
    assert Progress(out, "a chip").choices == ()


def test_what_another_chip_or_other_kernels_left_is_begun_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "gfx942.json"
    Progress(out, "a chip").add(choice())

    assert Progress(out, "a chip").has(ASKED.question)
    assert not Progress(out, "another").has(ASKED.question)
    monkeypatch.setattr(tuned_file, "digest_of", lambda *_: "other kernels")
    assert not Progress(out, "a chip").has(ASKED.question)
    out.with_suffix(".progress").write_text("{")
    assert Progress(out, "a chip").choices == ()


def choice(**more: Any) -> Choice:
    given = {"values": {"block": 2048}, "is_kept": True, **more}
    return Choice(
        op="gated_mul", sizes="I=12288", num_cases=1, num_tried=4, default_s=2.0, own_s=1.0,
        gain=0.5, **given,
    )  # fmt: skip


def test_default_that_is_best_takes_an_old_value_out_and_leaves_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "gfx942.json"
    others = {"rms_norm": {"H=4096": {"num_warps": 8}}}
    out.write_text(json.dumps({**others, "gated_mul": {"I=12288": {"block": 512}}}))

    tuned_file.write(out, choice(is_kept=False))

    assert json.loads(out.read_text()) == others
    tuned_file.write(out, choice())
    assert configs.read(out) == {**others, "gated_mul": {"I=12288": {"block": 2048}}}
    assert [path.name for path in tmp_path.iterdir()] == ["gfx942.json"]


def test_where_all_defaults_stay_no_file_is_made(tmp_path: Path) -> None:
    tuned_file.write(tmp_path / "gfx942.json", choice(is_kept=False))

    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_to_are_refused_before_anything_is_tried(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=r"is for gfx950, and this GPU is gfx942; give another"):
        tuned_file.check(tmp_path / "gfx950.json", "gfx942")
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere to write x\.json to"):
        tuned_file.check(tmp_path / "nowhere/x.json", "gfx942")
    (tmp_path / "x.json").write_text('{"swiglu": {}}')
    with pytest.raises(
        ValueError, match=r"x\.json is no file of tuned values: there is no op 'swiglu'"
    ):
        tuned_file.check(tmp_path / "x.json", "gfx942")
    tuned_file.check(tmp_path / "mine.json", "gfx942")


# The command, and who may not use any of this


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["tune", "--op", "gated_mul"]) == commands.WRONG_USE

    told = capsys.readouterr().err
    assert "sees no GPU, and tune measures on one" in told
    assert "make test" in told


def test_too_short_a_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["tune", "--limit-s", "60"]) == commands.WRONG_USE
    assert "--limit-s must be at least 120" in capsys.readouterr().err


def test_command_writes_this_chips_own_file_and_no_other_chips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    here = {"arch": "gfx942"}
    monkeypatch.setattr(commands, "arch_of", lambda device: here["arch"])

    assert commands._file_of(device(Clock()), is_interpreted=False) == (
        ROOT / "kernels/ops/tuned/gfx942.json"
    )
    here["arch"] = "gfx941"
    with pytest.raises(ValueError, match=r"this GPU is gfx941, which has no line .* of gfx942"):
        commands._file_of(device(Clock()), is_interpreted=False)
    with pytest.raises(ValueError, match="say nothing; give --out FILE"):
        commands._file_of(device(Clock()), is_interpreted=True)


def test_command_tells_what_is_left_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, clock = tmp_path / "gfx942.json", Clock()
    trials = Trials(clock, {"block": 2048}, each_s=20.0)
    monkeypatch.setattr(commands, "_gpu", lambda command, timer: device(clock))
    monkeypatch.setattr(tune, "questions", lambda *_, **__: [ASKED, OTHER])
    monkeypatch.setattr(tune, "in_a_child", trials)
    asked = ["tune", "--out", str(out), "--limit-s", "170"]

    statuses = [commands.main(asked)]
    first = capsys.readouterr().out
    statuses.append(commands.main(asked))
    second = capsys.readouterr().out

    assert statuses == [commands.UNFINISHED, 0]
    assert "1 questions are left: run the same command again to go on" in first
    assert "a chip: 2 questions tried, 2 better than the default by 5% or more, twice" in second
    last = second.splitlines()[-2:]
    assert [line.split()[:2] for line in last] == [["gated_mul", "I=12288"], ["gated_mul", "I=704"]]
    assert all(line.endswith("50%  yes") for line in last)
    assert [path.name for path in tmp_path.iterdir()] == ["gfx942.json"]


def test_only_the_tools_know_of_candidates() -> None:
    """The serving path tunes nothing: it knows none of this, and nobody triton's own tuner."""
    sign = re.compile(r"kernels\.ops\.candidates|kernels\.tools\.(tune|trial)|\btrying\(")
    found = set()
    for folder in ("kernels", "backend"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "autotune" not in text, path
            if sign.search(text):
                found.add(path.relative_to(ROOT).as_posix())

    assert found == {
        "kernels/ops/configs.py",  # which only has the means
        *(f"kernels/tools/{name}.py" for name in ("recipes", "trial", "tune")),
    }
