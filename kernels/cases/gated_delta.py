"""Cases of gated_delta: decode, verify with every row's state, and prompts by chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kernels.cases.case import Call, Case, Maker, Size, Work


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads of Qwen3-Next are 32 of 128 · 128."""

    num_sequences: int
    num_rows: int
    num_heads: int = 32
    d: int = 128
    dv: int = 128
    has_every_state: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        leading = (self.num_sequences, self.num_rows, self.num_heads)
        q, k = (
            normalize(maker.normal(*leading, self.d, salt=salt), dim=3).to(dtype) for salt in (1, 2)
        )
        v = maker.normal(*leading, self.dv, dtype=dtype, salt=3)
        gate = -0.5 * maker.normal(*leading, salt=4).abs()
        beta = maker.uniform(*leading, salt=5)
        shape = (self.num_heads, self.d, self.dv)
        state = maker.normal(self.num_sequences, *shape, salt=6)
        rows = (self.num_rows,) if self.has_every_state else ()
        state_out = torch.empty(self.num_sequences, *rows, *shape, device=maker.device)
        return Call(
            (q, k, v, gate, beta, state),
            {"scale": self.d**-0.5, "state_out": state_out, "out": torch.empty_like(v)},
        )

    def work(self, call: Call) -> Work:
        """Each row takes its state three times: with the key, by the key, with the query."""
        q = call.args[0]
        num_rows = self.num_sequences * self.num_rows * self.num_heads
        state_bytes = self.num_sequences * self.num_heads * self.d * self.dv * 4
        num_states = 1 + (self.num_rows if self.has_every_state else 1)
        num_bytes = num_rows * (2 * self.d + 2 * self.dv) * q.itemsize + num_states * state_bytes
        return Work(float(num_bytes), 6.0 * num_rows * self.d * self.dv)

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        """state ← state (exp(gate) (I - beta k kᵀ)) + beta v kᵀ, a matrix a row."""
        q, k, v, gate, beta, state = (each.double() for each in call.args)
        results = torch.zeros(v.shape, dtype=torch.float64)
        current = state.transpose(2, 3)  # [S, heads, Dv, D], as the paper has it
        states = []
        for row in range(self.num_rows):
            key, strength = k[:, row].unsqueeze(3), beta[:, row, :, None, None]
            erased = torch.eye(self.d, dtype=torch.float64) - strength * key * key.mT
            kept = gate[:, row].exp()[:, :, None, None]
            current = current @ (kept * erased) + strength * v[:, row].unsqueeze(3) * key.mT
            results[:, row] = (current @ q[:, row].unsqueeze(3)).squeeze(3) * call.kwargs["scale"]
            states.append(current.mT)
        return results, torch.stack(states, dim=1) if self.has_every_state else states[-1]


def _case(name: str, size: Size, shape: Shape, *, has_products: bool = False) -> Case:
    is_small = size == "small"
    return Case(
        "gated_delta", name, size, shape.make, shape.work, shape.truth,
        dtypes=(torch.float32, torch.float16) if is_small else (torch.bfloat16,),
        has_matrix_products=has_products,
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("decode", "small", Shape(2, 1, 2, 16, 16)),
    _case("verify-every-state", "small", Shape(2, 5, 3, 8, 6, has_every_state=True)),
    _case("odd-heads", "small", Shape(1, 9, 2, 24, 40)),
    _case("one-chunk", "small", Shape(1, 64, 1, 32, 16), has_products=True),
    _case("ragged-chunks", "small", Shape(2, 150, 1, 24, 40), has_products=True),
    _case("wide-chunks", "small", Shape(1, 130, 1, 128, 128), has_products=True),
    _case("decode-32", "serving", Shape(32, 1)),
    _case("verify-6", "serving", Shape(32, 6, has_every_state=True)),
    _case("prefill-2048", "main", Shape(1, 2048), has_products=True),
)
