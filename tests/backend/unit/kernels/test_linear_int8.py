"""linear_int8 against float64 and against itself: a row's result is its own, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.dispatch import Ops, select
from kernels.interface import Int8Weight
from kernels.native.linear import GROUP
from kernels.reference.linear_int8 import (
    PACKED_ELEMENTS_MIN,
    PLAIN_ELEMENTS_MAX,
    pack_int8,
    quantize_int8,
)

DTYPES = (torch.float32, torch.bfloat16)
# (N, K): odd; one column; plain; packed beside plain; packed alone.
SIZES = ((37, 53), (5, 1), (576, 576), (1024, 800), (2048, 2048))

CHECK_WITHOUT_VNNI = """
import torch
from kernels.reference import linear_int8 as module
from kernels.reference.linear_int8 import linear_int8, pack_int8, quantize_int8

assert not module.is_packed_exact_on_cpu(), "this library does not obey ONEDNN_MAX_CPU_ISA"
{more}
torch.manual_seed(0)
for n, k in ((300, 64), (600, 2000)):
    weight = torch.randn(n, k).sign()
    x = torch.randn(16, k)
    x[3] = x[3].sign()
    x[4] = 1.0
    quantized = quantize_int8(weight)
    scales = x.abs().amax(dim=1, keepdim=True) / 127.0
    high = torch.round(x / scales)
    low = torch.round((x / scales - high) * 254.0)
    sums = [(digit.double() @ quantized.qweight.double().t()).float() for digit in (high, low)]
    exact = (sums[1] * (1.0 / 254.0) + sums[0]) * scales * quantized.scale
    for form in (quantized, pack_int8(weight)):
        assert torch.equal(linear_int8(x, form), exact), (n, k)
        assert torch.equal(linear_int8(x[3:4], form), exact[3:4]), (n, k)
"""


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two_digits(x: Tensor, weight: Int8Weight, plain: Tensor) -> Tensor:
    """The reference's definition, with sums in float64 (which holds them exactly)."""
    scales = x.abs().amax(dim=1, keepdim=True) / 127.0
    steps = (x / scales).nan_to_num()
    high = torch.round(steps)
    low = torch.round((steps - high) * 254.0)
    sums = [(digit.double() @ plain.double().t()).float() for digit in (high, low)]
    return (sums[1] * (1.0 / 254.0) + sums[0]) * scales * weight.scale


def groups(x: Tensor, weight: Int8Weight, plain: Tensor) -> Tensor:
    """The native kernels' definition: a scale for each GROUP of a row."""
    total = torch.zeros(len(x), len(plain))
    for part, columns in zip(x.split(GROUP, 1), plain.split(GROUP, 1), strict=True):
        size = part.abs().amax(dim=1, keepdim=True)
        steps = torch.full_like(size, 127.0) / size  # 127.0 / size would multiply by 1 / size
        quantized = torch.round(part * steps).nan_to_num()
        sums = quantized.double() @ columns.double().t()
        total = total + sums.float() * (size * (1.0 / 127.0))
    return total * weight.scale


