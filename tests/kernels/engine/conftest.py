"""The engine through interpreted kernels: `tests.kernels.interpreted`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels import interpreted

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    interpreted.turn_on_for(HERE, config)


def pytest_ignore_collect() -> bool | None:
    return None if interpreted.is_on() else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    interpreted.tell_left_out("tests/kernels/engine", terminalreporter)
