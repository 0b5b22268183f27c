"""One signature an op, whoever computes it; and who that is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from kernels import interface
from kernels import ops as triton_ops
from kernels.dispatch import REFERENCE, Ops, build, select
from kernels.reference.linear_int8 import pack_int8
from kernels.specs import OPS
from tests.support.native_kernels import native_ops

NAMES = tuple(op.name for op in OPS)


def protocol_of(op: str) -> Callable[..., Any]:
    name = "".join(word.title() for word in op.split("_"))
    call: Callable[..., Any] = getattr(interface, name).__call__
    return call


def shown(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters' names as the table has them: without self, with the bare star."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        names.append(parameter.name)
    return tuple(names)


def typed(function: Callable[..., Any]) -> dict[str, tuple[object, object]]:
    """Type and default of each parameter, and the type of the result."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    found = {name: (hints[name], parameters[name].default) for name in parameters if name != "self"}
    return {**found, "return": (hints["return"], None)}


def test_reference_and_ops_have_every_op_of_the_table() -> None:
    assert set(REFERENCE) == set(NAMES)
    assert set(NAMES) < set(Ops.__dataclass_fields__)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_reference_signature_is_the_tables(op: Any) -> None:
    assert shown(REFERENCE[op.name]) == op.signature
    assert shown(protocol_of(op.name)) == op.signature
    assert typed(REFERENCE[op.name]) == typed(protocol_of(op.name))
    assert "[" in (REFERENCE[op.name].__doc__ or ""), "the docstring gives no shape"


@pytest.mark.compiler
def test_native_signatures_are_the_tables() -> None:
    for op, function in native_ops().items():
        if op in REFERENCE:
            assert shown(function) == shown(REFERENCE[op]), op
            assert typed(function) == typed(REFERENCE[op]), op


def test_reference_serves_every_op_when_asked_for() -> None:
    ops = select("cpu", "reference")

    assert [ops.name_of(op) for op in NAMES] == ["reference"] * len(NAMES)
    assert ops.rms_norm is REFERENCE["rms_norm"]


@pytest.mark.compiler
def test_auto_on_a_cpu_is_native_op_by_op() -> None:
    offered = native_ops()
    ops = select("cpu")

    assert {op: ops.name_of(op) for op in NAMES} == {
        op: "native" if op in offered else "reference" for op in NAMES
    }
    assert ops.name_of("linear_int8") == "native"


def test_what_an_implementation_leaves_the_reference_serves() -> None:
    def gated_mul(
        gate_up: Tensor, *, activation: str = "silu", out: Tensor | None = None
    ) -> Tensor:
        return gate_up

    ops = build({"gated_mul": gated_mul}, "half")

    assert ops.gated_mul is gated_mul
    assert ops.name_of("gated_mul") == "half"
    assert ops.rms_norm is REFERENCE["rms_norm"]
    assert ops.name_of("rms_norm") == "reference"


def test_unknown_op_of_an_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"half kernels offer swiglu, which kernels\.specs lacks"):
        build({"swiglu": lambda: None}, "half")


def test_int8_comes_with_its_packing() -> None:
    with pytest.raises(ValueError, match="linear_int8 and pack_int8 together"):
        build({"linear_int8": lambda: None}, "half")


def test_withheld_ops_fall_back_singly() -> None:
    offered = {op: (lambda: None) for op in ("gated_mul", "linear_int8", "pack_int8", "sample")}

    ops = build(offered, "half", withheld={"linear_int8": "wrong numbers", "sample": "it hung"})

    assert ops.name_of("gated_mul") == "half"
    for op in ("linear_int8", "sample"):
        assert ops.name_of(op) == "reference"
        assert getattr(ops, op) is REFERENCE[op]
    # A weight that others packed would be no use to torch's op.
    assert ops.pack_int8 is pack_int8


def test_triton_says_why_it_does_not_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert triton_ops.load() is None
    assert "torch finds no GPU" in caplog.text
    monkeypatch.setattr(triton_ops, "find_spec", lambda name: None)
    assert triton_ops.load() is None
    assert "triton is not installed" in caplog.text
    # On a device that could have them, torch serves and nobody is stopped.
    assert select("cuda:0").name_of("sample") == "reference"
    with pytest.raises(ValueError, match="triton kernels do not load on this machine"):
        select("cuda:0", "triton")


@pytest.mark.parametrize(
    ("device", "implementation", "message"),
    [
        ("cpu", "cutlass", "'cutlass' are unknown; use one of auto, reference, native, triton"),
        (
            "cpu",
            "triton",
            "triton kernels do not run on cpu: they need a GPU, .*TRITON_INTERPRET=1",
        ),
        ("cuda:0", "native", "native kernels do not run on cuda:0"),
    ],
)
def test_wrong_choice_is_refused_in_words(device: str, implementation: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(device, implementation)


def test_op_that_does_not_exist_has_no_name() -> None:
    with pytest.raises(ValueError, match="no op 'softmax'"):
        select("cpu", "reference").name_of("softmax")


def test_without_a_compiler_the_reference_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert select("cpu").name_of("linear_int8") == "reference"
    with pytest.raises(ValueError, match="native kernels do not load on this machine"):
        select("cpu", "native")


def test_packed_weight_of_the_chosen_ops_fits_their_linear() -> None:
    ops = select("cpu")
    weight, x = torch.randn(48, 32), torch.randn(3, 32)

    result = ops.linear_int8(x, ops.pack_int8(weight))

    assert ((result - x @ weight.t()).norm() / (x @ weight.t()).norm()) < 0.02
