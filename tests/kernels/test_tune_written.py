"""What `python -m kernels tune` writes, and how it goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.ops import configs
from kernels.ops.candidates import candidates
from kernels.ops.configs import Values
from kernels.targets import find
from kernels.tools import commands, tune, tuned_file
from kernels.tools.bench import Device
from kernels.tools.recipes import launches_of, recipes
from kernels.tools.timing import ClockTimer
from kernels.tools.trial import Found, Trial
from kernels.tools.tune import Asked
from kernels.tools.tuned_file import Choice, Progress
from tests.support.source_tree import ROOT
from tests.support.tune_world import ASKED, Clock

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


def test_without_a_gpu_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
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
