"""These tests run under Triton's interpreter, which a process has for all kernels or for none.

`make test` and `make check` give them a process of their own; so does `pytest tests/kernels/ops`.
In a run of other tests beside them they are left out, and the summary says so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
VARIABLE = "TRITON_INTERPRET"


def pytest_configure(config: pytest.Config) -> None:
    # Before any module of tests is imported, and so before the first kernel is decorated.
    asked_for = [Path(each.split("::")[0]).resolve() for each in config.args]
    if asked_for and all(path == HERE or HERE in path.parents for path in asked_for):
        os.environ[VARIABLE] = "1"


def pytest_ignore_collect() -> bool | None:
    return None if os.environ.get(VARIABLE) == "1" else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get(VARIABLE) != "1":
        terminalreporter.write_line(
            "not run here: tests/kernels/ops, which need a process of their own (make test)"
        )
