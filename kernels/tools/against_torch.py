"""An op beside torch's own on the same device: whether both give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.cases.case import Call, Case
from kernels.tools.checking import error_max_of

# Both round: so far apart may two be that are each within the bound of a case.
BOTH_ROUND = 2.0

Function = Callable[..., Any]


def bound_of(case: Case, dtype: torch.dtype) -> float:
    """0: equal."""
    return 0.0 if case.is_exact else BOTH_ROUND * error_max_of(case, dtype)


def difference(
    results: Sequence[Tensor], expected: Sequence[Tensor], *, bound: float
) -> tuple[float, str]:
    """The largest error relative to the largest value, and what is wrong; "" if nothing is.

    Numbers that are not numbers must stand where the reference has them; whole numbers are equal or
    wrong.
    """
    if len(results) != len(expected):
        return 0.0, f"{len(results)} results, not {len(expected)}"
    worst = 0.0
    for number, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return worst, (
                f"result {number} is {mine.dtype} {tuple(mine.shape)}, "
                f"not {theirs.dtype} {tuple(theirs.shape)}"
            )
        if not theirs.numel():
            continue
        error, reason = _difference(mine, theirs, bound)
        worst = max(worst, error)
        if reason:
            return worst, f"result {number}: {reason}"
    return worst, ""


def _difference(mine: Tensor, theirs: Tensor, bound: float) -> tuple[float, str]:
    if not theirs.is_floating_point():
        num_other = int((mine != theirs).sum())
        return float(num_other > 0), f"{num_other} values differ" if num_other else ""
    mine, theirs = mine.double(), theirs.double()
    is_real = torch.isfinite(theirs)
    # Also where both are infinite, of one sign.
    is_alike = (mine == theirs) | (torch.isnan(mine) & torch.isnan(theirs))
    if bool((~is_real & ~is_alike).any()) or bool((is_real & ~torch.isfinite(mine)).any()):
        num_other = int(((~is_real & ~is_alike) | (is_real & ~torch.isfinite(mine))).sum())
        return 1.0, f"{num_other} values are not numbers, or should not be"
    if not bool(is_real.any()):
        return 0.0, ""
    largest = float(theirs[is_real].abs().max())
    error = float((mine[is_real] - theirs[is_real]).abs().max())
    error = error / largest if largest > 0.0 else error
    if error > bound:
        return error, f"an error of {error:.1e} is beyond {bound:.1e}"
    return error, ""


def tensors_in(call: Call) -> tuple[Tensor, ...]:
    """The arguments that an op could write to, in order."""
    return tuple(_tensors((*call.args, *(call.kwargs[name] for name in sorted(call.kwargs)))))


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def results_of(function: Function, call: Call, device: str) -> tuple[Tensor, ...]:
    """Its results, once the device has them: what fails there fails here."""
    with torch.inference_mode():
        results = function(*call.args, **call.kwargs)
    _wait(device)
    return tuple(_tensors(results if isinstance(results, tuple) else (results,)))


def _wait(device: str) -> None:
    if torch.device(device).type != "cpu":
        torch.cuda.synchronize(device)


def shown_error(error: Exception) -> str:
    """Its type and first line."""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__
