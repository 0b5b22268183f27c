"""moe_matmul in Triton: the sort on the device, choices that are no experts, and repeated runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.ops.matmul_sort import PAIRS_COUNTED_TWICE_MAX, num_blocks_max, sort_pairs
from kernels.ops.moe_matmul import moe_matmul


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def held_by_blocks(ids: Tensor, num_experts: int, block_size: int) -> dict[int, list[int]]:
    """Expert → its pairs in the order of its blocks, from what the sort gives."""
    order = sort_pairs(ids, num_experts, block_size)
    found: dict[int, list[int]] = {}
    for block in range(order.num_blocks):
        num_pairs = int(order.num_pairs[block])
        assert 0 <= num_pairs <= block_size
        begin = block * block_size
        own = order.pairs[begin : begin + num_pairs].tolist()
        if own:
            found.setdefault(int(order.experts[block]), []).extend(own)
    return found


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_pair_is_in_a_block_of_its_expert_in_order(data: st.DataObject) -> None:
    num_experts = data.draw(st.integers(1, 9))
    num_chosen = data.draw(st.integers(1, 3))
    num_rows = data.draw(st.integers(1, 70))
    block_size = data.draw(st.sampled_from((16, 32)))
    drawn = st.lists(st.integers(0, num_experts - 1), min_size=num_rows * num_chosen,
                     max_size=num_rows * num_chosen)  # fmt: skip
    ids = torch.tensor(data.draw(drawn)).view(num_rows, num_chosen)

    expected: dict[int, list[int]] = {}
    for pair, expert in enumerate(ids.flatten().tolist()):
        expected.setdefault(expert, []).append(pair)

    assert held_by_blocks(ids, num_experts, block_size) == expected


def test_many_pairs_are_counted_before_and_sorted_alike() -> None:
    ids = torch.randint(0, 5, (PAIRS_COUNTED_TWICE_MAX + 131, 1))
    expected = {each: (ids[:, 0] == each).nonzero().flatten().tolist() for each in range(5)}

    assert held_by_blocks(ids, 5, 64) == expected


@pytest.mark.parametrize(
    ("num_pairs", "num_experts", "block_size", "expected"),
    [(8, 128, 16, 8), (256, 128, 16, 144), (2048, 128, 16, 256), (17, 1, 16, 2), (0, 4, 16, 0)],
)
def test_blocks_at_the_most(
    num_pairs: int, num_experts: int, block_size: int, expected: int
) -> None:
    assert num_blocks_max(num_pairs, num_experts, block_size) == expected


@pytest.mark.parametrize("num_chosen", [1, 3])
def test_choice_that_is_no_expert_adds_nothing(num_chosen: int) -> None:
    x, weight = made(6, 40), made(4, 20, 40, seed=1)
    ids = torch.randint(0, 4, (6, num_chosen), generator=torch.Generator().manual_seed(2))
    factors = torch.rand(6, num_chosen, generator=torch.Generator().manual_seed(3))
    without = factors.clone()
    for row, nobody in ((1, -1), (4, 4)):
        ids[row, 0] = nobody
        without[row, 0] = 0.0

    result = moe_matmul(x, weight, ids, factors)

    assert torch.equal(result, moe_matmul(x, weight, ids.clamp(0, 3), without))
    assert bool((result[1] == 0.0).all()) == (num_chosen == 1)


@pytest.mark.usefixtures("even_dot")
def test_rows_in_another_order_give_the_same_to_the_bit() -> None:
    """Sums have one order whatever the blocks hold."""
    x, weight = made(40, 70), made(5, 24, 70, seed=1)
    ids = torch.rand(40, 5, generator=torch.Generator().manual_seed(2)).argsort(1)[:, :3]
    factors = torch.rand(40, 3, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(4))

    plain = moe_matmul(x, weight, ids, factors)

    assert torch.equal(moe_matmul(x[order], weight, ids[order], factors[order]), plain[order])


def test_no_rows_give_no_results() -> None:
    none = torch.empty(0, 2, dtype=torch.int64)

    assert moe_matmul(made(0, 40), made(4, 20, 40), none, none.float()).shape == (0, 20)


def test_weights_in_pieces_are_refused() -> None:
    ids = torch.zeros(3, 1, dtype=torch.int64)

    with pytest.raises(ValueError, match="make it contiguous once"):
        moe_matmul(made(3, 40), made(4, 40, 20).transpose(1, 2), ids, torch.ones(3, 1))
