"""paged_attention against a loop over rows and keys in float64."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.dispatch import Ops, select
from kernels.interface import MaskKind
from kernels.reference.paged_attention import SCORES_MAX

BLOCK = 4
# bfloat16: inputs are exact in both, so that only the result's rounding remains.
TOLERANCES = {torch.float32: (2e-6, 2e-6), torch.bfloat16: (4e-3, 1.6e-2)}
TREE = (0b00001, 0b00011, 0b00101, 0b01011, 0b10101)  # two branches from one root


@dataclass
class Case:
    """A group with random tables; whatever no row may see is NaN."""

    query_len: int
    lens: tuple[int, ...]
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(self.seed)
        width = max(1, -(-max(self.lens) // BLOCK)) + 1
        num_blocks = 1 + width * len(self.lens)
        shape = (num_blocks, self.num_kv_heads, BLOCK, self.head_dim)
        self.caches = [torch.randn(*shape, generator=random).to(self.dtype) for _ in range(2)]
        self.tables = 1 + torch.randperm(num_blocks - 1, generator=random).view(-1, width).int()
        for row, length in enumerate(self.lens):
            used = -(-length // BLOCK)
            for cache in self.caches:
                for place in range(length, width * BLOCK):
                    cache[self.tables[row, place // BLOCK], :, place % BLOCK] = torch.nan
                cache[0] = torch.nan
            self.tables[row, used:] = 0
        rows = len(self.lens) * self.query_len
        self.q = torch.randn(rows, self.num_heads, self.head_dim, generator=random).to(self.dtype)
        self.context_lens = torch.tensor(self.lens, dtype=torch.int32)
        self.starts = (self.context_lens - self.query_len).clamp(min=0)
        self.bits = torch.tensor([TREE[: self.query_len]] * len(self.lens))

    def run(self, ops: Ops, **options: Any) -> Tensor:
        if options.get("mask") == "bits":
            options.setdefault("mask_bits", self.bits)
        return ops.paged_attention(
            self.q,
            *self.caches,
            self.tables,
            self.context_lens,
            self.starts,
            query_len=self.query_len,
            scale=self.head_dim**-0.5,
            **options,
        )

    def exact(self, mask: MaskKind = "causal", window: int = 0, soft_cap: float = 0.0) -> Tensor:
        result = torch.zeros(self.q.shape, dtype=torch.float64)
        for row in range(self.q.shape[0]):
            sequence, step = divmod(row, self.query_len)
            places = [
                place
                for place in range(self.lens[sequence])
                if self.sees(sequence, step, place, mask, window)
            ]
            if not places:
                continue
            for head in range(self.num_heads):
                kv_head = head // (self.num_heads // self.num_kv_heads)
                keys, values = (
                    self.rows(cache, sequence, places, kv_head) for cache in self.caches
                )
                scores = keys @ self.q[row, head].double() * self.head_dim**-0.5
                if soft_cap:
                    scores = (scores / soft_cap).tanh() * soft_cap
                result[row, head] = torch.softmax(scores, dim=0) @ values
        return result

    def rows(self, cache: Tensor, sequence: int, places: list[int], kv_head: int) -> Tensor:
        table = self.tables[sequence].tolist()
        found = [cache[table[place // BLOCK], kv_head, place % BLOCK] for place in places]
        return torch.stack(found).double()

    def sees(self, sequence: int, step: int, place: int, mask: MaskKind, window: int) -> bool:
        start = int(self.starts[sequence])
        position, of_key = start + step, place
        if mask == "bits":
            own = place - start
            if own >= 0 and not (own < self.query_len and TREE[step] >> own & 1):
                return False
            position = start + TREE[step].bit_count() - 1
            if own >= 0:
                of_key = start + TREE[own].bit_count() - 1
        elif mask == "causal" and place > position:
            return False
        return not window or of_key > position - window

    def check(self, got: Tensor, **options: Any) -> None:
        atol, rtol = TOLERANCES[self.dtype]
        assert got.dtype == self.dtype
        torch.testing.assert_close(got.double(), self.exact(**options), atol=atol, rtol=rtol)


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"soft_cap": 1.5}], ids=str)
@pytest.mark.parametrize("mask", ["causal", "block", "bits"])
@pytest.mark.parametrize("query_len", [1, 5])
def test_every_mask_is_that_of_the_loop(
    ops: Ops, query_len: int, mask: MaskKind, options: dict[str, Any]
) -> None:
    case = Case(query_len, (9, 5, 13, 8))

    case.check(case.run(ops, mask=mask, **options), mask=mask, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("query_len", [1, 5, 8])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 32), (4, 1, 128), (2, 1, 512)]
)
def test_every_shape_of_heads_is_that_of_the_loop(
    ops: Ops, num_heads: int, num_kv_heads: int, head_dim: int, query_len: int, dtype: torch.dtype
) -> None:
    case = Case(query_len, (8, 21), num_heads, num_kv_heads, head_dim, dtype)

    case.check(case.run(ops))


@given(
    lens=st.lists(st.integers(5, 40), min_size=1, max_size=4),
    query_len=st.sampled_from([1, 3, 5]),
    mask=st.sampled_from(["causal", "block", "bits"]),
    window=st.sampled_from([0, 1, 6]),
    seed=st.integers(0, 99),
)
def test_ragged_contexts_are_those_of_the_loop(
    lens: list[int], query_len: int, mask: MaskKind, window: int, seed: int
) -> None:
    case = Case(query_len, tuple(lens), 2, 1, 8, seed=seed)

    case.check(
        case.run(select("cpu", "reference"), mask=mask, window=window), mask=mask, window=window
    )


def test_result_is_written_where_it_is_wanted(ops: Ops) -> None:
    case = Case(5, (9, 14))
    out = torch.full(case.q.shape, torch.nan)

    got = case.run(ops, out=out)

    assert got is out
    assert torch.equal(out, case.run(ops))


def test_padding_sequence_gives_zeros_and_leaves_the_others_alone(ops: Ops) -> None:
    case = Case(1, (9, 0, 6))

    got = case.run(ops)

    case.check(got)
    assert got[1].unique().tolist() == [0.0]


def test_group_without_sequences_gives_nothing() -> None:
    case = Case(1, (9, 6))
    case.q, case.tables = case.q[:0], case.tables[:0]
    case.context_lens, case.starts = case.context_lens[:0], case.starts[:0]

    assert case.run(select("cpu", "reference")).shape == (0, 6, 16)


def test_rows_behind_the_context_do_not_disturb_real_ones(ops: Ops) -> None:
    # A chunk of 5 with 3 real tokens: the last two rows stand behind the end.
    case = Case(5, (11,))
    case.starts = torch.tensor([8], dtype=torch.int32)

    got = case.run(ops)

    case.check(got)
    assert got.isfinite().all()


@pytest.mark.parametrize("mask", ["causal", "block", "bits"])
def test_row_that_sees_no_key_gives_zeros(ops: Ops, mask: MaskKind) -> None:
    # Rows that stand so far behind the end that their window begins there too. The same of Triton:
    # the case "rows that see no key", with every small one under the interpreter.
    case = Case(5, (11, 5))
    case.starts = torch.tensor([9, 20], dtype=torch.int32)

    got = case.run(ops, mask=mask, window=2)

    case.check(got, mask=mask, window=2)
    rows = got.view(2, 5, -1)
    assert rows[1].unique().tolist() == [0.0]
    assert bool((rows[0, 0] != 0).all())


def test_what_a_row_without_keys_cannot_see_may_be_nan(ops: Ops) -> None:
    case = Case(1, (6,))
    case.starts = torch.tensor([20], dtype=torch.int32)
    for cache in case.caches:
        cache.fill_(torch.nan)

    assert case.run(ops, window=2).unique().tolist() == [0.0]


@pytest.mark.parametrize("scales", [(0.5, 4.0), ((0.5, 2.0), (4.0, 0.25))])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float32])
def test_scales_multiply_what_the_cache_holds(
    ops: Ops, dtype: torch.dtype, scales: tuple[object, object]
) -> None:
    case = Case(5, (9, 14))
    k_scale, v_scale = torch.tensor(scales[0]), torch.tensor(scales[1])
    case.caches = [cache.to(dtype) for cache in case.caches]

    got = case.run(ops, k_scale=k_scale, v_scale=v_scale)

    case.caches = [
        cache.float() * factor.reshape(-1, 1, 1)
        for cache, factor in zip(case.caches, (k_scale, v_scale), strict=True)
    ]
    case.check(got)


def test_queries_may_be_a_part_of_a_wider_tensor(ops: Ops) -> None:
    case = Case(5, (9, 14))
    want = case.run(ops)
    case.q = torch.cat((case.q, torch.full_like(case.q, torch.nan)), dim=1)[:, : case.num_heads]

    assert torch.equal(case.run(ops), want)


def test_long_prompt_taken_in_parts_is_the_same_as_short_ones(ops: Ops) -> None:
    case = Case(300, (2050,), num_heads=16, num_kv_heads=4, head_dim=8)
    assert case.num_heads * 300 * 2050 > SCORES_MAX
    got = case.run(ops, window=900)

    for first in (0, 150, 295):
        part = copy(case)
        part.query_len = 5
        part.q = case.q[first : first + 5]
        part.starts = case.starts + first
        want = part.run(ops, window=900)
        torch.testing.assert_close(got[first : first + 5], want, atol=2e-6, rtol=2e-6)


def test_mask_that_cannot_be_is_refused(ops: Ops) -> None:
    case = Case(1, (5,))

    with pytest.raises(ValueError, match="'tree' is unknown; use causal, block or bits"):
        case.run(ops, mask="tree")
    with pytest.raises(ValueError, match="needs mask_bits"):
        case.run(ops, mask="bits", mask_bits=None)
