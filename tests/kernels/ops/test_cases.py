"""Every op against its truth: each small case in each dtype, and all that an op owes its table."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

import pytest
import torch

from kernels.cases import table
from kernels.cases.case import Case
from kernels.dispatch import REFERENCE
from kernels.ops.launching import IS_INTERPRETED
from kernels.specs import BY_NAME, OPS
from kernels.tools.checking import checked, uninitialised_is_nan

torch.set_num_threads(1)

IS_QUICK = os.environ.get("LOOPROUTER_TEST_PROFILE") == "check"


def small() -> Iterator[tuple[Case, torch.dtype]]:
    """Of `make check` the first of every op alone."""
    seen: set[str] = set()
    for case in table.cases():
        if case.size == "small" and not (IS_QUICK and case.op in seen):
            seen.add(case.op)
            yield from ((case, dtype) for dtype in case.dtypes[: 1 if IS_QUICK else None])


def shown(case: Case, dtype: torch.dtype) -> str:
    return f"{case.op}-{case.name}-{str(dtype).removeprefix('torch.')}"


SMALL = [pytest.param(case, dtype, id=shown(case, dtype)) for case, dtype in small()]


@pytest.mark.parametrize(("case", "dtype"), SMALL)
def test_op_gives_what_its_case_asks(case: Case, dtype: torch.dtype) -> None:
    function = table.function(case.op)

    def called(*args: object, **kwargs: object) -> object:
        with uninitialised_is_nan():
            return function(*args, **kwargs)

    verdict = checked(case, dtype, called)

    assert verdict.is_right, verdict.message


def test_kernels_are_interpreted_here() -> None:
    assert IS_INTERPRETED


def test_every_op_of_the_table_has_cases() -> None:
    assert set(table.ops()) == {op.name for op in OPS} - table.TORCH_OPS


@pytest.mark.parametrize("op", [op.name for op in OPS if op.name not in table.TORCH_OPS])
def test_cases_of_an_op_are_whole(op: str) -> None:
    of_op = [case for case in table.cases() if case.op == op]
    names = [case.name for case in of_op]

    assert [case.size for case in of_op].count("main") == 1
    assert any(case.size == "small" for case in of_op)
    assert len(names) == len(set(names))
    for case in of_op:
        assert case.is_exact or case.truth is not None, case.name
        assert case.dtypes, case.name


@pytest.mark.parametrize("op", [op.name for op in OPS if op.name not in table.TORCH_OPS])
def test_signature_is_the_references(op: str) -> None:
    ours, reference = (inspect.signature(each) for each in (table.function(op), REFERENCE[op]))

    assert list(ours.parameters) == [name for name in BY_NAME[op].signature if name != "*"]
    for name, parameter in reference.parameters.items():
        assert ours.parameters[name].kind is parameter.kind, name
        assert ours.parameters[name].default == parameter.default, name
