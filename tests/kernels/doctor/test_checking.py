"""When two results are the same, and what a model's sizes make of the cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.cases.case import Call, Maker
from kernels.dispatch import REFERENCE
from kernels.doctor import checking
from kernels.doctor.checking import SEED, Task, check, medians_s
from kernels.doctor.shapes import _MAKERS, Geometry, cases_of
from kernels.doctor.verdict import OpReport, Outcome
from kernels.tools.against_torch import difference, tensors_in
from kernels.tools.checking import ERROR_MAX
from tests.support import faulty_ops

GEOMETRY = Geometry(
    shown="odd", hidden_size=48, num_heads=6, num_kv_heads=2, head_dim=8, rotary_dim=6,
    intermediate_size=40, vocab_size=101, block_size=16, num_drafts=3, has_qk_norm=True,
)  # fmt: skip
NAN, INF = float("nan"), float("inf")


def of(*values: float) -> tuple[Tensor, ...]:
    return (torch.tensor(values),)


@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        (of(1.0, -200.0), of(1.0, -200.0), ""),
        (of(1.1, -200.0), of(1.0, -200.0), ""),  # beside the largest value
        (of(1.0, -202.1), of(1.0, -200.0), "beyond"),
        (of(NAN, 2.0), of(1.0, 2.0), "1 values are not numbers"),
        (of(1.0, 2.0), of(NAN, 2.0), "1 values are not numbers"),
        (of(NAN, -INF, 2.0), of(NAN, -INF, 2.0), ""),
        (of(INF, 2.0), of(-INF, 2.0), "1 values are not numbers"),
        (of(0.0), of(0.0), ""),
        (of(1.0), (), "1 results, not 0"),
        (of(1.0), of(1.0, 2.0), "torch.float32 (1,), not torch.float32 (2,)"),
        ((torch.tensor([1]),), of(1.0), "torch.int64 (1,), not torch.float32 (1,)"),
        ((torch.tensor([3, 4]),), (torch.tensor([3, 5]),), "1 values differ"),
        ((torch.zeros(0),), (torch.zeros(0),), ""),
    ],
)
def test_difference(mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...], reason: str) -> None:
    error, found = difference(mine, theirs, bound=0.01)

    assert reason in found
    assert bool(found) == bool(reason)
    assert error >= 0.0


def test_error_is_relative_to_the_largest_value() -> None:
    error, found = difference(of(1.0, -202.0), of(1.0, -200.0), bound=0.02)

    assert error == pytest.approx(0.01)
    assert not found


def test_equal_means_equal() -> None:
    nearest = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()

    assert difference(of(1.0), of(1.0), bound=0.0)[1] == ""
    assert "beyond" in difference(of(nearest), of(1.0), bound=0.0)[1]


@pytest.mark.parametrize("op", list(_MAKERS))
@pytest.mark.parametrize("dtype", list(ERROR_MAX))
def test_cases_of_a_model_run_and_are_made_alike_twice(op: str, dtype: torch.dtype) -> None:
    for geometry in (GEOMETRY, GEOMETRY.small()):
        for case in cases_of(op, geometry, "main"):
            first, second = (case.make(Maker("cpu", SEED), dtype) for _ in range(2))
            assert case.op == op
            before = [each.clone() for each in tensors_in(first)]
            same = zip(before, tensors_in(second), strict=True)
            assert all(torch.equal(a, b) for a, b in same)

            results = REFERENCE[op](*first.args, **first.kwargs)
            again = REFERENCE[op](*second.args, **second.kwargs)

            pair = (each if isinstance(each, tuple) else (each,) for each in (results, again))
            error, reason = difference(*pair, bound=0.0)
            assert (error, reason) == (0.0, "")


def test_drafts_of_the_cases_stand_and_fall() -> None:
    """Else the exact ops would be tried with nothing."""
    (case,) = cases_of("verify_rejection", GEOMETRY, "main")
    counts = set()
    for seed in range(12):
        call = case.make(Maker("cpu", seed), torch.float32)
        counts |= set(REFERENCE["verify_rejection"](*call.args, **call.kwargs).tolist())

    assert {0, 1} <= counts


def test_ops_that_a_model_lacks_are_tried_by_their_own_cases() -> None:
    assert {case.size for case in cases_of("gated_delta", GEOMETRY, "main")} <= {"main"}
    assert not cases_of("verify_rejection", without_drafts(), "main")


def without_drafts() -> Geometry:
    return Geometry(
        shown="plain", hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=8, rotary_dim=8,
        intermediate_size=8, vocab_size=9, block_size=8, num_drafts=0,
    )  # fmt: skip


def test_another_size_is_another_digest() -> None:
    assert GEOMETRY.digest() != GEOMETRY.small().digest()
    assert GEOMETRY.digest() == Geometry(**{
        name: getattr(GEOMETRY, name) for name in GEOMETRY.__struct_fields__
    }).digest()  # fmt: skip


def test_medians_are_of_both_in_turn() -> None:
    order: list[str] = []

    first_s, second_s = medians_s(lambda: order.append("a"), lambda: order.append("b"), "cpu")

    assert order[:8] == ["a", "a", "b", "b", "a", "b", "b", "a"]  # two of each to warm up
    assert order.count("a") == order.count("b")
    assert 0.0 <= first_s < 0.1
    assert 0.0 <= second_s < 0.1


def task(op: str = "rms_norm") -> Task:
    return Task(
        module=faulty_ops.__name__, op=op, device="cpu", dtype="float32", geometry=GEOMETRY,
        is_timed=False,
    )  # fmt: skip


def test_op_without_a_case_is_served_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "cases_of", lambda op, geometry, size: ())
    report = check(task())

    assert (report.outcome, report.is_withheld) == (Outcome.UNCHECKED, False)


def test_op_whose_reference_fails_is_served_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Falling back to it would help nobody."""

    def fails(*args: object, **kwargs: object) -> None:
        raise NotImplementedError("not for this device")

    monkeypatch.setattr(checking, "REFERENCE", {"rms_norm": fails})
    report = check(task())

    assert (report.outcome, report.is_withheld) == (Outcome.UNCHECKED, False)
    assert "torch's own op fails at added (NotImplementedError: not for this device)" in (
        report.reason
    )


def test_output_of_nothing_is_no_right_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that leaves its output as it was would pass where that holds the right numbers."""
    (case,) = cases_of("gated_mul", GEOMETRY, "main")

    def with_out(maker: Maker, dtype: torch.dtype) -> Call:
        call = case.make(maker, dtype)
        right = REFERENCE["gated_mul"](*call.args)
        return Call(call.args, {"out": right})

    cases = (replace(case, make=with_out),)
    monkeypatch.setattr(checking, "cases_of", lambda op, geometry, size: cases)
    idle = {"gated_mul": lambda gate_up, *, out: out}
    monkeypatch.setattr(faulty_ops, "load", lambda: idle)

    assert check(task("gated_mul")).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("device", "made_current"), [("cuda:1", [1]), ("cuda", []), ("cpu", []), ("cpu:0", [])]
)
def test_what_is_tried_is_tried_on_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, made_current: list[int]
) -> None:
    made: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    monkeypatch.setattr(checking, "_probe", lambda device: OpReport(op="", outcome=Outcome.OK))

    check(Task(module="", op="", device=device, dtype="bfloat16"))

    assert made == made_current
