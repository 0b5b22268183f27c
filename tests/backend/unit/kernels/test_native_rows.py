"""rms_norm, gated_mul and rope_kv_write in C++: a row is the same alone and among others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.native_kernels import native_ops, threads

pytestmark = pytest.mark.compiler

DTYPES = (torch.float32, torch.bfloat16)
WIDTHS = (1, 15, 16, 100, 576)
ROWS = 300  # enough for several ranges of rows a thread


def rows_of(width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    x = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(seed))
    x[3] *= 1e4
    x[5] = torch.nan
    x[7] = 0.0
    return x.to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, where NaN is NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norm_of_a_row_is_its_own(width: int, dtype: torch.dtype, num_threads: int) -> None:
    x, residual = rows_of(width, dtype), rows_of(width, dtype, seed=1)
    weight = torch.linspace(0.5, 2.0, width).to(dtype)

    def norm(rows: slice) -> tuple[Tensor, Tensor]:
        op = native_ops()["rms_norm"]
        result: tuple[Tensor, Tensor] = op(x[rows], weight, eps=1e-5, residual=residual[rows])
        return result

    with threads(num_threads):
        together = norm(slice(None))
    for row in (0, 3, 4, 5, 6, 7, 299):
        for got, whole in zip(norm(slice(row, row + 1)), together, strict=True):
            assert same(got[0], whole[row]), row
    assert together[0][5].isnan().all()
    assert together[0][[0, 3, 4, 6, 7]].isfinite().all()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_of_a_row_is_its_own(activation: str, dtype: torch.dtype, num_threads: int) -> None:
    op = native_ops()["gated_mul"]
    for width in WIDTHS:
        gate_up = rows_of(2 * width, dtype)
        with threads(num_threads):
            together = op(gate_up, activation=activation)
        for row in (0, 3, 4, 5, 6, 299):
            assert same(op(gate_up[row : row + 1], activation=activation)[0], together[row])


def test_gate_goes_to_its_limits() -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, -0.0, 88.0, 200.0, 1e30]])

    got = native_ops()["gated_mul"](torch.cat((gate, torch.ones_like(gate)), dim=1))

    assert got.abs()[0, :4].max() < 1e-35
    assert torch.equal(got[0, 4:], gate[0, 4:])


class Rope:
    def __init__(self, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(3)
        self.qkv = torch.randn(ROWS, (4 + 2 * 2) * 20, generator=random).to(dtype)
        self.qkv[5] = torch.nan
        self.positions = torch.randint(0, 64, (ROWS,), generator=random)
        self.cos_sin = torch.randn(64, 12, generator=random)
        self.slots = torch.randperm(400, generator=random)[:ROWS]
        self.norms = [torch.randn(20, generator=random).to(dtype) for _ in range(2)]
        self.caches = [torch.zeros(50, 2, 8, 20, dtype=cache_dtype) for _ in range(2)]

    def run(self, rows: slice = slice(None), **given: Any) -> list[Tensor]:
        """Queries, and the keys and values that were written."""
        arguments = (self.qkv[rows], self.positions[rows], self.cos_sin, self.slots[rows])
        q = native_ops()["rope_kv_write"](
            *(*arguments, *self.caches),
            **{"num_heads": 4, "rotary_dim": 12, "q_norm": self.norms[0], **given},
        )
        slots = self.slots[rows]
        return [q, *(cache[slots // 8, :, slots % 8] for cache in self.caches)]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_rotated_row_is_its_own(
    dtype: torch.dtype, cache_dtype: torch.dtype, num_threads: int
) -> None:
    rope = Rope(dtype, cache_dtype)
    for is_interleaved in (False, True):
        given = {"is_interleaved": is_interleaved, "k_norm": rope.norms[1]}
        with threads(num_threads):
            together = rope.run(**given)
        for row in (0, 4, 5, 6, 299):
            alone = rope.run(slice(row, row + 1), **given)
            assert all(same(a[0], b[row]) for a, b in zip(alone, together, strict=True)), row


def test_norm_weights_of_two_dtypes_are_taken() -> None:
    rope = Rope(torch.float32, torch.float32)
    want = rope.run(k_norm=rope.norms[1].bfloat16().float())

    got = rope.run(k_norm=rope.norms[1].bfloat16())

    assert all(same(a, b) for a, b in zip(got, want, strict=True))


def test_position_or_slot_that_does_not_exist_is_refused_before_anything_is_written() -> None:
    for name, value in (("positions", 64), ("positions", -1), ("slots", 400), ("slots", -1)):
        rope = Rope(torch.float32, torch.float32)
        getattr(rope, name)[299] = value
        with pytest.raises(IndexError, match="not below 64 or a slot not below 400"):
            rope.run()
        assert all((cache == 0).all() for cache in rope.caches)


def test_parts_of_wider_tensors_and_foreign_dtypes_are_taken() -> None:
    ops = native_ops()
    wide = rows_of(200, torch.float32)[:3]
    weight = torch.ones(64)
    part, out = wide[:, 30:94], torch.zeros(3, 128)[:, :64]

    normed, total = ops["rms_norm"](part, weight, eps=1e-5, out=out)

    assert normed is out
    assert torch.equal(out, ops["rms_norm"](part.contiguous(), weight, eps=1e-5)[0])
    assert torch.equal(total, part)
    assert ops["rms_norm"](part.half(), weight.half(), eps=1e-5)[0].dtype == torch.float16
    assert ops["gated_mul"](part.double()).dtype == torch.float64
