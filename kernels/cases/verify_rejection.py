"""Cases of verify_rejection: greedy and drawn sequences, with and without the draft's odds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.sampling import VOCAB_SIZE, cycle, logits_of


@dataclass(frozen=True, slots=True)
class Shape:
    num_sequences: int
    num_drafts: int
    vocab_size: int
    is_greedy: bool = False
    has_probs: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        s, n, v = self.num_sequences, self.num_drafts, self.vocab_size
        logits = logits_of(maker, s, n + 1, v, dtype=dtype)
        kwargs: dict[str, object] = {"out": torch.empty(s, dtype=torch.int64, device=maker.device)}
        if not self.is_greedy:
            kwargs["temperature"] = cycle(maker, (0.8, 1.1, 0.0), s, dtype=torch.float64)
        if self.has_probs:
            kwargs["draft_probs"] = draft_probs(maker, logits[:, :n])
        uniforms = maker.uniform(s, n, dtype=torch.float64, salt=2)
        num_valid = maker.integers(max(0, n - 2), n + 1, s, salt=3)
        return Call((logits, likely_drafts(maker, logits[:, :n]), num_valid, uniforms), kwargs)

    def work(self, call: Call) -> Work:
        num_values = self.num_sequences * self.num_drafts * self.vocab_size
        return Work(float(num_values * call.args[0].itemsize), 4.0 * num_values)


def likely_drafts(maker: Maker, judged: Tensor) -> Tensor:
    """int64 [S, N]: mostly the likeliest token, so that several stand before one falls."""
    num_sequences, num_drafts, vocab_size = judged.shape
    guesses = maker.integers(0, vocab_size, num_sequences, num_drafts, salt=4)
    if maker.device == "meta":
        return guesses
    is_guess = maker.uniform(num_sequences, num_drafts, salt=5) < 0.25
    return torch.where(is_guess, guesses, judged.argmax(dim=2))


def draft_probs(maker: Maker, judged: Tensor) -> Tensor:
    """float32 [S, N, V]: of a draft that is nearly of the target's mind."""
    noise = maker.normal(*judged.shape, salt=6)
    return torch.softmax(judged.float() + 0.5 * noise, dim=2)


def _case(name: str, size: Size, shape: Shape, *dtypes: torch.dtype) -> Case:
    return Case(
        "verify_rejection", name, size, shape.make, shape.work,
        dtypes=dtypes or (torch.float32,), is_exact=True,
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("greedy", "small", Shape(5, 3, 200, is_greedy=True), torch.float32, torch.bfloat16),
    _case("one-hot", "small", Shape(6, 4, 200), torch.float32, torch.float16),
    _case("probs", "small", Shape(6, 5, 200, has_probs=True)),
    _case("one-token", "small", Shape(2, 2, 1, has_probs=True)),
    _case("whole-vocabulary", "small", Shape(3, 4, VOCAB_SIZE, has_probs=True)),
    _case("greedy-5", "serving", Shape(32, 5, VOCAB_SIZE, is_greedy=True)),
    _case("one-hot-5", "serving", Shape(32, 5, VOCAB_SIZE), torch.float32, torch.bfloat16),
    _case("probs-5", "main", Shape(32, 5, VOCAB_SIZE, has_probs=True)),
    _case("probs-16-alone", "serving", Shape(1, 16, VOCAB_SIZE, has_probs=True)),
)
