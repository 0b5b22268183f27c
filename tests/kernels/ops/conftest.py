"""These tests run under Triton's interpreter: `tests.kernels.interpreted`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels import interpreted

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    interpreted.turn_on_for(HERE, config)


def pytest_ignore_collect() -> bool | None:
    return None if interpreted.is_on() else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    interpreted.tell_left_out("tests/kernels/ops", terminalreporter)


@pytest.fixture
def even_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of tiles whose rows do not depend on their place, as on a GPU.

    The interpreter multiplies by numpy, whose BLAS may sum a row's products in an order that hangs
    on how many rows there are and which one it is (on an AVX2 machine it does). Summed in float64
    and rounded once, no order shows.
    """
    from triton.runtime import interpreter

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        total = product.astype(d.data.dtype) + d.data
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
