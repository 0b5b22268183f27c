"""Cases of rope_kv_write: every way of turning, and rows of served models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.ops.launching import current_target

_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One call. The truth is of the queries; of the cache, see the op's own tests."""

    num_rows: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    rotary_dim: int = 128
    page: int = 16
    num_positions: int = 4096
    is_interleaved: bool = False
    has_norms: bool = True
    has_fp8: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        num_blocks = -(-self.num_rows // self.page) + 1
        kind = (current_target().fp8_dtype or torch.float8_e4m3fn) if self.has_fp8 else dtype
        cache = (num_blocks, self.num_kv_heads, self.page, self.head_dim)
        keys, values = (
            torch.zeros(cache, dtype=dtype, device=maker.device).to(kind) for _ in range(2)
        )
        slots = self.page + maker.permutation(
            (num_blocks - 1) * self.page, dtype=torch.int64, salt=1
        )
        norms = [
            0.5 + maker.uniform(self.head_dim, dtype=dtype, salt=salt) if self.has_norms else None
            for salt in (2, 3)
        ]
        scales = [
            0.5 + maker.uniform(self.num_kv_heads, salt=salt) if self.has_fp8 else None
            for salt in (4, 5)
        ]
        q_out = (self.num_rows, self.num_heads, self.head_dim)
        return Call(
            (
                maker.normal(self.num_rows, width, dtype=dtype, salt=6),
                maker.integers(0, self.num_positions, self.num_rows, salt=7),
                maker.normal(self.num_positions, self.rotary_dim, salt=8),
                slots[: self.num_rows],
                keys,
                values,
            ),
            {
                "num_heads": self.num_heads,
                "rotary_dim": self.rotary_dim,
                "is_interleaved": self.is_interleaved,
                "q_norm": norms[0],
                "k_norm": norms[1],
                "eps": _EPS,
                "k_scale": scales[0],
                "v_scale": scales[1],
                "q_out": torch.empty(q_out, dtype=dtype, device=maker.device),
            },
        )

    def work(self, call: Call) -> Work:
        qkv, cache = call.args[0], call.args[4]
        num_q = self.num_rows * self.num_heads * self.head_dim
        num_kv = self.num_rows * 2 * self.num_kv_heads * self.head_dim
        angles = self.num_rows * self.rotary_dim * 4.0
        moved = qkv.numel() * qkv.itemsize + num_q * qkv.itemsize + num_kv * cache.itemsize
        return Work(num_bytes=moved + angles)

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        qkv, positions, cos_sin = call.args[:3]
        heads = qkv.view(self.num_rows, -1, self.head_dim)[:, : self.num_heads].double()
        return (turned(heads, cos_sin[positions], call.kwargs["q_norm"], self.is_interleaved),)


def turned(
    heads: Tensor, cos_sin: Tensor, norm: Tensor | None, is_interleaved: bool, eps: float = _EPS
) -> Tensor:
    """float64 heads [R, heads, D], normed and turned pair by pair as complex numbers."""
    if norm is not None:
        lengths = (heads.square().mean(-1, keepdim=True) + eps).sqrt()
        heads = heads / lengths * norm.double()
    result = heads.clone()
    half = cos_sin.shape[1] // 2
    for pair in range(half):
        first, second = (2 * pair, 2 * pair + 1) if is_interleaved else (pair, pair + half)
        number = torch.complex(heads[:, :, first], heads[:, :, second])
        turn = torch.complex(cos_sin[:, pair].double(), cos_sin[:, half + pair].double())
        product = number * turn[:, None]
        result[:, :, first], result[:, :, second] = product.real, product.imag
    return result


def _case(name: str, size: Size, shape: Shape, *dtypes: torch.dtype) -> Case:
    return Case(
        op="rope_kv_write",
        name=name,
        size=size,
        make=shape.make,
        work=shape.work,
        truth=shape.truth,
        dtypes=dtypes or (torch.bfloat16,),
        error_max={torch.float16: 1e-3},
    )


_FEW = Shape(num_rows=5, num_heads=6, num_kv_heads=2, num_positions=50)


def _small(name: str, **sizes: Any) -> Case:
    return _case(name, "small", replace(_FEW, **sizes), torch.float32, torch.float16)


CASES: tuple[Case, ...] = (
    _small("halves", head_dim=32, rotary_dim=32),
    _small("neighbours", head_dim=32, rotary_dim=32, is_interleaved=True),
    _small("a part of a head", head_dim=48, rotary_dim=16, page=8),
    _small("a part, neighbours, no norms", head_dim=48, rotary_dim=24, is_interleaved=True,
           has_norms=False),
    _small("no turn", head_dim=64, rotary_dim=0),
    _small("heads of 512", head_dim=512, rotary_dim=512, num_rows=2),
    _case("Qwen3-8B verify", "main", Shape(num_rows=128)),
    _case("Qwen3-8B decode alone", "serving", Shape(num_rows=1)),
    _case("Qwen3-8B prompt", "serving", Shape(num_rows=2048)),
    _case("Qwen3-8B verify, fp8", "serving", Shape(num_rows=128, has_fp8=True)),
    _case("gemma-4-26B verify, window", "serving",
          Shape(num_rows=80, num_heads=16, head_dim=256, rotary_dim=256, page=32)),
    _case("gemma-4-26B verify", "serving",
          Shape(num_rows=80, num_heads=16, num_kv_heads=2, head_dim=512, rotary_dim=128, page=32)),
    _case("neighbours, a part, no norms", "serving",
          Shape(num_rows=128, rotary_dim=64, is_interleaved=True, has_norms=False)),
)  # fmt: skip
