"""linear_int8 in C++: a row that knows of no other, at any number of threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.interface import Int8Weight
from kernels.reference.linear_int8 import quantize_int8
from tests.support.native_kernels import native_ops, threads

pytestmark = pytest.mark.compiler


def made(n: int, k: int, seed: int = 0) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


def native(x: Tensor, weight: Int8Weight, **given: Any) -> Tensor:
    result: Tensor = native_ops()["linear_int8"](x, weight, **given)
    return result


def packed(weight: Tensor) -> Int8Weight:
    result: Int8Weight = native_ops()["pack_int8"](weight)
    return result


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_is_the_same_alone_and_among_others(dtype: torch.dtype, num_threads: int) -> None:
    weight = packed(made(576, 576))
    x = made(200, 576, seed=1)
    x[3] *= 1e6
    x[5, 7] = float("nan")
    x[6, 1] = float("inf")
    x[8] = 0.0
    x = x.to(dtype)
    alone = torch.cat([native(x[i : i + 1], weight) for i in range(len(x))])

    with threads(num_threads):
        for rows in (*range(1, 17), 33, 200):
            together = native(x[:rows], weight)
            assert torch.equal(together.nan_to_num(), alone[:rows].nan_to_num())
    assert alone[5].isnan().all()
    assert not alone[6].isfinite().any()
    assert alone[[0, 1, 2, 3, 4, 7, 8]].isfinite().all()
    assert (alone[8] == 0).all()


def test_every_product_and_every_sum_is_exact_at_the_ends_of_the_range() -> None:
    k = 4096
    weight = torch.ones(66, k)
    weight[1::2] = -1.0
    x = torch.ones(3, k)
    x[1] = -1.0
    x[2, ::2] = -1.0

    got = native(x, packed(weight))

    assert (got[:2].abs() - k).abs().max() < 1e-5 * k
    assert torch.equal(got[0], -got[1])
    assert got[2].abs().max() == 0


def test_rows_of_a_larger_tensor_are_read_and_written_in_place() -> None:
    weight = packed(made(96, 64))
    wide = made(5, 100, seed=3)
    out = torch.full((5, 128), -7.0)

    returned = native(wide[:, 20:84], weight, out=out[:, 16:112])

    assert torch.equal(returned, native(wide[:, 20:84].contiguous(), weight))
    assert returned.data_ptr() == out[:, 16:112].data_ptr()
    assert (out[:, :16] == -7).all()
    assert (out[:, 112:] == -7).all()


def test_float32_result_of_bfloat16_rows() -> None:
    weight, x = made(70, 33), made(4, 33, seed=1).bfloat16()
    out = torch.empty(4, 70)

    assert native(x, packed(weight), out=out) is out
    assert torch.equal(out, native(x.float(), packed(weight)))


def test_weight_of_another_implementation_is_packed_on_the_way() -> None:
    weight, x = made(70, 33), made(4, 33, seed=1)

    assert torch.equal(native(x, quantize_int8(weight)), native(x, packed(weight)))


def test_no_rows_give_no_rows() -> None:
    assert native(torch.empty(0, 33), packed(made(70, 33))).shape == (0, 70)


def test_shapes_and_dtypes_that_do_not_fit_are_refused() -> None:
    weight = packed(made(70, 33))

    with pytest.raises(ValueError, match=r"\[70, 33\]"):
        native(torch.zeros(2, 32), weight)
    with pytest.raises(ValueError, match=r"\[2, 71\]"):
        native(torch.zeros(2, 33), weight, out=torch.zeros(2, 71))
    with pytest.raises(TypeError, match="float16"):
        native(torch.zeros(2, 33).half(), weight)
