"""Cases of linear_int8: two digits a value, a scale a row, a scale an output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Work
from kernels.cases.linears import SERVING, SMALL, Linear, product
from kernels.interface import Int8Weight


@dataclass(frozen=True, slots=True)
class Shape:
    linear: Linear

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        weight = int8_weight(maker, self.linear.num_out, self.linear.num_in)
        x, given = self.linear.x(maker, dtype), self.linear.out_and_bias(maker, dtype)
        return Call((x, weight), given)

    def work(self, call: Call) -> Work:
        """Each weight is multiplied with both digits."""
        x, weight = call.args
        num_bytes = self.linear.num_bytes(weight.qweight.numel(), x.itemsize)
        return Work(num_bytes, 2.0 * self.linear.num_flops, "int8")

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        x, weight = call.args
        steps = x.double().abs().amax(dim=1, keepdim=True) / 127.0
        high = torch.round((x.double() / steps).nan_to_num())
        low = torch.round(((x.double() / steps).nan_to_num() - high) * 254.0)
        rows = (high + low / 254.0) * steps
        return (product(rows, weight.qweight, weight.scale, call.kwargs["bias"]),)


def int8_weight(maker: Maker, num_out: int, num_in: int) -> Int8Weight:
    qweight = maker.integers(-127, 128, num_out, num_in, dtype=torch.int8, salt=3)
    scale = (0.5 + maker.uniform(num_out, salt=4)) / 73.0 / num_in**0.5
    return Int8Weight(qweight, scale)


def _case(linear: Linear) -> Case:
    shape = Shape(linear)
    return Case(
        "linear_int8", linear.name, linear.size, shape.make, shape.work, shape.truth,
        dtypes=linear.dtypes, has_matrix_products=True,
    )  # fmt: skip


CASES: tuple[Case, ...] = tuple(_case(each) for each in (*SMALL, *SERVING))
