"""Which tests share a process: kernels are interpreted in a whole process or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernels.ops.launching import IS_INTERPRETED
from tests import run_tests
from tests.run_tests import (
    INTERPRETED,
    INTERPRETING,
    MODELS,
    NONE_CHOSEN,
    Process,
    lanes,
    processes,
    worst,
)  # fmt: skip
from tests.support.source_tree import ROOT

FOLDERS = list(INTERPRETED)
ONE = "tests/kernels/ops/test_cases.py::test_x"


@pytest.mark.parametrize(
    ("arguments", "plain", "interpreted"),
    [
        ([], [[]], [[each] for each in FOLDERS]),
        (["-x", "-k", "a"], [["-x", "-k", "a"]], [[each, "-x", "-k", "a"] for each in FOLDERS]),
        (["tests/unit", "-x"], [["tests/unit", "-x"]], []),
        (["tests/kernels"], [["tests/kernels"]], [[each] for each in FOLDERS]),
        ([ONE], [], [[ONE]]),
        (["tests/unit", FOLDERS[1]], [["tests/unit"]], [[FOLDERS[1]]]),
    ],
)
def test_paths_go_to_their_own_process(
    arguments: list[str], plain: list[list[str]], interpreted: list[list[str]]
) -> None:
    wanted = [Process(tuple(each), {}) for each in plain]
    wanted += [Process(tuple(each), INTERPRETING) for each in interpreted]

    assert processes(arguments) == wanted


def test_every_test_is_in_one_of_two_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests.os, "cpu_count", lambda: 2)

    waiting, computing = lanes(["-x"])

    assert waiting == [Process(("-x", *(f"--ignore={each}" for each in MODELS)), {})]
    assert computing == [
        Process((*MODELS, "-x"), {}), *(Process((each, "-x"), INTERPRETING) for each in FOLDERS)
    ]  # fmt: skip
    assert lanes(["tests/unit"]) == [processes(["tests/unit"])]
    monkeypatch.setattr(run_tests.os, "cpu_count", lambda: 1)
    assert lanes(["-x"]) == [processes(["-x"])]


def test_a_process_without_tests_is_good_beside_one_that_has_some() -> None:
    assert worst([0, NONE_CHOSEN]) == 0
    assert worst([NONE_CHOSEN, NONE_CHOSEN]) == NONE_CHOSEN
    assert worst([0, 2]) == 2
    assert worst([NONE_CHOSEN, 1]) == 1


def test_kernels_are_compiled_here() -> None:
    assert not IS_INTERPRETED


@pytest.mark.slow
def test_interpreted_tests_are_left_out_beside_others_and_told() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in INTERPRETING}
    command = [sys.executable, "-m", "pytest", "--collect-only", "tests/kernels/test_targets.py"]
    done = subprocess.run(
        [*command, *FOLDERS], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )

    for folder in FOLDERS:
        assert f"{folder}/" not in done.stdout
        assert f"not run here: {folder}, which" in done.stdout
