"""The whole command of `bench`, at small sizes under the interpreter; its times say nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kernels.cases import table
from kernels.tools import bench, commands


def test_bench_runs_from_the_cases_to_the_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    op = "gated_mul"
    status = commands.main(
        ["bench", "--interpreted", "--op", op, "--limit-s", "14", "--json", str(file)]
    )

    small = [case for case in table.cases() if case.op == op and case.size == "small"]
    told = capsys.readouterr().out
    results = json.loads(file.read_text())["results"]
    assert status == 0, told
    assert {each["case"] for each in results} == {case.name for case in small}
    assert all(each["verdict"]["is_right"] for each in results if each["verdict"])
    timed = [each for each in results if each["ours"] is not None]
    assert timed, told
    assert all(each["ours"]["median_s"] > 0 for each in timed)
    last = told.strip().splitlines()[-1]
    assert last.startswith(f"{op}/{small[-1].name}")
    assert "no GPU (interpreted): " in told


def test_kernel_that_never_ends_ends_the_command_with_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, statuses = threading.Event(), []

    def exits(status: int) -> None:
        statuses.append(status)
        ended.set()

    def hangs(*_: Any, progress: bench.Progress, **__: Any) -> None:
        progress.results.append(bench.Result("gated_mul", "first", "float32", None, "no time"))
        progress.at = "gated_mul/second"
        assert ended.wait(60)

    monkeypatch.setattr(commands.os, "_exit", exits)
    monkeypatch.setattr(bench, "run", hangs)
    monkeypatch.setattr(bench, "RESERVED_S", 0.1)
    commands.main(["bench", "--interpreted", "--limit-s", "0.3"])

    told = capsys.readouterr()
    assert statuses == [commands.HUNG]
    assert "no end in 0.3 s, at gated_mul/second" in told.err
    assert "gated_mul/first float32: no time" in told.out


def test_limit_that_leaves_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["bench", "--interpreted", "--limit-s", "5"]) == commands.WRONG_USE
    assert "--limit-s must be more than 10" in capsys.readouterr().err


def test_bench_refuses_a_gpu_that_is_interpreted(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["bench"]) == commands.WRONG_USE
    assert "kernels: " in capsys.readouterr().err


def test_nothing_is_compiled_where_kernels_are_interpreted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert commands.main(["aot", "--main"]) == commands.WRONG_USE
    assert "TRITON_INTERPRET=1 is set" in capsys.readouterr().err
