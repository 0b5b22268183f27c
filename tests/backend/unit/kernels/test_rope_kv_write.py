"""rope_kv_write against complex numbers in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.dispatch import Ops

QH, KH, D, BLOCK = 6, 2, 16, 4
ROWS = 5
TOLERANCES = {torch.float32: (2e-6, 2e-6), torch.bfloat16: (4e-3, 1.6e-2)}


def angles(rotary_dim: int) -> Tensor:
    """[positions, rotary_dim / 2]."""
    frequencies = 100.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    return torch.arange(40, dtype=torch.float64)[:, None] * frequencies


def table(rotary_dim: int) -> Tensor:
    turned = angles(rotary_dim)
    return torch.cat((turned.cos(), turned.sin()), dim=1).float()


def rotated(heads: Tensor, positions: Tensor, rotary_dim: int, is_interleaved: bool) -> Tensor:
    """Each pair as one complex number, turned; [R, heads, D] float64."""
    result = heads.clone()
    half = rotary_dim // 2
    for row, position in enumerate(positions.tolist()):
        for i in range(half):
            low, high = (2 * i, 2 * i + 1) if is_interleaved else (i, i + half)
            pair = torch.complex(heads[row, :, low], heads[row, :, high])
            pair = pair * torch.exp(1j * angles(rotary_dim)[position, i])
            result[row, :, low], result[row, :, high] = pair.real, pair.imag
    return result


def normed(heads: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return heads
    return heads / (heads.square().mean(dim=2, keepdim=True) + eps).sqrt() * weight.double()


class Case:
    def __init__(self, dtype: torch.dtype, cache_dtype: torch.dtype | None = None) -> None:
        random = torch.Generator().manual_seed(0)
        self.qkv = torch.randn(ROWS, (QH + 2 * KH) * D, generator=random).to(dtype)
        self.norms = [torch.randn(D, generator=random).to(dtype) for _ in range(2)]
        self.positions = torch.tensor([0, 39, 7, 8, 7])
        self.slots = torch.tensor([23, 4, 9, 10, 17])
        shape = (6, KH, BLOCK, D)
        self.caches = [torch.full(shape, 5.0).to(cache_dtype or dtype) for _ in range(2)]
        heads = self.qkv.view(ROWS, -1, D).double()
        self.q, self.k, self.v = heads.split((QH, KH, KH), dim=1)

    def written(self, cache: Tensor) -> Tensor:
        """[R, KH, D] of the cache, as float64."""
        slots = self.slots.tolist()
        rows = [cache[slot // BLOCK, :, slot % BLOCK].double() for slot in slots]
        return torch.stack(rows)

    def untouched(self, cache: Tensor) -> Tensor:
        taken = {(slot // BLOCK, slot % BLOCK) for slot in self.slots.tolist()}
        rest = [
            cache[block, :, offset]
            for block in range(cache.shape[0])
            for offset in range(BLOCK)
            if (block, offset) not in taken
        ]
        return torch.stack(rest).double()


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [D, 8, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_and_cache_are_those_of_float64(
    ops: Ops, dtype: torch.dtype, rotary_dim: int, is_interleaved: bool, is_normed: bool
) -> None:
    case = Case(dtype)
    given_qkv = case.qkv.clone()
    q_norm, k_norm = case.norms if is_normed else (None, None)

    got = ops.rope_kv_write(
        case.qkv, case.positions, table(rotary_dim), case.slots, *case.caches,
        num_heads=QH, rotary_dim=rotary_dim, is_interleaved=is_interleaved,
        q_norm=q_norm, k_norm=k_norm, eps=1e-3,
    )  # fmt: skip

    atol, rtol = TOLERANCES[dtype]
    given = (case.positions, rotary_dim, is_interleaved)
    want_q = rotated(normed(case.q, q_norm, 1e-3), *given)
    want_k = rotated(normed(case.k, k_norm, 1e-3), *given)
    assert got.shape == (ROWS, QH, D)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want_q, atol=atol, rtol=rtol)
    torch.testing.assert_close(case.written(case.caches[0]), want_k, atol=atol, rtol=rtol)
    assert torch.equal(case.written(case.caches[1]), case.v)
    for cache in case.caches:
        assert case.untouched(cache).unique().tolist() == [5.0]
    assert torch.equal(case.qkv, given_qkv)


def test_queries_are_written_where_they_are_wanted(ops: Ops) -> None:
    case, out = Case(torch.float32), torch.full((ROWS, QH, D), torch.nan)

    def call(q_out: Tensor | None) -> Tensor:
        return ops.rope_kv_write(
            case.qkv, case.positions, table(D), case.slots, *case.caches,
            num_heads=QH, rotary_dim=D, q_out=q_out,
        )  # fmt: skip

    assert call(out) is out
    assert torch.equal(out, call(None))


@pytest.mark.parametrize("scales", [(0.5, 4.0), ((0.5, 0.25), (4.0, 2.0))])
def test_cache_of_eight_bits_holds_what_was_divided_by_its_scale(
    ops: Ops, scales: tuple[object, object]
) -> None:
    case = Case(torch.float32, torch.float8_e4m3fn)
    k_scale, v_scale = torch.tensor(scales[0]), torch.tensor(scales[1])

    ops.rope_kv_write(
        case.qkv, case.positions, table(D), case.slots, *case.caches,
        num_heads=QH, rotary_dim=D, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip

    want_k = rotated(case.k, case.positions, D, False)
    got_k = case.written(case.caches[0]) * k_scale.reshape(-1, 1)
    got_v = case.written(case.caches[1]) * v_scale.reshape(-1, 1)
    torch.testing.assert_close(got_k, want_k, atol=2e-3, rtol=0.07)
    torch.testing.assert_close(got_v, case.v, atol=2e-3 * 8, rtol=0.07)
