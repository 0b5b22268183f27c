"""Cases of linear_fp8, in the float8 of the chip that they are made for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Work
from kernels.cases.linears import SERVING, SMALL, Linear, product
from kernels.interface import Fp8Weight
from kernels.ops.launching import fp8_dtype

# The largest value and the exponent of the smallest normal one.
_FORMATS = {torch.float8_e4m3fn: (448.0, -6), torch.float8_e4m3fnuz: (240.0, -7)}


@dataclass(frozen=True, slots=True)
class Shape:
    linear: Linear

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        kind = fp8_dtype()
        values = maker.normal(self.linear.num_out, self.linear.num_in, std=60.0, salt=3)
        scale = (0.5 + maker.uniform(self.linear.num_out, salt=4)) / 60.0 / self.linear.num_in**0.5
        weight = Fp8Weight(values.clamp_(-240.0, 240.0).to(kind), scale)
        x, given = self.linear.x(maker, dtype), self.linear.out_and_bias(maker, dtype)
        return Call((x, weight), given)

    def work(self, call: Call) -> Work:
        x, weight = call.args
        num_bytes = self.linear.num_bytes(weight.qweight.numel(), x.itemsize)
        return Work(num_bytes, self.linear.num_flops, "fp8")

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        x, weight = call.args
        largest, smallest = _FORMATS[weight.qweight.dtype]
        # In float32 as far as rounding hangs on it: the value a hair beside a half goes elsewhere.
        scale = x.float().abs().amax(dim=1, keepdim=True) / largest
        rows = _with_three_bits((x.float() / scale).nan_to_num().double(), smallest)
        rows = rows.clamp(-largest, largest) * scale.double()
        return (product(rows, weight.qweight, weight.scale, call.kwargs["bias"]),)


def _with_three_bits(values: Tensor, exponent_min: int) -> Tensor:
    """The nearest numbers with three bits behind the leading one, halves to even."""
    _, exponents = torch.frexp(values)  # of a mantissa from 0.5
    steps = torch.exp2((exponents - 1).clamp_min(exponent_min).double() - 3.0)
    return torch.round(values / steps) * steps


def _case(linear: Linear) -> Case:
    shape = Shape(linear)
    return Case(
        "linear_fp8", linear.name, linear.size, shape.make, shape.work, shape.truth,
        dtypes=linear.dtypes, has_matrix_products=True,
    )  # fmt: skip


CASES: tuple[Case, ...] = tuple(_case(each) for each in (*SMALL, *SERVING))
