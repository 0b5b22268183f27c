"""gated_mul in Triton: extremes, strided rows, results in place."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from kernels.interface import Activation
from kernels.ops.gated_mul import gated_mul
from kernels.reference.gated_mul import gated_mul as reference

ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_from_zero_the_gate_is_open_or_shut(activation: Activation) -> None:
    gates = torch.tensor([-1e10, -200.0, -90.0, -1.0, -0.0, 0.0, 1.0, 90.0, 200.0, 1e10])
    given = torch.cat([gates, torch.full((10,), 2.0)]).unsqueeze(0)

    got = gated_mul(given, activation=activation)

    torch.testing.assert_close(got, reference(given, activation=activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_any_leading_shape_and_rows_apart(activation: Activation) -> None:
    wide = torch.randn(2, 3, 80, generator=torch.Generator().manual_seed(1))
    given, out = wide[..., 10:50], torch.full((2, 3, 40), torch.nan)[..., ::2]

    got = gated_mul(given, activation=activation, out=out)

    assert got is out
    torch.testing.assert_close(out, reference(given, activation=activation))


def test_the_result_may_take_the_place_of_the_gate() -> None:
    given = torch.randn(3, 48, generator=torch.Generator().manual_seed(2))
    want = reference(given)

    got = gated_mul(given, out=given[:, :24])

    torch.testing.assert_close(got, want)


def test_no_rows_are_no_work() -> None:
    assert gated_mul(torch.empty(0, 32)).shape == (0, 16)


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="'relu' is unknown; use silu or gelu_tanh"):
        gated_mul(torch.ones(1, 4), activation=cast(Any, "relu"))
