"""What the cases of quantized linears share: rows and weights of served models, and of tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Maker, Size

KINDS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
OUTPUTS_AT_ONCE = 8192  # bounds the float64 copy of a weight


@dataclass(frozen=True, slots=True)
class Linear:
    """x [R, K] · weight [N, K]ᵀ. `is_apart`: a row of x is a part of a wider one."""

    name: str
    size: Size
    num_rows: int
    num_out: int
    num_in: int
    has_bias: bool = False
    is_apart: bool = False

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        is_small = self.size == "small"
        return (torch.float32, torch.float16) if is_small else (torch.bfloat16,)

    def x(self, maker: Maker, dtype: torch.dtype) -> Tensor:
        """Normal, with a row of zeros and one with a large value where there are several."""
        width = self.num_in + (7 if self.is_apart else 0)
        x = maker.normal(self.num_rows, width, dtype=dtype, salt=1)
        if self.num_rows > 2:
            x[1] = 0.0
            x[2, self.num_in // 2] = 40.0
        return x[:, : self.num_in]

    def out_and_bias(self, maker: Maker, dtype: torch.dtype) -> dict[str, Tensor | None]:
        bias = maker.normal(self.num_out, dtype=dtype, salt=2) if self.has_bias else None
        out = torch.empty(self.num_rows, self.num_out, dtype=dtype, device=maker.device)
        return {"bias": bias, "out": out}

    def num_bytes(self, weight_bytes: float, value_bytes: int) -> float:
        """Of a call: the weight, the rows, the results."""
        num_values = self.num_rows * (self.num_in + self.num_out)
        return weight_bytes + float(num_values * value_bytes)

    @property
    def num_flops(self) -> float:
        return 2.0 * self.num_rows * self.num_out * self.num_in


def product(rows: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """float64 rows · (weight · scale[:, None])ᵀ + bias."""
    parts = []
    for begin in range(0, len(weight), OUTPUTS_AT_ONCE):
        part = slice(begin, begin + OUTPUTS_AT_ONCE)
        parts.append(rows @ (weight[part].double() * scale[part].double()[:, None]).t())
    result = torch.cat(parts, dim=1)
    return result if bias is None else result + bias.double()


SMALL: tuple[Linear, ...] = (
    Linear("five rows in parts, bias", "small", 5, 70, 1100, has_bias=True),
    Linear("one row", "small", 1, 37, 53),
    Linear("17 rows of wider ones", "small", 17, 96, 256, is_apart=True),
    Linear("more rows than a tile", "small", 70, 130, 600, has_bias=True),
)
SERVING: tuple[Linear, ...] = (
    Linear("Qwen3-8B down, 32 rows", "main", 32, 4096, 12288),
    Linear("Qwen3-8B q, k, v, 1 row", "serving", 1, 6144, 4096),
    Linear("Qwen3-8B q, k, v, 256 rows", "serving", 256, 6144, 4096),
    Linear("Qwen3-8B gate and up, 5 rows", "serving", 5, 24576, 4096),
    Linear("Qwen3-8B gate and up, 256 rows", "serving", 256, 24576, 4096),
    Linear("Qwen3-8B vocabulary, 5 rows", "serving", 5, 151936, 4096),
    Linear("Qwen3-8B prompt, 2048 rows", "serving", 2048, 4096, 4096),
    Linear("gemma-4-26B-A4B q, k, v, 5 rows", "serving", 5, 8192, 2816),
    Linear("gemma-4-26B-A4B q, k, v, 32 rows", "serving", 32, 8192, 2816),
)
