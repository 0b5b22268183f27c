"""linear_int8 in Triton beside the reference: equal to the bit, each row by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.interface import Int8Weight
from kernels.ops.linear_int8 import linear_int8, linear_w8a8, pack_int8
from kernels.ops.matmul_quantize import quantize_rows_int8
from kernels.ops.matmul_scaled import INT32_IN_MAX
from kernels.reference.linear_int8 import linear_int8 as reference
from kernels.reference.linear_int8 import quantize_int8


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_out", "num_in"), [(37, 53), (130, 1100)])
def test_result_is_the_references_to_the_bit(num_out: int, num_in: int) -> None:
    x, weight, bias = made(5, num_in), quantize_int8(made(num_out, num_in, seed=1)), made(num_out)
    x[1] = 0.0
    x[2, 3] = 1e6
    x[3] *= 1e-30

    assert torch.equal(linear_int8(x, weight, bias=bias), reference(x, weight, bias=bias))


def test_row_is_the_same_alone_among_few_and_among_many() -> None:
    x, weight = made(66, 600), pack_int8(made(30, 600, seed=1))

    many = linear_int8(x, weight)

    assert torch.equal(linear_int8(x[9:10], weight)[0], many[9])
    assert torch.equal(linear_int8(x[7:12], weight), many[7:12])


def test_nan_and_zeros_stay_in_their_rows() -> None:
    x, bias = made(3, 64), made(17, seed=2)
    x[0, 5] = torch.nan
    x[1] = 0.0

    result = linear_int8(x, pack_int8(made(17, 64, seed=1)), bias=bias)

    assert bool(result[0].isnan().all())
    assert torch.equal(result[1], bias)
    assert bool(result[2].isfinite().all())


def test_digits_give_the_row_back_within_half_a_step() -> None:
    x = made(4, 5000)

    digits, scales = quantize_rows_int8(x, num_digits=2)

    rows = (digits[:, 0].double() + digits[:, 1].double() / 254.0) * scales[:, None].double()
    steps = scales[:, None].double() / 254.0
    assert bool(((rows - x.double()).abs() <= steps * 0.502).all())


def test_one_digit_is_a_plain_w8a8_product() -> None:
    x, weight = made(5, 1100), pack_int8(made(40, 1100, seed=1))
    scale = x.abs().amax(dim=1, keepdim=True) / 127.0
    rows = torch.round(x / scale).double()
    truth = rows @ weight.qweight.double().t() * scale.double() * weight.scale.double()

    result = linear_w8a8(x, weight)

    assert ((result - truth).abs().max() / truth.abs().max()) < 1e-6
    assert not torch.equal(result, linear_int8(x, weight))


def test_rows_of_a_transposed_x_are_read_right() -> None:
    x, weight = made(40, 6).t(), pack_int8(made(9, 40, seed=1))

    assert torch.equal(linear_int8(x, weight), linear_int8(x.contiguous(), weight))


def test_no_rows_give_no_results() -> None:
    assert linear_int8(made(0, 40), pack_int8(made(9, 40))).shape == (0, 9)


def test_out_that_does_not_fit_is_refused() -> None:
    weight = pack_int8(made(9, 40))
    for out in (torch.empty(3, 8), torch.empty(9, 3).t()):
        with pytest.raises(ValueError, match=r"it must be \[3, 9\] with values side by side"):
            linear_int8(made(3, 40), weight, out=out)


def test_weight_without_a_plain_form_is_refused() -> None:
    weight = pack_int8(made(9, 40))
    elsewhere = Int8Weight(weight.qweight.to("meta"), weight.scale, packed=object())

    with pytest.raises(ValueError, match="packed for another implementation"):
        linear_int8(made(3, 40), elsewhere)


def test_more_inputs_than_int32_holds_are_refused() -> None:
    num_in = INT32_IN_MAX + 1
    weight = Int8Weight(torch.ones(1, num_in, dtype=torch.int8), torch.ones(1))

    with pytest.raises(ValueError, match=f"at most {INT32_IN_MAX}"):
        linear_int8(torch.ones(1, num_in), weight)
