"""Cases of dflash_context_kv: the context of a draft of five layers for an 8B target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.rope_kv_write import turned

_KINDS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_NUM_POSITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    num_rows: int
    num_layers: int = 5
    hidden: int = 4096
    num_kv_heads: int = 8
    head_dim: int = 128
    rotary_dim: int = 128
    page: int = 16
    is_interleaved: bool = False
    has_norm: bool = True

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        outputs = self.num_layers * 2 * self.num_kv_heads * self.head_dim
        num_blocks = -(-self.num_rows // self.page) + 1
        cache = (self.num_layers, num_blocks, self.num_kv_heads, self.page, self.head_dim)
        slots = self.page + maker.permutation(
            (num_blocks - 1) * self.page, dtype=torch.int64, salt=1
        )
        norm = 0.5 + maker.uniform(self.num_layers, self.head_dim, dtype=dtype, salt=2)
        return Call(
            (
                maker.normal(self.num_rows, self.hidden, dtype=dtype, salt=3),
                maker.normal(outputs, self.hidden, dtype=dtype, std=self.hidden**-0.5, salt=4),
                maker.integers(0, _NUM_POSITIONS, self.num_rows, salt=5),
                maker.normal(_NUM_POSITIONS, self.rotary_dim, salt=6),
                slots[: self.num_rows],
            ),
            {
                "k_caches": maker.normal(*cache, dtype=dtype, salt=7),
                "v_caches": maker.normal(*cache, dtype=dtype, salt=8),
                "rotary_dim": self.rotary_dim,
                "is_interleaved": self.is_interleaved,
                "k_norm": norm if self.has_norm else None,
            },
        )

    def work(self, call: Call) -> Work:
        states, weight = call.args[:2]
        num_written = self.num_rows * weight.shape[0]
        values = states.numel() + weight.numel() + num_written
        return Work(
            num_bytes=float(values * states.itemsize + self.num_rows * self.rotary_dim * 4),
            num_flops=2.0 * self.num_rows * weight.numel(),
            kind=_KINDS[states.dtype],
        )

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        """Both caches whole: what no row is for must stay as it was."""
        states, weight, positions, cos_sin, slots = call.args
        caches = [call.kwargs[name].double() for name in ("k_caches", "v_caches")]
        heads = states.double() @ weight.double().t()
        parts = heads.view(self.num_rows, self.num_layers, 2, self.num_kv_heads, self.head_dim)
        for layer in range(self.num_layers):
            norm = call.kwargs["k_norm"]
            own_norm = None if norm is None else norm[layer]
            keys = turned(parts[:, layer, 0], cos_sin[positions], own_norm, self.is_interleaved)
            for cache, new in zip(caches, (keys, parts[:, layer, 1]), strict=True):
                for row, slot in enumerate(slots.tolist()):
                    cache[layer, slot // self.page, :, slot % self.page] = new[row]
        return tuple(caches)


def _case(name: str, size: Size, shape: Shape, *dtypes: torch.dtype) -> Case:
    return Case(
        op="dflash_context_kv",
        name=name,
        size=size,
        make=shape.make,
        work=shape.work,
        truth=shape.truth,
        dtypes=dtypes or (torch.bfloat16,),
        error_max={torch.float16: 1e-3},
        has_matrix_products=True,
    )


_FEW = Shape(num_rows=5, num_layers=2, hidden=80, num_kv_heads=2, page=8)


def _small(name: str, **sizes: Any) -> Case:
    return _case(name, "small", replace(_FEW, **sizes), torch.float32, torch.float16)


CASES: tuple[Case, ...] = (
    _small("halves", head_dim=32, rotary_dim=32),
    _small("neighbours", head_dim=32, rotary_dim=32, is_interleaved=True),
    _small("a part of a head", head_dim=48, rotary_dim=16, hidden=64),
    _small("no norm, many rows", head_dim=32, rotary_dim=32, has_norm=False, num_rows=150,
           num_kv_heads=1),
    _case("Qwen3-8B verify 8 of 16", "main", Shape(num_rows=128)),
    _case("Qwen3-8B verify 8 alone", "serving", Shape(num_rows=8)),
    _case("Qwen3-8B prompt", "serving", Shape(num_rows=2048)),
    _case("heads of 256", "serving", Shape(num_rows=40, hidden=2816, head_dim=256, rotary_dim=256)),
)  # fmt: skip
