"""Cases of linear_weight_only: int8 weights, and int4 ones in groups of 32, 64 and 128."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Work
from kernels.cases.linear_int8 import int8_weight
from kernels.cases.linears import KINDS, SERVING, SMALL, Linear, product
from kernels.interface import Int4Weight


@dataclass(frozen=True, slots=True)
class Shape:
    """`group_size` of int4 weights; 0: int8."""

    linear: Linear
    group_size: int

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        num_out, num_in = self.linear.num_out, self.linear.num_in
        weight = self._int4(maker) if self.group_size else int8_weight(maker, num_out, num_in)
        x, given = self.linear.x(maker, dtype), self.linear.out_and_bias(maker, dtype)
        return Call((x, weight), given)

    def _int4(self, maker: Maker) -> Int4Weight:
        num_out, num_in = self.linear.num_out, self.linear.num_in
        num_blocks = -(-num_in // 128)
        low, high = (
            maker.integers(1, 16, num_out, num_blocks * 64, dtype=torch.uint8, salt=salt)
            for salt in (3, 5)
        )
        groups = num_blocks * 128 // self.group_size
        scale = (0.5 + maker.uniform(groups, num_out, salt=4)) / 4.3 / num_in**0.5
        return Int4Weight(low | high << 4, scale.to(torch.bfloat16), num_in, self.group_size)

    def work(self, call: Call) -> Work:
        x, weight = call.args
        stored = weight.packed if isinstance(weight, Int4Weight) else weight.qweight
        weight_bytes = stored.numel() + weight.scale.numel() * weight.scale.itemsize
        num_bytes = self.linear.num_bytes(weight_bytes, x.itemsize)
        return Work(num_bytes, self.linear.num_flops, KINDS[x.dtype])

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        x, weight = call.args
        rows, bias = x.double(), call.kwargs["bias"]
        if not isinstance(weight, Int4Weight):
            return (product(rows, weight.qweight, weight.scale, bias),)
        # Input by input, as the format says where its nibble is.
        result = torch.zeros(len(x), weight.out_features, dtype=torch.float64)
        for k in range(weight.in_features):
            block, inside = divmod(k, 128)
            byte = weight.packed[:, block * 64 + inside % 64].int()
            nibble = byte // 16 if inside >= 64 else byte % 16
            values = (nibble - 8).double() * weight.scale[k // weight.group_size].double()
            result += rows[:, k, None] * values
        return (result if bias is None else result + bias.double(),)


def _case(linear: Linear, group_size: int) -> Case:
    kind = f"int4 of {group_size}" if group_size else "int8"
    shape = Shape(linear, group_size)
    return Case(
        "linear_weight_only", f"{kind}: {linear.name}", linear.size,
        shape.make, shape.work, shape.truth, dtypes=linear.dtypes, has_matrix_products=True,
    )  # fmt: skip


_PARTED, _ONE, _APART, _MANY = SMALL
_MAIN, *_REST = SERVING

CASES: tuple[Case, ...] = (
    _case(_PARTED, 32),
    *(_case(_PARTED, group_size) for group_size in (64, 128, 0)),
    _case(_ONE, 64),
    _case(_ONE, 0),
    _case(_APART, 128),
    _case(_MANY, 32),
    _case(_MANY, 0),
    _case(_MAIN, 128),
    *(_case(each, 0) for each in (replace(_MAIN, size="serving"), *_REST)),
    *(_case(each, 128) for each in _REST),
    *(_case(_REST[2], group_size) for group_size in (32, 64)),
)
