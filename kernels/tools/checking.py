"""Whether an op gives what its case's truth gives: for tests, measurements and the doctor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker
from kernels.dispatch import REFERENCE
from kernels.specs import BY_NAME

# Largest error, of the truth's largest value, where a case has no bound of its own.
ERROR_MAX = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_NEVER_RIGHT = -(2**31) + 12_345  # in outputs of integers


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error` is relative to the truth's largest value; None where equality was asked."""

    is_right: bool
    error: float | None
    error_max: float | None
    message: str  # empty where all is right


def checked(
    case: Case,
    dtype: torch.dtype,
    function: Callable[..., Any],
    *,
    device: str = "cpu",
    seed: int = 0,
) -> Verdict:
    """Calls `function` once, on outputs that hold nothing of use, and compares all it returns."""
    call = case.make(Maker(device, seed), dtype)
    expected = _expected(case, call)
    results = _as_tuple(function(*call.args, **poisoned(case.op, call).kwargs))
    if len(results) != len(expected):
        message = f"{len(results)} results where {len(expected)} are expected"
        return Verdict(False, None, None, message)
    if case.is_exact:
        return _equal(results, expected)
    return _near(results, expected, error_max_of(case, dtype))


def error_max_of(case: Case, dtype: torch.dtype) -> float:
    """Raises ValueError if neither the case nor the table has a bound for that dtype."""
    bounds = {**ERROR_MAX, **(case.error_max or {})}
    if dtype not in bounds:
        raise ValueError(f"{case.op}/{case.name} has no error_max for {dtype}; give it one")
    return bounds[dtype]


def poisoned(op: str, call: Call) -> Call:
    """Fills what only the op writes with NaN, or a number that no op gives; in place. Outputs that
    are also inputs (a state, a residual) stay as they are.
    """
    inputs = {
        tensor.untyped_storage().data_ptr()
        for name, value in _by_name(op, call).items()
        if not is_output(name)
        for tensor in _tensors(value)
    }
    for name, value in call.kwargs.items():
        if is_output(name) and isinstance(value, Tensor):
            if value.untyped_storage().data_ptr() in inputs:
                continue
            if value.is_floating_point():
                value.fill_(math.nan)
            else:
                value.fill_(_NEVER_RIGHT)
    return call


@contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """Inside, `torch.empty` and its like give NaN, or the largest integer: nothing that an op makes
    for itself can be right by chance.
    """
    was_on = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on)


def is_output(name: str) -> bool:
    return name == "out" or name.endswith("_out")


def on_cpu(call: Call) -> Call:
    """A copy that shares nothing with `call`; tensors that share memory still do."""
    args, kwargs = copy.deepcopy((call.args, dict(call.kwargs)))
    return replace(
        call,
        args=tuple(_moved(each) for each in args),
        kwargs={name: _moved(each) for name, each in kwargs.items()},
    )


def _expected(case: Case, call: Call) -> tuple[Tensor, ...]:
    """Before the op runs: it may write to its inputs."""
    apart = on_cpu(call)
    if case.is_exact:
        return _as_tuple(REFERENCE[case.op](*apart.args, **apart.kwargs))
    if case.truth is None:
        raise ValueError(f"{case.op}/{case.name} has neither a truth nor is_exact")
    return case.truth(apart)


def _equal(results: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> Verdict:
    num_wrong = sum(
        int((given.cpu() != wanted).sum()) if given.shape == wanted.shape else wanted.numel()
        for given, wanted in zip(results, expected, strict=True)
    )
    num_all = sum(wanted.numel() for wanted in expected)
    message = f"{num_wrong} of {num_all} differ from the reference" if num_wrong else ""
    return Verdict(not num_wrong, None, None, message)


def _near(results: tuple[Tensor, ...], expected: tuple[Tensor, ...], error_max: float) -> Verdict:
    errors = []
    for given, wanted in zip(results, expected, strict=True):
        if given.shape != wanted.shape:
            message = f"shape {tuple(given.shape)} where {tuple(wanted.shape)} is expected"
            return Verdict(False, None, error_max, message)
        errors.append(relative_error(given, wanted))
    error = max(errors, key=lambda each: math.inf if math.isnan(each) else each)
    is_right = error <= error_max  # not so for NaN
    message = "" if is_right else f"error {error:.3g} of the largest value; at most {error_max:.3g}"
    return Verdict(is_right, error, error_max, message)


def relative_error(given: Tensor, wanted: Tensor) -> float:
    """The largest difference over the largest value; infinities alike do not differ."""
    if not wanted.numel():
        return 0.0
    found, truth = given.detach().cpu().double(), wanted.double()
    difference = torch.where(found == truth, 0.0, (found - truth).abs())
    finite = truth.abs()[truth.isfinite()]
    largest = float(finite.max()) if finite.numel() else 1.0
    return float(difference.max()) / (largest or 1.0)


def _by_name(op: str, call: Call) -> dict[str, Any]:
    names = [name for name in BY_NAME[op].signature if name != "*"]
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


def _moved(value: Any) -> Any:
    """To the CPU, through containers and the dataclasses of weights."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(each) for each in value)
    if hasattr(value, "__dataclass_fields__"):
        moved = {name: _moved(getattr(value, name)) for name in value.__dataclass_fields__}
        return replace(value, **moved)
    return value


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
