"""Cases of gated_mul: the middle of a feed-forward layer, whole or of one expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.interface import Activation


@dataclass(frozen=True, slots=True)
class Shape:
    num_rows: int
    width: int
    activation: Activation = "silu"

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        gate_up = maker.normal(self.num_rows, 2 * self.width, dtype=dtype, std=4.0)
        out = torch.empty(self.num_rows, self.width, dtype=dtype, device=maker.device)
        return Call((gate_up,), {"activation": self.activation, "out": out})

    def work(self, call: Call) -> Work:
        num_values = self.num_rows * self.width
        return Work(3.0 * num_values * call.args[0].itemsize, 8.0 * num_values)

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        gate, up = call.args[0].double().split(self.width, dim=1)
        if self.activation == "silu":
            return (gate / (1.0 + torch.exp(-gate)) * up,)
        inner = (2.0 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        return (0.5 * gate * (1.0 + torch.tanh(inner)) * up,)


def _case(name: str, size: Size, shape: Shape) -> Case:
    is_small = size == "small"
    return Case(
        "gated_mul", name, size, shape.make, shape.work, shape.truth,
        dtypes=(torch.float32, torch.float16) if is_small else (torch.bfloat16,),
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("silu", "small", Shape(5, 300)),
    _case("gelu-two-blocks", "small", Shape(3, 1100, "gelu_tanh")),
    _case("narrow", "small", Shape(4, 3)),
    _case("decode-12288", "serving", Shape(1, 12288)),
    _case("verify-12288", "main", Shape(256, 12288)),
    _case("experts-704-gelu", "serving", Shape(2048, 704, "gelu_tanh")),
)
