"""paged_attention in C++: a row's bits depend on the keys it sees and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.native_kernels import native_ops, threads

pytestmark = pytest.mark.compiler

BLOCK = 16
DTYPES = ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16))
# Below a block of keys, a block, a chunk, and several chunks (a block has 64, a chunk 256).
CONTEXTS = (5, 64, 65, 256, 300, 777)


class World:
    """Sequences whose caches hold NaN wherever no key of theirs lies."""

    def __init__(
        self,
        contexts: tuple[int, ...],
        *,
        dtypes: tuple[torch.dtype, torch.dtype] = DTYPES[1],
        heads: tuple[int, int] = (6, 2),
        head_dim: int = 64,
    ) -> None:
        self.random = torch.Generator().manual_seed(7)
        self.heads, self.head_dim, self.dtypes = heads, head_dim, dtypes
        width = -(-max(contexts) // BLOCK)
        num_blocks = 1 + width * len(contexts)
        shape = (num_blocks, heads[1], BLOCK, head_dim)
        self.caches = [torch.full(shape, torch.nan, dtype=dtypes[1]) for _ in range(2)]
        order = torch.randperm(num_blocks - 1, generator=self.random) + 1
        self.tables = order.view(len(contexts), width).int()
        self.contexts = torch.tensor(contexts, dtype=torch.int32)
        for row, context in enumerate(contexts):
            self.fill(row, 0, context)

    def fill(self, row: int, begin: int, end: int) -> None:
        for place in range(begin, end):
            for cache in self.caches:
                key = torch.randn(self.heads[1], self.head_dim, generator=self.random)
                cache[self.tables[row, place // BLOCK], :, place % BLOCK] = key.to(self.dtypes[1])

    def queries(self, query_len: int) -> Tensor:
        shape = (len(self.contexts) * query_len, self.heads[0], self.head_dim)
        return torch.randn(shape, generator=self.random).to(self.dtypes[0])

    def attend(self, q: Tensor, query_len: int, **given: Any) -> Tensor:
        rows = given.pop("rows", slice(None))
        contexts = given.pop("contexts", self.contexts)[rows]
        starts = given.pop("starts", contexts - query_len)
        result: Tensor = native_ops()["paged_attention"](
            *(q, *self.caches, self.tables[rows], contexts, starts),
            query_len=query_len,
            scale=self.head_dim**-0.5,
            **given,
        )
        return result


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtypes", DTYPES)
def test_sequence_is_the_same_alone_and_among_others(
    dtypes: tuple[torch.dtype, torch.dtype], num_threads: int
) -> None:
    world = World(CONTEXTS, dtypes=dtypes)
    q = world.queries(1)
    q[1] *= 1000.0
    alone = [world.attend(q[i : i + 1], 1, rows=slice(i, i + 1)) for i in range(len(CONTEXTS))]

    with threads(num_threads):
        for count in range(1, len(CONTEXTS) + 1):
            together = world.attend(q[:count], 1, rows=slice(0, count))
            assert torch.equal(together, torch.cat(alone[:count])), count
    assert torch.cat(alone).isfinite().all()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("query_len", [5, 23, 70])
def test_row_of_a_long_query_is_the_row_of_a_short_one(
    query_len: int, window: int, num_threads: int
) -> None:
    world = World((70, 300, 530))
    q = world.queries(query_len)
    with threads(num_threads):
        together = world.attend(q, query_len, window=window).view(3, query_len, 6, 64)

    for step in range(query_len):
        contexts = world.contexts - query_len + step + 1
        alone = world.attend(
            q.view(3, query_len, 6, 64)[:, step].contiguous(), 1, contexts=contexts, window=window
        )
        assert torch.equal(together[:, step], alone), step


def test_tree_row_is_the_row_of_its_own_branch() -> None:
    # Row 3 sees rows 0 and 1 of the step, not row 2, in whose key there is NaN.
    query_len = 4
    world = World((100, 258))
    bits = torch.tensor([[0b0001, 0b0011, 0b0101, 0b1011]] * 2)
    q = world.queries(query_len)
    for row, context in enumerate((100, 258)):
        place = context - 2
        for cache in world.caches:
            cache[world.tables[row, place // BLOCK], :, place % BLOCK] = torch.nan

    got = world.attend(q, query_len, mask="bits", mask_bits=bits).view(2, query_len, 6, 64)
    causal = world.attend(q, query_len).view(2, query_len, 6, 64)

    assert torch.equal(got[:, :2], causal[:, :2])
    assert got[:, 2].isnan().all()
    assert got[:, 3].isfinite().all()
    assert causal[:, 3].isnan().all()


def test_nan_of_a_later_row_does_not_reach_an_earlier_one() -> None:
    world = World((90,))
    q = world.queries(5)
    want = world.attend(q, 5)
    for cache in world.caches:
        cache[world.tables[0, 88 // BLOCK], :, 88 % BLOCK] = torch.nan

    got = world.attend(q, 5)

    assert torch.equal(got[:3], want[:3])
    assert got[3:].isnan().all()


def test_row_of_nan_is_nan_and_harms_no_other() -> None:
    world = World((90, 40))
    q = world.queries(1)
    want = world.attend(q, 1)
    q[0, 2] = torch.nan

    got = world.attend(q, 1)

    assert got[0, 2].isnan().all()
    got[0, 2] = want[0, 2]
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), *DTYPES])
@pytest.mark.parametrize(
    ("heads", "head_dim"), [((3, 3), 8), ((7, 1), 20), ((4, 2), 80), ((64, 1), 128)]
)
def test_long_contexts_and_odd_heads_are_those_of_float64(
    heads: tuple[int, int], head_dim: int, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    world = World((600,), heads=heads, head_dim=head_dim, dtypes=dtypes)
    q = world.queries(3)
    keys, values = (
        cache[world.tables[0].long()].transpose(0, 1).reshape(heads[1], -1, head_dim)[:, :600]
        for cache in world.caches
    )
    expanded = [each.double().repeat_interleave(heads[0] // heads[1], 0) for each in (keys, values)]
    scores = torch.einsum("qhd,htd->hqt", q.double(), expanded[0]) * head_dim**-0.5
    hidden = torch.arange(600) > torch.arange(597, 600)[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    want = torch.einsum("hqt,htd->qhd", weights, expanded[1])

    got = world.attend(q, 3)

    bound = 4e-3 if dtypes[0] == torch.bfloat16 else 2e-6
    assert (got.double() - want).abs().max() < bound * want.abs().max()


def test_context_or_block_that_does_not_exist_is_refused() -> None:
    world = World((40,))
    q = world.queries(1)

    with pytest.raises(IndexError, match="longer than its block table"):
        world.attend(q, 1, contexts=torch.tensor([49], dtype=torch.int32))
    world.tables[0, 1] = 99
    with pytest.raises(IndexError, match="a block that the cache does not have"):
        world.attend(q, 1)
    with pytest.raises(ValueError, match="1 sequences of 2"):
        world.attend(q, 2)
