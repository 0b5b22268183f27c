"""rms_norm in Triton: results in place, strided rows, mixed types, its limit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops.rms_norm import WIDTH_MAX, rms_norm
from kernels.reference.rms_norm import rms_norm as reference


def made(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("kept_in", ["residual", "x"])
def test_the_sum_is_kept_where_it_came_from(kept_in: str) -> None:
    x, residual, weight = made(4, 40), made(4, 40, seed=1), made(40, seed=2)
    want = reference(x, weight, eps=1e-5, residual=residual)
    place = residual if kept_in == "residual" else x

    normed, total = rms_norm(x, weight, eps=1e-5, residual=residual, residual_out=place)

    assert total is place
    torch.testing.assert_close((normed, total), want)


def test_without_a_residual_the_sum_is_x_itself_or_its_copy() -> None:
    x, weight = made(3, 24), made(24, seed=1)
    copy = torch.full((3, 24), torch.nan)

    alone, kept = rms_norm(x, weight, eps=1e-5), rms_norm(x, weight, eps=1e-5, residual_out=copy)

    assert alone[1] is x
    assert kept[1] is copy
    assert torch.equal(copy, x)
    assert torch.equal(alone[0], kept[0])


def test_heads_inside_wider_rows_are_normed_in_place_and_nothing_beside_them() -> None:
    rows, weight = made(5, 12 * 16), made(16, seed=1)
    heads = rows.view(5, 12, 16)[:, 3:7]
    want, before = reference(heads.clone(), weight, eps=1e-6)[0], rows.clone()

    got, _ = rms_norm(heads, weight, eps=1e-6, out=heads)

    assert got is heads
    torch.testing.assert_close(heads, want)
    beside = [*range(3 * 16), *range(7 * 16, 12 * 16)]
    assert torch.equal(rows[:, beside], before[:, beside])


def test_results_go_where_no_kernel_can_write() -> None:
    x, residual, weight = made(6, 10), made(6, 10, seed=1), made(10, seed=2)
    out, total = (torch.full((6, 20), torch.nan)[:, ::2] for _ in range(2))

    got = rms_norm(x.t().contiguous().t(), weight, eps=1e-5, residual=residual, out=out,
                   residual_out=total)  # fmt: skip

    assert got[0] is out
    assert got[1] is total
    torch.testing.assert_close(got, reference(x, weight, eps=1e-5, residual=residual))


def test_a_weight_of_another_type_and_a_wider_residual() -> None:
    x, weight = made(3, 64, dtype=torch.float16), made(64, seed=1)
    residual = made(3, 64, seed=2)

    normed, total = rms_norm(x, weight, eps=1e-5, residual=residual)

    assert normed.dtype is total.dtype is torch.float32
    torch.testing.assert_close((normed, total), reference(x, weight, eps=1e-5, residual=residual))


def test_norm_is_of_the_sum_as_it_is_stored() -> None:
    x, residual = (torch.tensor([each], dtype=torch.float16) for each in ([2048, 100], [1, 0]))
    out = torch.empty(1, 2)

    _, total = rms_norm(x, torch.ones(2), eps=1e-6, residual=residual, out=out)

    assert total.tolist() == [[2048.0, 100.0]]  # 2049 is no float16
    stored = total.double()
    want = stored / stored.square().mean().sqrt()
    torch.testing.assert_close(out.double(), want, atol=0.0, rtol=1e-6)


def test_no_rows_are_no_work() -> None:
    assert rms_norm(torch.empty(0, 32), torch.ones(32), eps=1e-6)[0].shape == (0, 32)


def test_rows_too_wide_for_registers_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {WIDTH_MAX} values, not {WIDTH_MAX + 1}"):
        rms_norm(torch.empty(1, WIDTH_MAX + 1), torch.empty(WIDTH_MAX + 1), eps=1e-6)
