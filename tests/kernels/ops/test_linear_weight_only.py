"""linear_weight_only in Triton: groups that end before K does, and each row by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.interface import Int4Weight, Int8Weight
from kernels.ops.linear_weight_only import linear_weight_only
from kernels.reference.linear_int8 import quantize_int8
from kernels.reference.linear_weight_only import GROUP_SIZES, quantize_int4

NUM_IN = 700  # five blocks of int4 and a part of one


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight_of(group_size: int, num_out: int) -> Int8Weight | Int4Weight:
    values = made(num_out, NUM_IN, seed=1)
    return quantize_int4(values, group_size) if group_size else quantize_int8(values)


@pytest.mark.usefixtures("even_dot")
@pytest.mark.parametrize("group_size", [0, *GROUP_SIZES])
def test_row_is_the_same_alone_among_few_and_among_many(group_size: int) -> None:
    x, weight = made(66, NUM_IN), weight_of(group_size, 20)

    many = linear_weight_only(x, weight)

    assert torch.equal(linear_weight_only(x[9:10], weight)[0], many[9])
    assert torch.equal(linear_weight_only(x[7:12], weight), many[7:12])


@pytest.mark.parametrize("group_size", [0, 64])
def test_bfloat16_rows_lose_only_the_rounding_of_the_result(group_size: int) -> None:
    x, weight = made(5, NUM_IN).to(torch.bfloat16), weight_of(group_size, 20)
    out = torch.full((5, 20), torch.nan)
    truth = x.double() @ weight.dequantized().double().t()

    linear_weight_only(x, weight, out=out)

    assert ((out - truth).abs().max() / truth.abs().max()) < 1e-6


def test_nan_behind_the_last_input_is_not_read() -> None:
    wide = torch.full((4, 800), torch.nan)
    wide[:, :NUM_IN] = made(4, NUM_IN)

    result = linear_weight_only(wide[:, :NUM_IN], weight_of(32, 20))

    assert bool(result.isfinite().all())
