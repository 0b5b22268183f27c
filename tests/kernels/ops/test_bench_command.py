"""The whole command of `bench`, at small sizes under the interpreter; its times say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.cases import table
from kernels.tools import commands


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


def test_bench_refuses_a_gpu_that_is_interpreted(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["bench"]) == commands.WRONG_USE
    assert "kernels: " in capsys.readouterr().err


def test_nothing_is_compiled_where_kernels_are_interpreted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert commands.main(["aot", "--main"]) == commands.WRONG_USE
    assert "TRITON_INTERPRET=1 is set" in capsys.readouterr().err
