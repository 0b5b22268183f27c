"""Cases of residual_pick: refused drafts, bonus places, and no drafts at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.sampling import VOCAB_SIZE, cycle, logits_of
from kernels.cases.verify_rejection import draft_probs, likely_drafts


@dataclass(frozen=True, slots=True)
class Shape:
    num_sequences: int
    num_drafts: int
    vocab_size: int
    is_greedy: bool = False
    has_drafts: bool = True
    has_probs: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        s, n, v = self.num_sequences, self.num_drafts, self.vocab_size
        logits = logits_of(maker, s, n + 1, v, dtype=dtype)
        kwargs: dict[str, object] = {"out": torch.empty(s, dtype=torch.int64, device=maker.device)}
        if not self.is_greedy:
            kwargs["temperature"] = cycle(maker, (0.8, 1.1, 0.0, 0.9), s, dtype=torch.float64)
        if self.has_drafts:
            drafts = likely_drafts(maker, logits[:, :n])
            is_none = maker.integers(0, 4, s, n, salt=7) == 0
            kwargs["draft_ids"] = torch.where(is_none, -1, drafts)
        if self.has_probs:
            kwargs["draft_probs"] = draft_probs(maker, logits[:, :n])
        accepted = maker.integers(0, n + 1, s, salt=3)
        return Call((logits, accepted, maker.uniform(s, dtype=torch.float64, salt=2)), kwargs)

    def work(self, call: Call) -> Work:
        """One row of logits a sequence, and one of the draft's probabilities at the most."""
        num_values = self.num_sequences * self.vocab_size
        num_bytes = num_values * (call.args[0].itemsize + 4 * self.has_probs)
        return Work(float(num_bytes), 4.0 * num_values)


def _case(name: str, size: Size, shape: Shape, *dtypes: torch.dtype) -> Case:
    return Case(
        "residual_pick", name, size, shape.make, shape.work,
        dtypes=dtypes or (torch.float32,), is_exact=True,
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("greedy", "small", Shape(4, 2, 200, is_greedy=True), torch.float32, torch.bfloat16),
    _case("one-hot", "small", Shape(8, 3, 200), torch.float32, torch.float16),
    _case("probs", "small", Shape(8, 3, 200, has_probs=True)),
    _case("no-drafts", "small", Shape(4, 2, 200, has_drafts=False)),
    _case("one-token", "small", Shape(3, 1, 1, has_probs=True)),
    _case("whole-vocabulary", "small", Shape(4, 2, VOCAB_SIZE, has_probs=True)),
    _case("one-hot-5", "serving", Shape(32, 5, VOCAB_SIZE), torch.float32, torch.bfloat16),
    _case("probs-5", "main", Shape(32, 5, VOCAB_SIZE, has_probs=True)),
    _case("bonus-only", "serving", Shape(256, 0, VOCAB_SIZE, has_drafts=False)),
)
