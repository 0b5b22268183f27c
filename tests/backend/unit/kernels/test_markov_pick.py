"""markov_pick: one draft after the other, in torch and in C++."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.dispatch import Ops, select
from kernels.interface import Int8Weight
from tests.support.native_kernels import threads

NUM_TOKENS = 50


@dataclass
class Case:
    """`size` drafts of `NUM_TOKENS` tokens."""

    logits: Tensor
    previous: Tensor
    table: Tensor
    weight: Tensor
    offsets: Tensor

    @classmethod
    def of(
        cls, rows: int, places: int, size: int, rank: int, dtype: torch.dtype = torch.bfloat16
    ) -> Case:
        rng = torch.Generator().manual_seed(rows + size)
        ids = torch.randperm(max(size, NUM_TOKENS), generator=rng)[:size].sort().values
        return cls(
            torch.randn(rows, places, size, generator=rng),
            torch.randint(0, NUM_TOKENS, (rows,), generator=rng),
            torch.randn(max(size, NUM_TOKENS), rank, generator=rng).to(dtype),
            torch.randn(size, rank, generator=rng),
            ids - torch.arange(size),
        )

    def picked(self, ops: Ops, *, has_offsets: bool = True) -> Tensor:
        offsets = self.offsets if has_offsets else None
        weight = ops.pack_int8(self.weight)
        return ops.markov_pick(self.logits, self.previous, self.table, weight, offsets=offsets)

    def one_by_one(self, ops: Ops, *, has_offsets: bool = True) -> list[list[int]]:
        """From other ops, a row and a place at a time."""
        weight, made = ops.pack_int8(self.weight), []
        for row, first in enumerate(self.previous.tolist()):
            previous, tokens = first, []
            for place in range(self.logits.shape[1]):
                out = torch.empty(1, self.logits.shape[2])
                bias = ops.linear_int8(self.table[previous : previous + 1], weight, out=out)
                best = int((self.logits[row, place] + bias[0]).argmax())
                previous = best + (int(self.offsets[best]) if has_offsets else 0)
                tokens.append(previous)
            made.append(tokens)
        return made


@pytest.fixture(params=["reference", pytest.param("native", marks=pytest.mark.compiler)])
def ops(request: pytest.FixtureRequest) -> Ops:
    return select("cpu", request.param)


@pytest.mark.parametrize("has_offsets", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "places", "size", "rank"),
    [(1, 1, 3, 2), (1, 5, 100, 32), (3, 4, 129, 33), (8, 2, 40, 64), (2, 3, 600, 5)],
)
def test_each_place_is_told_what_was_picked_before_it(
    ops: Ops, rows: int, places: int, size: int, rank: int, dtype: torch.dtype, has_offsets: bool
) -> None:
    case = Case.of(rows, places, size, rank, dtype)

    found = case.picked(ops, has_offsets=has_offsets)

    assert found.dtype is torch.int64
    assert found.tolist() == case.one_by_one(ops, has_offsets=has_offsets)


def test_the_token_before_matters(ops: Ops) -> None:
    """Else the comparison above could not tell a wrong row of the table."""
    case = Case.of(1, 4, 100, 32)
    found = {
        tuple(case.picked(ops)[0].tolist())
        for case.previous in torch.arange(NUM_TOKENS).unsqueeze(1)
    }

    assert len(found) > 5


def test_of_equals_the_first_is_taken(ops: Ops) -> None:
    case = Case.of(2, 3, 100, 8)
    case.logits.zero_()
    case.logits[:, :, [20, 57, 99]] = 3.0
    case.weight.zero_()

    assert (case.picked(ops, has_offsets=False) == 20).all()


def test_result_goes_where_it_is_asked_for(ops: Ops) -> None:
    case, out = Case.of(2, 3, 100, 8), torch.zeros(2, 3, dtype=torch.int64)
    weight = ops.pack_int8(case.weight)

    found = ops.markov_pick(
        case.logits, case.previous, case.table, weight, offsets=case.offsets, out=out
    )

    assert found.data_ptr() == out.data_ptr()
    assert torch.equal(out, case.picked(ops))


@pytest.mark.compiler
def test_threads_and_layout_change_nothing() -> None:
    ops, case = select("cpu", "native"), Case.of(3, 4, 600, 32)
    expected = case.picked(ops)
    case.logits = case.logits.transpose(0, 1).contiguous().transpose(0, 1)

    with threads(2):
        assert torch.equal(case.picked(ops), expected)


@pytest.mark.compiler
def test_what_does_not_fit_is_refused() -> None:
    ops, case = select("cpu", "native"), Case.of(2, 3, 100, 8)
    weight: Int8Weight = ops.pack_int8(case.weight)

    with pytest.raises(ValueError, match="do not fit"):
        ops.markov_pick(case.logits[..., 1:], case.previous, case.table, weight)
    with pytest.raises(ValueError, match="do not fit"):
        ops.markov_pick(case.logits, case.previous[1:], case.table, weight)
    with pytest.raises(IndexError, match="not one of the table's 100"):
        ops.markov_pick(case.logits, case.previous + 1000, case.table, weight)


@pytest.mark.compiler
def test_a_weight_packed_elsewhere_is_packed_again() -> None:
    case, native = Case.of(2, 3, 100, 8), select("cpu", "native")
    weight = select("cpu", "reference").pack_int8(case.weight)

    found = native.markov_pick(case.logits, case.previous, case.table, weight, offsets=case.offsets)

    assert torch.equal(found, case.picked(native))
