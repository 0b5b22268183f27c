"""linear_fp8 in Triton: torch's own rounding to float8, and each row by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops.linear_fp8 import linear_fp8, pack_fp8
from kernels.ops.matmul_quantize import quantize_rows_fp8
from kernels.reference.linear_fp8 import linear_fp8 as reference
from kernels.reference.linear_fp8 import quantize_fp8


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rows_are_rounded_as_torch_rounds() -> None:
    """All of float8's numbers, the halves between them, and a hair on either side."""
    values = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (values[1:] + values[:-1]) / 2.0
    hair = 1.0 + 2.0**-22
    x = torch.cat((values, halves, halves * hair, halves / hair, -values, -halves))[None]
    assert float(x.max()) == 448.0  # so that the scale is 1

    quantized, scales = quantize_rows_fp8(x, torch.float8_e4m3fn)

    assert float(scales[0]) == 1.0
    assert torch.equal(quantized.float(), x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("num_rows", [1, 5, 66])
def test_result_is_the_references_but_for_the_order_of_sums(num_rows: int) -> None:
    x, weight, bias = made(num_rows, 300), pack_fp8(made(70, 300, seed=1)), made(70, seed=2)
    expected = reference(x, weight, bias=bias)

    result = linear_fp8(x, weight, bias=bias)

    assert ((result - expected).abs().max() / expected.abs().max()) < 1e-6


def test_row_is_the_same_alone_among_few_and_among_many() -> None:
    x, weight = made(66, 600), pack_fp8(made(30, 600, seed=1))

    many = linear_fp8(x, weight)

    assert torch.equal(linear_fp8(x[9:10], weight)[0], many[9])
    assert torch.equal(linear_fp8(x[7:12], weight), many[7:12])


def test_weight_in_another_float8_is_refused() -> None:
    weight = quantize_fp8(made(9, 40), torch.float8_e4m3fnuz)

    with pytest.raises(ValueError, match=r"takes torch\.float8_e4m3fn, and the weight is"):
        linear_fp8(made(3, 40), weight)
