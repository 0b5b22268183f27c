"""Cases of row_stats: rows of a vocabulary, split over blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.sampling import VOCAB_SIZE, cycle, logits_of


@dataclass(frozen=True, slots=True)
class Shape:
    num_rows: int
    vocab_size: int
    has_temperature: bool = True

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        logits = logits_of(maker, self.num_rows, self.vocab_size, dtype=dtype)
        kwargs: dict[str, object] = {
            name: torch.empty(self.num_rows, device=maker.device) for name in ("max_out", "sum_out")
        }
        if self.has_temperature:
            values = (0.7, 0.0, 1.5)
            kwargs["temperature"] = cycle(maker, values, self.num_rows, dtype=torch.float32)
        return Call((logits,), kwargs)

    def work(self, call: Call) -> Work:
        num_values = self.num_rows * self.vocab_size
        return Work(float(num_values * call.args[0].itemsize), 4.0 * num_values)

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        scaled = call.args[0].double()
        if (temperature := call.kwargs.get("temperature")) is not None:
            for row, t in enumerate(temperature.tolist()):
                scaled[row] /= t or 1.0
        largest = scaled.max(dim=1).values
        return largest, torch.exp(scaled - largest[:, None]).sum(dim=1)


def _case(name: str, size: Size, shape: Shape) -> Case:
    return Case("row_stats", name, size, shape.make, shape.work, shape.truth)


CASES: tuple[Case, ...] = (
    _case("few-tokens", "small", Shape(4, 37)),
    _case("one-token", "small", Shape(2, 1, has_temperature=False)),
    _case("whole-vocabulary", "small", Shape(3, VOCAB_SIZE)),
    _case("decode", "serving", Shape(1, VOCAB_SIZE)),
    _case("verify", "main", Shape(160, VOCAB_SIZE)),
)
