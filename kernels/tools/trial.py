"""One candidate beside its default: the same results as torch's, then both timed in turn.

Runs in a child process: what it calls may never come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.cases import table as cases
from kernels.cases.case import Case, Maker
from kernels.dispatch import REFERENCE
from kernels.ops.configs import Tuned, trying
from kernels.tools.against_torch import (
    bound_of,
    difference,
    results_of,
    shown_error,
    tensors_in,
)
from kernels.tools.checking import poisoned
from kernels.tools.timing import Clock, ClockTimer, EventTimer, Timer, interleaved

SEED = 1
TIMED_S_MAX = 1.0  # a case, for both

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """`values` over the default of `op` at `sizes`, in every case (name, dtype) that asks there."""

    op: str
    sizes: str
    values: Mapping[str, int]
    cases: tuple[tuple[str, str], ...]
    device: str


@dataclass(frozen=True, slots=True)
class Found:
    """Medians, one a case; none where `wrong` says what is."""

    default_s: tuple[float, ...] = ()
    own_s: tuple[float, ...] = ()
    wrong: str = ""


def tried(trial: Trial, *, timer: Timer | None = None, clock: Clock = time.monotonic) -> Found:
    """What an op does wrong is told and not raised."""
    timer = timer or (ClockTimer() if torch.device(trial.device).type == "cpu" else EventTimer())
    function = cases.function(trial.op)
    own: Tuned = {trial.op: {trial.sizes: trial.values}}
    default_s, own_s = [], []
    for name, dtype in trial.cases:
        case = cases.find(trial.op, name)
        try:
            wrong = _wrong(case, getattr(torch, dtype), _under(own, function), trial.device)
            if wrong:
                return Found(wrong=f"{name}: {wrong}")
            call = case.make(Maker(trial.device, SEED), getattr(torch, dtype))
            runs = {
                each: lambda values=values: _under(values, function)(*call.args, **call.kwargs)  # noqa: B023 - called before the next case
                for each, values in (("default", {}), ("own", own))
            }
            times = interleaved(runs, timer, budget_s=TIMED_S_MAX, clock=clock)
        except Exception as error:
            return Found(wrong=f"{name}: {shown_error(error)}")
        default_s.append(times["default"].median_s)
        own_s.append(times["own"].median_s)
    return Found(tuple(default_s), tuple(own_s))


def answers(device: str) -> bool:
    """Whether the device computes at all."""
    return float(torch.ones(1024, device=device).sum()) == 1024.0


def _wrong(case: Case, dtype: torch.dtype, function: Function, device: str) -> str:
    expected_call = case.make(Maker(device, SEED), dtype)
    expected = results_of(REFERENCE[case.op], expected_call, device)
    call = poisoned(case.op, case.make(Maker(device, SEED), dtype))
    results = results_of(function, call, device)
    # What an op writes into its arguments counts as its result.
    mine, theirs = (*results, *tensors_in(call)), (*expected, *tensors_in(expected_call))
    return difference(mine, theirs, bound=bound_of(case, dtype))[1]


def _under(values: Tuned, function: Function) -> Function:
    def called(*args: Any, **kwargs: Any) -> Any:
        with trying(values):
            return function(*args, **kwargs)

    return called
