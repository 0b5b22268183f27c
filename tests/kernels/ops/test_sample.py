"""sample in Triton, token for token the reference's: filters, ties, and rows without a token."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.ops.sample import sample
from kernels.reference.sample import VOCAB_SIZE_MAX, first_largest
from kernels.reference.sample import sample as reference

VOCAB_SIZE = 151_936
FILTERS = {"top_k": 40, "top_p": 0.93, "min_p": 0.01}


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def settings(num_rows: int, **filters: float) -> dict[str, Tensor]:
    given: dict[str, Tensor] = {"temperature": torch.full((num_rows,), 0.9, dtype=torch.float64)}
    for name, value in filters.items():
        dtype = torch.int64 if name == "top_k" else torch.float64
        given[name] = torch.full((num_rows,), value, dtype=dtype)
    return given


def check(logits: Tensor, uniforms: Tensor, **given: Any) -> None:
    got = sample(logits, uniforms, **given)

    assert got.tolist() == reference(logits, uniforms, **given).tolist()


@pytest.mark.parametrize(
    "names",
    [names for size in range(4) for names in itertools.combinations(FILTERS, size)],
    ids=lambda names: "+".join(names) or "none",
)
def test_every_set_of_filters_over_a_whole_vocabulary(names: tuple[str, ...]) -> None:
    uniforms = torch.rand(1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    check(made(1, VOCAB_SIZE, seed=len(names)), uniforms,
          **settings(1, **{name: FILTERS[name] for name in names}))  # fmt: skip


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 5}, {"top_k": 400, "top_p": 0.6}, {"top_p": 1e-9}, {"top_p": 1.0, "min_p": 1.0}],
    ids=str,
)
def test_what_ties_with_the_last_one_kept_is_kept(filters: dict[str, float]) -> None:
    logits = (made(1, 90, seed=4) / 3).round()  # few values, many ties
    logits[0, :4] = torch.tensor([0.0, -0.0, 0.0, -0.0])
    ends = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)

    check(logits.expand(2, 90), ends, **settings(2, **filters))


def test_a_threshold_may_lie_among_the_smallest_differences() -> None:
    # Neighbours in float32, about 0 and about 1, differ in the last digit of the threshold.
    bits = torch.cat([torch.arange(-3, 4), torch.arange(-3, 4) + 0x3F800000]).to(torch.int32)
    logits = bits.abs().view(torch.float32).unsqueeze(0).repeat(4, 1)
    logits[:, :3] *= -1.0
    uniforms = torch.tensor([0.99, 0.99, 0.99, 0.6])
    top_k, top_p = torch.tensor([2, 6, 10, 0]), torch.tensor([1.0, 1.0, 1.0, 0.7])

    check(logits, uniforms, temperature=torch.full((4,), 0.5), top_k=top_k, top_p=top_p)


def test_the_bound_of_top_k_bounds_it() -> None:
    logits, uniforms = made(2, 50), torch.tensor([0.99, 0.99])
    top_k = torch.tensor([4, 0])

    check(logits, uniforms, temperature=torch.ones(2), top_k=top_k, top_k_max=4)


def test_greedy_rows_give_their_first_largest() -> None:
    logits = made(6, 100)
    logits[0, [60, 70]] = 99.0
    logits[1] = -torch.inf
    logits[2, [80, 90]] = torch.nan
    logits[3, [3, 40]] = torch.inf
    logits[4] = torch.where(torch.arange(100) % 2 == 0, -0.0, 0.0)

    assert sample(logits, torch.rand(6)).tolist() == first_largest(logits).tolist()


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits, uniforms = made(4, 100), torch.linspace(0.1, 0.9, 4)
    temperature = torch.tensor([0.0, 0.8, 0.0, 1.2])

    check(logits, uniforms, temperature=temperature, top_k=torch.tensor([3, 3, 0, 0]),
          min_p=torch.tensor([0.5, 0.5, 0.0, 0.1]))  # fmt: skip


def test_rows_without_a_weight_give_some_token_and_harm_no_other() -> None:
    logits, uniforms = made(5, 70), torch.rand(5, generator=torch.Generator().manual_seed(1))
    given = settings(5, top_p=0.9, min_p=0.01)
    want = reference(logits, uniforms, **given)
    logits[1] = torch.nan
    logits[2] = -torch.inf
    logits[3, 30] = torch.nan
    logits[4, 30] = torch.inf

    got = sample(logits, uniforms, **given)

    assert got[0] == want[0]
    assert ((got >= 0) & (got < 70)).all()


def test_tokens_taken_out_are_never_drawn() -> None:
    logits = torch.full((2, 9), -torch.inf)
    logits[:, [2, 5]] = torch.tensor([0.0, -1.0])
    uniforms = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)

    assert sample(logits, uniforms, **settings(2)).tolist() == [2, 5]


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 64, 65])
def test_vocabularies_of_any_size(vocab_size: int) -> None:
    check(made(2, vocab_size), torch.tensor([0.3, 0.95]), **settings(2, min_p=0.05))


def test_rows_apart_columns_apart_and_a_place_for_the_tokens() -> None:
    logits = made(3, 2, 40)
    out, elsewhere = torch.full((3,), -9), torch.full((6,), -9)[::2]

    got = sample(logits[:, 1], torch.rand(3), out=out)
    sample(logits.permute(0, 2, 1).contiguous().permute(0, 2, 1)[:, 1], torch.rand(3),
           out=elsewhere)  # fmt: skip

    assert got is out
    assert out.tolist() == elsewhere.tolist() == first_largest(logits[:, 1]).tolist()


def test_no_rows_are_no_work() -> None:
    assert sample(torch.empty(0, 50), torch.empty(0), **settings(0, top_k=3)).shape == (0,)


def test_vocabularies_too_large_for_exact_sums_are_refused() -> None:
    with pytest.raises(ValueError, match=f"of {VOCAB_SIZE_MAX + 1} tokens cannot be sampled"):
        sample(torch.empty(1, VOCAB_SIZE_MAX + 1), torch.rand(1))


def test_uniform_on_a_border_draws_the_token_behind_it() -> None:
    logits = torch.zeros(5, 6)
    logits[:, [0, 3]] = -torch.inf  # four alike are left
    uniforms = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0 - 2.0**-24])

    assert sample(logits, uniforms, temperature=torch.ones(5)).tolist() == [1, 2, 4, 5, 5]


@pytest.mark.parametrize("num_kept", [1, 2, 5, 16])
def test_top_k_keeps_no_token_more_than_it_says(num_kept: int) -> None:
    # The likelier the earlier, and all nearly alike: the last draw is the last token that is kept.
    logits = torch.linspace(1.0, 0.0, 40).unsqueeze(0)
    drawn = sample(
        logits,
        torch.tensor([0.9999]),
        temperature=torch.tensor([100.0]),
        top_k=torch.tensor([num_kept]),
    )
    assert drawn.tolist() == [num_kept - 1]
