"""Whether work recorded as a graph gives, when repeated, what it gives when launched op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels.cases.case import Maker
from kernels.doctor.verdict import CAPTURE, OpReport, Outcome
from kernels.ops.graphs import Graphs
from kernels.tools.against_torch import shown_error

NEEDED = ("rms_norm", "gated_mul")
ROWS, WIDTH, REPETITIONS = 4, 4096, 3


def check_capture(ops: Mapping[str, Callable[..., Any]], device: str) -> OpReport:
    """A residual that grows in place, and memory that the work asks for: what a step does too."""
    maker = Maker(device)
    weight = maker.normal(WIDTH, salt=1)
    residual, result = maker.normal(ROWS, WIDTH, salt=2), torch.empty(ROWS, WIDTH // 2).to(device)

    def work() -> None:
        normed, _ = ops["rms_norm"](
            result.repeat(1, 2), weight, eps=1e-6, residual=residual, residual_out=residual
        )
        ops["gated_mul"](normed, out=result)

    def fill(salt: int) -> None:
        residual.copy_(maker.normal(ROWS, WIDTH, salt=salt))
        result.copy_(maker.normal(ROWS, WIDTH // 2, salt=salt + 100))

    try:
        with torch.inference_mode():
            fill(2)
            repeat = Graphs(device).capture(work)
            if repeat is None:
                return _report(Outcome.RAISED, "the ops cannot be recorded; the log says why")
            for salt in range(3, 3 + REPETITIONS):
                fill(salt)
                work()
                expected = residual.clone(), result.clone()
                fill(salt)
                repeat()
                if not (torch.equal(residual, expected[0]) and torch.equal(result, expected[1])):
                    return _report(Outcome.WRONG, "a repetition gives other values than the ops")
    except Exception as error:
        return _report(Outcome.RAISED, shown_error(error))
    return _report(Outcome.OK, "")


def _report(outcome: Outcome, reason: str) -> OpReport:
    return OpReport(op=CAPTURE, outcome=outcome, reason=reason, cases=("steps as graphs",))