DEFINITIONS = {"reference": two_digits, "native": groups}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_result_is_the_definitions_to_the_bit(ops: Ops, n: int, k: int, dtype: torch.dtype) -> None:
    weight = made(n, k)
    packed, plain = ops.pack_int8(weight), quantize_int8(weight).qweight
    definition = DEFINITIONS[ops.name_of("linear_int8")]

    for rows in (0, 1, 2, 5, 6, 7, 16, 40):
        x = made(rows, k, seed=rows).to(dtype)
        x[rows // 2 :, : k // 2] *= 100.0
        got = ops.linear_int8(x, packed)
        assert got.dtype == dtype
        assert torch.equal(got, definition(x.float(), packed, plain).to(dtype)), rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_row_is_the_same_alone_and_among_others(
    ops: Ops, n: int, k: int, dtype: torch.dtype
) -> None:
    packed = ops.pack_int8(made(n, k))
    x = made(16, k, seed=1).to(dtype)
    x[5] *= 1000.0  # the outlier that spoils a scale of the whole tensor
    x[7] = 0.0
    alone = torch.cat([ops.linear_int8(x[row : row + 1], packed) for row in range(16)])

    for rows in range(1, 17):
        assert torch.equal(ops.linear_int8(x[:rows], packed), alone[:rows]), rows
    shuffled = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    assert torch.equal(ops.linear_int8(x[shuffled], packed), alone[shuffled])


@given(
    n=st.integers(1, 90),
    k=st.integers(1, 90),
    rows=st.integers(1, 16),
    scale=st.sampled_from([1e-30, 1.0, 1e20]),
    seed=st.integers(0, 999),
)
def test_any_row_is_the_same_alone(n: int, k: int, rows: int, scale: float, seed: int) -> None:
    ops = select("cpu", "reference")
    packed = ops.pack_int8(made(n, k, seed=seed))
    x = made(rows, k, seed=seed + 1)
    x[seed % rows] *= scale

    together = ops.linear_int8(x, packed)

    for row in range(rows):
        assert torch.equal(ops.linear_int8(x[row : row + 1], packed), together[row : row + 1])


def test_row_of_nan_or_infinity_harms_no_other(ops: Ops) -> None:
    packed = ops.pack_int8(made(64, 48))
    x = made(6, 48, seed=1)
    want = ops.linear_int8(x, packed)
    x[1, 3], x[4, 0] = torch.nan, torch.inf

    got = ops.linear_int8(x, packed)

    others = [0, 2, 3, 5]
    assert torch.equal(got[others], want[others])


@pytest.mark.parametrize("num_elements", [PACKED_ELEMENTS_MIN, PLAIN_ELEMENTS_MAX + 2000])
def test_packed_and_plain_weights_give_the_same_bits(num_elements: int) -> None:
    weight = made(num_elements // 1000, 1000)
    linear = select("cpu", "reference").linear_int8

    for rows in (1, 3):
        x = made(rows, 1000, seed=rows)
        assert torch.equal(linear(x, pack_int8(weight)), linear(x, quantize_int8(weight)))


def test_quantization_error_is_at_most_half_a_step() -> None:
    weight = made(50, 333) * torch.logspace(-6, 6, 50)[:, None]
    weight[7] = 0.0

    quantized = quantize_int8(weight)

    error = (quantized.dequantized() - weight).abs()
    assert (error <= quantized.scale[:, None] * 0.5001).all()
    assert quantized.qweight.abs().amax(dim=1).unique().tolist() == [0, 127]
    assert torch.equal(quantized.dequantized()[7], torch.zeros(333))
    assert (quantized.out_features, quantized.in_features) == (50, 333)


def test_product_is_near_that_of_the_weight_itself(ops: Ops) -> None:
    weight, x = made(192, 576), made(9, 576, seed=1)
    want = x.double() @ weight.double().t()

    got = ops.linear_int8(x, ops.pack_int8(weight)).double()

    # The weight's rounding to 1 of 254 steps of normal values whose largest is some 3.2 deviations,
    # and less than that again for the activations'.
    assert (got - want).norm() / want.norm() < 0.012


def test_bias_is_added_and_out_decides_the_type(ops: Ops) -> None:
    weight, x, bias = made(70, 48), made(4, 48, seed=1).bfloat16(), made(1, 70, seed=2)[0]
    packed = ops.pack_int8(weight)
    out = torch.full((4, 70), torch.nan)

    got = ops.linear_int8(x, packed, bias=bias, out=out)

    assert got is out
    assert torch.equal(out, ops.linear_int8(x.float(), packed) + bias)


def test_weight_packed_for_another_is_refused_in_words() -> None:
    foreign = Int8Weight(
        torch.empty(8, 8, dtype=torch.int8, device="meta"), torch.ones(8), "theirs"
    )

    with pytest.raises(ValueError, match="packed for another implementation; pack it with"):
        select("cpu", "reference").linear_int8(made(1, 8), foreign)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "module.is_exact_on_cpu = lambda: False"])
def test_sums_are_exact_where_the_processor_saturates(more: str) -> None:
    # oneDNN then takes the instructions of a processor without VNNI: pairs of products saturate.
    done = subprocess.run(
        [sys.executable, "-c", CHECK_WITHOUT_VNNI.replace("{more}", more)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
