"""linear_dense against float64, and natively against itself: a row's result is its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.dispatch import Ops
from tests.support.native_kernels import native_ops, threads

DTYPES = (torch.float32, torch.bfloat16)
# (N, K): one, odd, a vector, a step and a rest, several ranges of a thread.
SIZES = ((1, 1), (3, 5), (16, 16), (37, 33), (70, 577), (600, 576))


def made(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_result_is_that_of_float64(ops: Ops, n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = made(n, k, dtype=dtype), made(1, n, seed=2)[0]
    bound = 2.0**-8 if dtype == torch.bfloat16 else 1e-6

    for rows in (0, 1, 2, 3, 4, 5, 7, 40):
        x = made(rows, k, seed=rows, dtype=dtype)
        want = x.double() @ weight.double().t()
        scale = x.double().abs() @ weight.double().abs().t() + 1e-9
        assert ((ops.linear_dense(x, weight) - want).abs() <= bound * scale).all()
        with_bias = ops.linear_dense(x, weight, bias=bias)
        assert ((with_bias - (want + bias)).abs() <= 2 * bound * (scale + bias.abs())).all()


@pytest.mark.parametrize(("x_dtype", "out_dtype"), [(DTYPES[1], DTYPES[0]), (DTYPES[0], DTYPES[1])])
def test_types_may_differ(ops: Ops, x_dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    x, weight = made(3, 40, dtype=x_dtype), made(30, 40, dtype=torch.bfloat16)
    out = torch.empty(3, 30, dtype=out_dtype)

    got = ops.linear_dense(x, weight, out=out)

    assert got is out
    want = x.double() @ weight.double().t()
    assert (got - want).abs().max() < 0.02 * want.abs().max()


@pytest.mark.compiler
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_row_is_the_same_alone_and_among_others(
    n: int, k: int, dtype: torch.dtype, num_threads: int
) -> None:
    weight, x = made(n, k, dtype=dtype), made(50, k, seed=1)
    x[3] *= 1e6
    x[5] = torch.nan
    x = x.to(dtype)

    def linear(rows: Tensor) -> Tensor:
        result: Tensor = native_ops()["linear_dense"](rows, weight)
        return result

    alone = torch.cat([linear(x[row : row + 1]) for row in range(50)])
    with threads(num_threads):
        for rows in (*range(1, 17), 33, 50):
            together = linear(x[:rows])
            same = (together == alone[:rows]) | (together.isnan() & alone[:rows].isnan())
            assert same.all(), rows
    assert alone[5].isnan().all()
    assert alone[[0, 1, 2, 3, 4, 6]].isfinite().all()


@pytest.mark.compiler
def test_layouts_that_cannot_be_read_in_place_are_taken() -> None:
    linear = native_ops()["linear_dense"]
    wide, weight = made(4, 90), made(20, 30)
    out: Any = torch.zeros(4, 40)[:, :20]

    assert linear(wide[:, 7:37], weight, out=out) is out
    torch.testing.assert_close(out, linear(wide[:, 7:37].contiguous(), weight))
    torch.testing.assert_close(
        linear(wide[:, :30], weight.t().contiguous().t()), wide[:, :30] @ weight.t()
    )
    with pytest.raises(ValueError, match=r"\[4, 31\] with a weight \[20, 30\]"):
        linear(wide[:, :31], weight)
