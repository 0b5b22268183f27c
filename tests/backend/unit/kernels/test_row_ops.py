"""rms_norm, gated_mul and row_stats against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.dispatch import Ops

DTYPES = (torch.float32, torch.bfloat16)
# One unit in the last place of bfloat16 is 2**-8 of the value; a product of two rounds twice.
TOLERANCES = {torch.float32: (1e-6, 1e-6), torch.bfloat16: (2e-3, 1.6e-2)}


def close(got: Tensor, exact: Tensor) -> None:
    atol, rtol = TOLERANCES[got.dtype]
    torch.testing.assert_close(got.double(), exact, atol=atol, rtol=rtol)


def made(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(dim=1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 576), (5, 64), (7, 33), (0, 16)])
def test_norm_is_that_of_float64(ops: Ops, rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = made(rows, size, dtype=dtype) * 3, made(size, seed=1, dtype=dtype)

    got, total = ops.rms_norm(x, weight, eps=1e-3)

    close(got, normed(x, weight, 1e-3))
    assert got.dtype == dtype
    assert torch.equal(total, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_is_added_before_the_norm_and_given_back(ops: Ops, dtype: torch.dtype) -> None:
    x, residual = made(6, 64, dtype=dtype), made(6, 64, seed=1, dtype=dtype)
    weight = made(64, seed=2, dtype=dtype)

    got, total = ops.rms_norm(x, weight, eps=1e-5, residual=residual)

    assert torch.equal(total, x + residual)
    close(got, normed(x + residual, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_centred_weight_is_a_distance_from_one(ops: Ops, dtype: torch.dtype) -> None:
    x, weight = made(3, 64, dtype=dtype), made(64, seed=1, dtype=dtype) * 0.1

    got, _ = ops.rms_norm(x, weight, eps=1e-6, is_zero_centred=True)

    close(got, normed(x, 1.0 + weight.double(), 1e-6))


def test_float32_weight_goes_with_bfloat16_rows(ops: Ops) -> None:
    x, weight = made(3, 64, dtype=torch.bfloat16), made(64, seed=1)

    got, _ = ops.rms_norm(x, weight, eps=1e-6)

    assert got.dtype == torch.bfloat16
    close(got, normed(x, weight, 1e-6))


def test_norm_is_written_where_it_is_wanted(ops: Ops) -> None:
    x, residual, weight = made(4, 32), made(4, 32, seed=1), made(32, seed=2)
    want, sums = ops.rms_norm(x, weight, eps=1e-5, residual=residual)
    out, stream = torch.full((4, 32), torch.nan), residual.clone()

    got, total = ops.rms_norm(x, weight, eps=1e-5, residual=stream, out=out, residual_out=stream)

    assert got is out
    assert total is stream
    assert torch.equal(out, want)
    assert torch.equal(stream, sums)


def test_sum_alone_is_written_where_it_is_wanted(ops: Ops) -> None:
    x, stream = made(4, 32), torch.full((4, 32), torch.nan)

    got, total = ops.rms_norm(x, torch.ones(32), eps=1e-5, residual_out=stream)

    assert total is stream
    assert torch.equal(stream, x)
    close(got, normed(x, torch.ones(32), 1e-5))


def test_huge_and_tiny_rows_stay_finite_in_bfloat16(ops: Ops) -> None:
    x = torch.stack([torch.full((64,), 1e15), torch.full((64,), 1e-12), torch.zeros(64)])

    got, _ = ops.rms_norm(x.bfloat16(), torch.ones(64, dtype=torch.bfloat16), eps=1e-5)

    assert got.isfinite().all()
    assert got[0].unique().tolist() == [1.0]
    assert got[2].unique().tolist() == [0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "size"), [(1, 1536), (5, 33), (0, 8)])
def test_gate_is_that_of_float64(
    ops: Ops, rows: int, size: int, activation: str, dtype: torch.dtype
) -> None:
    gate_up = made(rows, 2 * size, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, dim=1)
    cubic = 0.7978845608028654 * (gate + 0.044715 * gate**3)
    acts = {"silu": gate / (1 + (-gate).exp()), "gelu_tanh": 0.5 * gate * (1 + cubic.tanh())}

    got = ops.gated_mul(gate_up, activation=activation)  # type: ignore[arg-type] # both are valid

    assert got.dtype == dtype
    close(got, acts[activation] * up)


def test_gate_is_written_where_it_is_wanted(ops: Ops) -> None:
    gate_up, out = made(3, 64), torch.full((3, 32), torch.nan)

    got = ops.gated_mul(gate_up, out=out)

    assert got is out
    assert torch.equal(out, ops.gated_mul(gate_up))


def test_unknown_activation_is_refused(ops: Ops) -> None:
    with pytest.raises(ValueError, match="'relu' is unknown; use silu or gelu_tanh"):
        ops.gated_mul(made(1, 8), activation="relu")  # type: ignore[arg-type] # that is the test


@pytest.mark.parametrize("temperature", [None, (0.25, 1.0, 3.0, 0.0)])
def test_row_stats_give_the_probabilities(ops: Ops, temperature: tuple[float, ...] | None) -> None:
    logits = made(4, 1000) * 5
    logits[1, 7:] = -torch.inf
    divisor = torch.tensor([t or 1.0 for t in temperature or (1.0,) * 4], dtype=torch.float64)
    exact = torch.softmax(logits.double() / divisor[:, None], dim=1)
    given = None if temperature is None else torch.tensor(temperature)
    outs = torch.full((4,), torch.nan), torch.full((4,), torch.nan)

    largest, total = ops.row_stats(logits, temperature=given, max_out=outs[0], sum_out=outs[1])

    assert largest is outs[0]
    assert total is outs[1]
    scaled = logits.double() / divisor[:, None]
    got = (scaled - largest.double()[:, None]).exp() / total.double()[:, None]
    torch.testing.assert_close(got, exact, atol=1e-9, rtol=1e-5)
    assert torch.equal(largest, scaled.amax(dim=1).float())
