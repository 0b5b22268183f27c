"""Cases of sample: greedy, drawn, and every filter, whole vocabularies among them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.sampling import VOCAB_SIZE, cycle, logits_of

_TOP_K, _TOP_P, _MIN_P = (50, 0, 3, 1000, 0), (0.9, 0.95, 1.0, 0.3), (0.0, 0.02, 0.3)


@dataclass(frozen=True, slots=True)
class Shape:
    """`filters` of "kpm": which there are. `is_mixed`: some rows are greedy, some unfiltered."""

    num_rows: int
    vocab_size: int
    filters: str = ""
    is_greedy: bool = False
    top_k_max: int | None = None

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        logits = logits_of(maker, self.num_rows, self.vocab_size, dtype=dtype)
        uniforms = maker.uniform(self.num_rows, dtype=torch.float64, salt=1)
        kwargs: dict[str, object] = {
            "out": torch.empty(self.num_rows, dtype=torch.int64, device=maker.device)
        }
        if not self.is_greedy:
            values = (0.8, 1.0, 0.6, 0.0, 1.3)
            kwargs["temperature"] = cycle(maker, values, self.num_rows, dtype=torch.float64)
        if "k" in self.filters:
            kwargs["top_k"] = cycle(maker, _TOP_K, self.num_rows, dtype=torch.int64)
            kwargs["top_k_max"] = self.top_k_max
        if "p" in self.filters:
            kwargs["top_p"] = cycle(maker, _TOP_P, self.num_rows, dtype=torch.float64)
        if "m" in self.filters:
            kwargs["min_p"] = cycle(maker, _MIN_P, self.num_rows, dtype=torch.float64)
        return Call((logits, uniforms), kwargs)

    def work(self, call: Call) -> Work:
        num_values = self.num_rows * self.vocab_size
        return Work(float(num_values * call.args[0].itemsize), 4.0 * num_values, "fp32")


def _case(name: str, size: Size, shape: Shape, *dtypes: torch.dtype) -> Case:
    return Case(
        "sample", name, size, shape.make, shape.work,
        dtypes=dtypes or (torch.float32,), is_exact=True,
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("greedy", "small", Shape(4, 300, is_greedy=True), torch.float32, torch.bfloat16),
    _case("drawn", "small", Shape(5, 300), torch.float32, torch.float16),
    _case("top-k", "small", Shape(3, 300, "k")),
    _case("top-k-bounded", "small", Shape(1, 300, "k", top_k_max=1000)),
    _case("top-p", "small", Shape(3, 300, "p"), torch.float32, torch.bfloat16),
    _case("min-p", "small", Shape(4, 300, "m")),
    _case("all-filters", "small", Shape(3, 301, "kpm"), torch.float16, torch.bfloat16),
    _case("one-token", "small", Shape(1, 1, "kpm")),
    _case("whole-vocabulary", "small", Shape(2, VOCAB_SIZE, "kpm")),
    _case("decode-greedy", "serving", Shape(32, VOCAB_SIZE, is_greedy=True)),
    _case("decode-alone", "serving", Shape(1, VOCAB_SIZE, "kp")),
    _case("decode", "main", Shape(32, VOCAB_SIZE, "kpm")),
    _case("decode-many", "serving", Shape(256, VOCAB_SIZE, "p"), torch.float32, torch.bfloat16),
)
