"""One op beside torch's own: the same inputs, the same results, and how long both take.

Runs in a child process (`kernels.doctor.child`): what it calls may never come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec
import torch

from kernels.cases.case import Case, Maker, Size
from kernels.dispatch import REFERENCE
from kernels.doctor import capturing
from kernels.doctor.shapes import Geometry, cases_of
from kernels.doctor.verdict import CAPTURE, OpReport, Outcome
from kernels.tools.against_torch import (
    bound_of,
    difference,
    results_of,
    shown_error,
    tensors_in,
)
from kernels.tools.checking import poisoned
from kernels.tools.timing import ClockTimer, EventTimer, Run, interleaved

SEED = 1
SLOWER_MAX = 1.2  # times torch's own: below it, it may be the machine
TIMED_S_MAX = 2.0  # a case, for both

Function = Callable[..., Any]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to try. No `op`: only whether the device still answers."""

    module: str  # whose `load()` offers the ops
    op: str
    device: str
    dtype: str  # of the model; a case that cannot have it is tried in its own
    geometry: Geometry | None = None
    size: Size = "main"  # of the cases of an op that the model does not have
    is_timed: bool = True
    limit_s: float = 600.0  # after which the child ends itself, should nobody be there to end it


def check(task: Task) -> OpReport:
    """Never raises for what an op does; a report is what comes of it."""
    index = torch.device(task.device).index
    if index is not None and torch.device(task.device).type != "cpu":
        torch.cuda.set_device(index)  # its clock is the current device's
    if not task.op:
        return _probe(task.device)
    if task.op == CAPTURE:
        return capturing.check_capture(import_module(task.module).load(), task.device)
    function = import_module(task.module).load()[task.op]
    cases = cases_of(task.op, task.geometry, task.size)
    if not cases:
        return OpReport(op=task.op, outcome=Outcome.UNCHECKED, reason="there is no case of it")
    found = []
    for case in cases:
        report = _check_case(case, function, task)
        found.append(report)
        if report.outcome is not Outcome.OK:
            return report
    return _summed(task.op, found)


def _probe(device: str) -> OpReport:
    total = float(torch.ones(1024, device=device).sum())
    outcome = Outcome.OK if total == 1024.0 else Outcome.WRONG
    return OpReport(op="", outcome=outcome)


def _check_case(case: Case, function: Function, task: Task) -> OpReport:
    wanted: torch.dtype = getattr(torch, task.dtype)
    dtype = wanted if wanted in case.dtypes else case.dtypes[0]
    about: dict[str, Any] = {"op": case.op, "cases": (case.name,)}
    reference = REFERENCE[case.op]
    try:
        expected_call = case.make(Maker(task.device, SEED), dtype)
        expected = results_of(reference, expected_call, task.device)
        call = poisoned(case.op, case.make(Maker(task.device, SEED), dtype))
    except Exception as error:
        reason = f"torch's own op fails at {case.name} ({shown_error(error)})"
        return OpReport(outcome=Outcome.UNCHECKED, reason=reason, **about)
    try:
        results = results_of(function, call, task.device)
    except Exception as error:
        return OpReport(
            outcome=Outcome.RAISED, reason=f"{case.name}: {shown_error(error)}", **about
        )
    # What an op writes into its arguments counts as its result.
    mine, theirs = (*results, *tensors_in(call)), (*expected, *tensors_in(expected_call))
    distance, reason = difference(mine, theirs, bound=bound_of(case, dtype))
    about["error"] = distance
    if reason:
        return OpReport(outcome=Outcome.WRONG, reason=f"{case.name}: {reason}", **about)
    op_s = reference_s = None
    if task.is_timed:
        op_s, reference_s = medians_s(
            (lambda: function(*call.args, **call.kwargs)),
            (lambda: reference(*expected_call.args, **expected_call.kwargs)),
            task.device,
        )
    return OpReport(outcome=Outcome.OK, op_s=op_s, reference_s=reference_s, **about)


def _summed(op: str, found: Sequence[OpReport]) -> OpReport:
    """All cases are right. Slow is judged over all of them: one step makes them all."""
    names = tuple(name for each in found for name in each.cases)
    errors = [each.error for each in found if each.error is not None]
    op_s, reference_s = (
        _total(each.op_s for each in found),
        _total(each.reference_s for each in found),
    )
    outcome, reason = Outcome.OK, ""
    if op_s is not None and reference_s is not None and op_s > SLOWER_MAX * reference_s:
        outcome = Outcome.SLOW
        reason = (
            f"{op_s * 1e6:.1f} us, torch's own op {reference_s * 1e6:.1f} us; "
            f"up to {SLOWER_MAX:g} times as long is taken for noise"
        )
    return OpReport(
        op=op,
        outcome=outcome,
        reason=reason,
        cases=names,
        error=max(errors, default=None),
        op_s=op_s,
        reference_s=reference_s,
    )


def _total(times: Iterable[float | None]) -> float | None:
    total = 0.0
    for each in times:
        if each is None:
            return None
        total += each
    return total


def medians_s(function: Run, reference: Run, device: str) -> tuple[float, float]:
    """Of both, in turn."""
    timer = ClockTimer() if torch.device(device).type == "cpu" else EventTimer()
    with torch.inference_mode():
        times = interleaved({"op": function, "torch": reference}, timer, budget_s=TIMED_S_MAX)
    return times["op"].median_s, times["torch"].median_s


def offered(module: str) -> tuple[str, ...]:
    """The ops that an implementation offers here, in the order of the table; none: not at all."""
    found: Mapping[str, Function] | None = import_module(module).load()
    return tuple(op for op in REFERENCE if op in (found or {}))
