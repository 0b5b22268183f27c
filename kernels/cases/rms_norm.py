"""Cases of rms_norm: a model's hidden rows, and the narrow rows of its heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work


@dataclass(frozen=True, slots=True)
class Shape:
    """`leading` is the shape before the last dimension. With a residual both results are kept."""

    leading: tuple[int, ...]
    width: int
    has_residual: bool = True
    is_zero_centred: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        x = maker.normal(*self.leading, self.width, dtype=dtype, std=3.0)
        kwargs: dict[str, object] = {
            "eps": 1e-6, "is_zero_centred": self.is_zero_centred, "out": torch.empty_like(x),
        }  # fmt: skip
        if self.has_residual:
            kwargs["residual"] = maker.normal(*x.shape, dtype=dtype, salt=1)
            kwargs["residual_out"] = torch.empty_like(x)
        return Call((x, maker.normal(self.width, dtype=dtype, salt=2)), kwargs)

    def work(self, call: Call) -> Work:
        num_values = call.args[0].numel()
        num_passes = 4 if self.has_residual else 2
        return Work(num_passes * num_values * call.args[0].itemsize, 6.0 * num_values)

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        x, weight = call.args
        total = x.double()
        if (residual := call.kwargs.get("residual")) is not None:
            total = total + residual.double()
        # The norm is of the sum as it is stored.
        stored = total.to(x.dtype).double()
        mean = (stored**2).sum(dim=-1, keepdim=True) / self.width
        factor = weight.double() + (1.0 if self.is_zero_centred else 0.0)
        return stored / (mean + call.kwargs["eps"]) ** 0.5 * factor, stored


def _case(name: str, size: Size, shape: Shape) -> Case:
    is_small = size == "small"
    return Case(
        "rms_norm", name, size, shape.make, shape.work, shape.truth,
        dtypes=(torch.float32, torch.float16) if is_small else (torch.bfloat16,),
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("odd-width", "small", Shape((5,), 100)),
    _case("alone", "small", Shape((), 33, has_residual=False)),
    _case("heads-zero-centred", "small", Shape((3, 5), 16, False, True)),
    _case("wide", "small", Shape((2,), 5000)),
    _case("decode-4096", "serving", Shape((1,), 4096)),
    _case("verify-4096", "main", Shape((256,), 4096)),
    _case("prefill-2816-zero-centred", "serving", Shape((2048,), 2816, True, True)),
    _case("heads-128", "serving", Shape((256, 32), 128, has_residual=False)),
)
