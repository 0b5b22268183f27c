"""Children under a time limit: answers, errors, deaths and hangs, each costing one answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernels.tools.children import Outcome, each_in_a_child
from tests.support.child_work import (
    dies,
    doubled,
    fails,
    hangs_if_odd,
    hangs_with_a_child_of_its_own,
    is_killed,
)

LIMIT_S = 60.0
HANGS_S = 3.0  # long enough for a child to begin on a busy machine
PRELOAD = ("pytest", "tests.support.child_work")


def outcomes(work: object, arguments: list[object], limit_s: float = LIMIT_S) -> list[Outcome]:
    found = dict(
        each_in_a_child(work, arguments, limit_s=limit_s, num_at_once=2, preload=PRELOAD)  # type: ignore[arg-type]
    )
    return [found[index] for index in range(len(arguments))]


def test_every_argument_gets_its_own_answer() -> None:
    found = outcomes(doubled, [1, 2, 3, 4, 5])

    assert [each.value for each in found] == [2, 4, 6, 8, 10]
    assert [each.error for each in found] == [""] * 5


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (fails, "RuntimeError: no 7 ... at last"),
        (dies, "the process ended with status 7 and gave no answer"),
        (is_killed, "the process ended by signal 11 and gave no answer"),
    ],
)
def test_error_or_death_of_a_child_is_told(work: object, error: str) -> None:
    [found] = outcomes(work, [7])

    assert (found.value, found.error) == (None, error)


def test_hang_is_killed_and_costs_one_answer() -> None:
    started_s = time.monotonic()
    found = outcomes(hangs_if_odd, [0, 1, 2, 4], limit_s=HANGS_S)

    assert [each.value for each in found] == [0, None, 2, 4]
    assert found[1].error == "no end after 3 s; it was killed"
    assert time.monotonic() - started_s < 40


def test_childs_own_child_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    [found] = outcomes(hangs_with_a_child_of_its_own, [str(file)], limit_s=HANGS_S)

    assert "was killed" in found.error
    pid = int(file.read_text())
    deadline_s = time.monotonic() + 5
    while _is_running(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not _is_running(pid)


def test_what_still_runs_is_ended_when_nobody_asks_any_more() -> None:
    started_s = time.monotonic()
    answers = each_in_a_child(hangs_if_odd, [0, 1], limit_s=60, num_at_once=2, preload=PRELOAD)
    next(answers)
    answers.close()  # type: ignore[attr-defined]

    assert time.monotonic() - started_s < 40


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(") ", 1)[1][0] != "Z"
