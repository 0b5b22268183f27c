"""Cases of markov_pick: tokens of a block one after the other, equal to the reference's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.linear_int8 import int8_weight


@dataclass(frozen=True, slots=True)
class Shape:
    """`num_drafts` below `vocab`: drafts are of a part of the tokens. `is_tied`: logits are small
    integers and the table is zero, so that the first of equals must be found.
    """

    num_sequences: int
    num_places: int
    vocab: int
    num_drafts: int
    num_in: int
    is_tied: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        shape = (self.num_sequences, self.num_places, self.num_drafts)
        logits = maker.normal(*shape, salt=1)
        previous = maker.integers(0, self.vocab, self.num_sequences, salt=2)
        table = maker.normal(self.vocab, self.num_in, dtype=dtype, salt=5)
        if self.is_tied:
            logits, table = logits.round_(), table.zero_()
        offsets = None
        if self.num_drafts < self.vocab:
            span = self.vocab - self.num_drafts + 1
            offsets = maker.integers(0, span, self.num_drafts, salt=6).sort().values
        out = torch.empty(self.num_sequences, self.num_places, dtype=torch.int64)
        weight = int8_weight(maker, self.num_drafts, self.num_in)
        return Call(
            (logits, previous, table, weight),
            {"offsets": offsets, "out": out.to(maker.device)},
        )

    def work(self, call: Call) -> Work:
        """A place waits for the one before, so the weight is read for each."""
        num_values = self.num_drafts * self.num_in
        num_logits = self.num_sequences * self.num_drafts
        num_bytes = self.num_places * (num_values + 4.0 * num_logits)
        num_flops = 4.0 * self.num_places * self.num_sequences * num_values
        return Work(num_bytes, num_flops, "int8")


def _case(name: str, size: Size, shape: Shape) -> Case:
    is_small = size == "small"
    return Case(
        "markov_pick", name, size, shape.make, shape.work,
        dtypes=(torch.float32, torch.float16) if is_small else (torch.bfloat16,),
        is_exact=True, has_matrix_products=True,
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    _case("three sequences, several tiles", "small", Shape(3, 4, 500, 300, 40)),
    _case("one sequence", "small", Shape(1, 2, 50, 50, 300)),
    _case("ties", "small", Shape(17, 2, 200, 200, 8, is_tied=True)),
    _case("more sequences than a tile", "small", Shape(65, 1, 150, 130, 32)),
    _case("DSpark 7 of 151936, 32 sequences", "main", Shape(32, 7, 151936, 151936, 256)),
    *(
        _case(
            f"DSpark 7 of 151936, {rows} sequences", "serving", Shape(rows, 7, 151936, 151936, 256)
        )
        for rows in (1, 5, 256)
    ),
)
