"""The cases of all ops, in the order of `specs.OPS`: what tests, compiles and measurements walk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kernels.cases.case import Case
from kernels.specs import BY_NAME, OPS

# Products in the model's own type are hipBLASLt's work; no kernel of ours stands beside it.
TORCH_OPS = frozenset({"linear_dense"})


@cache
def cases() -> tuple[Case, ...]:
    """Every case there is. Raises ValueError if a file of cases names another op than its own."""
    return tuple(case for op in OPS if op.name not in TORCH_OPS for case in _of(op.name))


def find(op: str, name: str) -> Case:
    """Raises ValueError that lists the names there are."""
    of_op = [case for case in cases() if case.op == op]
    for case in of_op:
        if case.name == name:
            return case
    if not of_op:
        raise ValueError(f"there are no cases of {op!r}; ops with cases: {', '.join(ops())}")
    names = ", ".join(case.name for case in of_op)
    raise ValueError(f"there is no case {name!r} of {op}; there are: {names}")


def ops() -> tuple[str, ...]:
    """The ops that have a kernel and cases, in the order of the table."""
    return tuple(dict.fromkeys(case.op for case in cases()))


def function(op: str) -> Callable[..., Any]:
    """The Triton op of that name; loads triton."""
    if op not in BY_NAME or op in TORCH_OPS:
        raise ValueError(f"there is no Triton op {op!r}")
    found: Callable[..., Any] = getattr(import_module(f"kernels.ops.{op}"), op)
    return found


def _of(op: str) -> tuple[Case, ...]:
    if find_spec(f"kernels.cases.{op}") is None:
        return ()
    found: tuple[Case, ...] = import_module(f"kernels.cases.{op}").CASES
    for case in found:
        if case.op != op:
            raise ValueError(f"kernels/cases/{op}.py: case {case.name!r} names the op {case.op!r}")
    return found
