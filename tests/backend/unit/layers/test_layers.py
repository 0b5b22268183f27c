"""Linears, head, norm and workspace by themselves."""

from __future__ import annotations

import pytest
import torch

from backend.config import ModelConfig, RopeConfig
from backend.layers.embedding import Embedding, Head
from backend.layers.linear import DenseLinear, Int8Linear, Linear
from backend.layers.norm import RmsNorm
from backend.layers.workspace import VIEWS_MAX, Workspace
from kernels.dispatch import select

OPS = select("cpu", "reference")
CONFIG = ModelConfig(
    family="llama",
    vocab_size=50,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=24,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10000.0, rotary_dim=16),
    context_len_max=64,
    tie_embeddings=False,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def workspace(rows_max: int) -> Workspace:
    return Workspace(CONFIG, rows_max, dtype=torch.bfloat16, device=torch.device("cpu"))


@pytest.mark.parametrize("num_rows", range(1, 17))
def test_an_int8_row_does_not_depend_on_its_neighbours(num_rows: int) -> None:
    layer = Int8Linear(OPS.pack_int8(drawn(48, 64)), OPS)
    rows = drawn(16, 64, seed=1)
    rows[num_rows // 2] *= 1000.0
    alone = torch.cat([layer.forward(row[None], torch.empty(1, 48)) for row in rows])

    together = layer.forward(rows[:num_rows], torch.empty(num_rows, 48))

    assert torch.equal(alone[:num_rows], together)


@pytest.mark.parametrize("kind", ["dense", "int8"])
def test_float32_out_of_bfloat16(kind: str) -> None:
    weight = drawn(50, 32).bfloat16()
    projection: Linear = (
        DenseLinear(weight) if kind == "dense" else Int8Linear(OPS.pack_int8(weight), OPS)
    )
    hidden = drawn(3, 32, seed=1).bfloat16()

    logits = Head(projection, 50).forward(hidden)

    expected = hidden.float() @ weight.float().T
    assert logits.dtype == torch.float32
    assert (expected - logits).norm() / expected.norm() < 0.02


def test_logits_are_the_callers_own() -> None:
    head = Head(DenseLinear(drawn(50, 32)), 50)

    first = head.forward(drawn(2, 32, seed=1))
    kept = first.clone()
    head.forward(drawn(2, 32, seed=2))

    assert torch.equal(kept, first)


def test_weight_bytes_are_those_held() -> None:
    weight = drawn(48, 64)

    assert DenseLinear(weight.bfloat16()).weight_bytes() == 48 * 64 * 2
    assert Int8Linear(OPS.pack_int8(weight), OPS).weight_bytes() == 48 * 64 + 48 * 4


def test_norm_adds_the_residual_in_place() -> None:
    norm = RmsNorm(drawn(32), 1e-5, OPS)
    delta, residual = drawn(3, 32, seed=1), drawn(3, 32, seed=2)
    total, out = delta + residual, torch.empty(3, 32)

    norm.add_forward(delta, residual, out)

    assert torch.equal(total, residual)
    expected = total * (total.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt() * norm.weight
    assert torch.allclose(expected, out, atol=1e-6)


def test_embedding_fills_the_buffer_it_is_given() -> None:
    table, out = drawn(50, 32), torch.zeros(3, 32)

    Embedding(table).forward(torch.tensor([7, 0, 49]), out)

    assert torch.equal(table[[7, 0, 49]], out)


def test_the_same_rows_are_the_same_memory() -> None:
    buffers = workspace(16)

    few, many = buffers.take(3), buffers.take(16)

    assert buffers.take(3) is few
    assert few.residual.data_ptr() == many.residual.data_ptr()
    assert many.attended.data_ptr() == many.attended_rows.data_ptr()
    assert many.qkv.shape == (16, (4 + 2 * 2) * 16)
    assert many.queries.shape == (16, 4, 16)
    assert many.gate_up.shape == (16, 48)


def test_a_workspace_grows_when_it_must() -> None:
    buffers = workspace(4)
    before = buffers.take(4).residual.data_ptr()

    assert buffers.take(5).residual.shape == (5, 32)
    assert buffers.take(4).residual.data_ptr() != before
    assert buffers.take(8).residual.data_ptr() == buffers.take(4).residual.data_ptr()


def test_a_workspace_keeps_few_views() -> None:
    buffers = workspace(VIEWS_MAX + 1)
    first = buffers.take(1)

    for rows in range(1, VIEWS_MAX + 2):
        buffers.take(rows)

    assert buffers.take(1) is not first
    assert buffers.take(1).residual.data_ptr() == first.residual.data_ptr()
