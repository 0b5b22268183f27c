"""Filters against a slow sort and against transformers; the draw against its definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from backend.sampling.sampler import TOP_K_SMALL
from kernels.reference.sample import WEIGHT_BITS, draw, filtered_weights, weights_of

Filters = dict[str, Any]


def rows_of(num_rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def filters_of(
    num_rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Filters:
    def column(value: float) -> Tensor:
        return torch.full((num_rows,), value, dtype=torch.float64)

    return {
        "temperature": column(temperature),
        "top_k": torch.full((num_rows,), top_k) if top_k else None,
        "top_k_max": TOP_K_SMALL if 0 < top_k <= TOP_K_SMALL else None,
        "top_p": column(top_p) if top_p < 1.0 else None,
        "min_p": column(min_p) if min_p else None,
    }


def probabilities(logits: Tensor, filters: Filters) -> Tensor:
    weights = filtered_weights(logits, **filters)
    return weights.double() / weights.sum(1, keepdim=True)


def by_sorting(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> list[float]:
    """The definition: sort, walk down, keep; equal logits are kept or dropped together."""
    best = max(logits)
    mass = [math.exp((x - best) / temperature) for x in logits]
    if top_k:
        last = sorted(logits, reverse=True)[min(top_k, len(logits)) - 1]
        mass = [m if x >= last else 0.0 for m, x in zip(mass, logits, strict=True)]
    if top_p < 1.0:
        total = math.fsum(mass)
        above = {
            x: math.fsum(m for m, y in zip(mass, logits, strict=True) if y > x) for x in logits
        }
        mass = [m if above[x] < top_p * total else 0.0 for m, x in zip(mass, logits, strict=True)]
    mass = [m if m >= min_p else 0.0 for m in mass]
    total = math.fsum(mass)
    return [m / total for m in mass]


def test_weights_are_the_softmax_to_twelve_digits() -> None:
    logits = rows_of(5, 1001)

    got = probabilities(logits, filters_of(5, temperature=0.7))

    want = torch.softmax(logits.double() / 0.7, 1)
    assert (got - want).abs().max() < 1e-12
    assert torch.equal(weights_of(logits, torch.ones(5).double()).amax(1), torch.full((5,), 2**44))


@given(
    logits=st.lists(
        st.floats(-20, 20, width=32) | st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=40
    ),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 100]),
    top_p=st.sampled_from([0.001, 0.31, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 1.0]),
)
def test_filters_equal_the_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    filters = filters_of(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    got = probabilities(torch.tensor([logits]), filters)[0]

    want = doubles(*by_sorting(logits, temperature, top_k, top_p, min_p))
    assert torch.allclose(got, want, atol=1e-11, rtol=0.0)


@pytest.mark.parametrize("vocab_size", [70, 1000, 32_003])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (50, 1.0, 0.0),
        (64, 0.9, 0.0),
        (65, 0.5, 0.02),
        (0, 0.95, 0.0),
        (0, 1.0, 0.1),
        (900, 0.3, 0.0),
    ],
)
def test_filters_keep_what_transformers_keeps(
    vocab_size: int, top_k: int, top_p: float, min_p: float
) -> None:
    logits = rows_of(4, vocab_size, seed=vocab_size)
    scores = TemperatureLogitsWarper(0.8)(torch.empty(0), logits.double())
    if top_k:
        scores = TopKLogitsWarper(top_k)(torch.empty(0), scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(torch.empty(0), scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(torch.empty(0), scores)

    got = probabilities(
        logits, filters_of(4, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    )

    assert (got - torch.softmax(scores, 1)).abs().max() < 1e-11


@pytest.mark.parametrize("top_k", [3, 64, 65, 500])
def test_both_ways_to_find_the_top_k_agree(top_k: int) -> None:
    logits = rows_of(6, 700).round(decimals=1)  # many ties
    small = filters_of(6, top_k=top_k)

    kept = filtered_weights(logits, **{**small, "top_k_max": None})

    last = logits.sort(1, descending=True).values[:, top_k - 1 : top_k]
    assert torch.equal(kept > 0, logits >= last)
    if top_k <= TOP_K_SMALL:
        assert torch.equal(kept, filtered_weights(logits, **small))


@pytest.mark.parametrize("vocab_size", [97, 4099])
def test_a_row_does_not_depend_on_the_others_or_their_number(vocab_size: int) -> None:
    logits = rows_of(16, vocab_size)
    top_k = torch.tensor([0, 3, 40, 1] * 4)
    columns = [torch.linspace(low, high, 16).double() for low, high in ((0.1, 2), (0.2, 1), (0, 1))]
    noise = torch.rand(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def weights(rows: slice) -> Tensor:
        temperature, top_p, min_p = (column[rows] for column in columns)
        return filtered_weights(
            logits[rows],
            temperature,
            top_k=top_k[rows],
            top_k_max=TOP_K_SMALL,
            top_p=top_p,
            min_p=min_p,
        )

    together = weights(slice(0, 16))
    tokens = draw(together, noise)
    for num_rows in range(1, 17):
        for start in (0, 16 - num_rows, (16 - num_rows) // 2):
            rows = slice(start, start + num_rows)
            assert torch.equal(weights(rows), together[rows])
            assert torch.equal(draw(weights(rows), noise[rows]), tokens[rows])


def test_draw_gives_each_token_exactly_its_share_of_the_unit_interval() -> None:
    logits = rows_of(3, 50, spread=1.5)
    weights = filtered_weights(logits, **filters_of(3, top_k=9))
    total = weights.sum(1, keepdim=True).double()
    ends = weights.cumsum(1).double() / total
    starts = ends - weights.double() / total
    margin = 1e-12

    for row, token in ((weights > 0).nonzero()).tolist():
        low, high = starts[row, token].item(), ends[row, token].item()
        inside = doubles(low + margin, (low + high) / 2, high - margin)
        got = draw(weights[row].expand(3, -1), inside)
        assert got.tolist() == [token] * 3


def test_a_token_without_weight_is_never_drawn() -> None:
    weights = torch.tensor([[0, 0, 5, 0, 5, 0]])
    edges = doubles(2.0**-53, 0.5 - 2.0**-53, 0.5, 1 - 2.0**-53)

    assert draw(weights.expand(4, -1), edges).tolist() == [2, 2, 4, 4]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_stays_in_the_vocabulary_and_spares_the_others(bad: float) -> None:
    logits = rows_of(3, 64)
    filters = filters_of(3, top_k=5, top_p=0.5, min_p=0.1)
    noise = torch.full((3,), 0.5, dtype=torch.float64)
    clean = draw(filtered_weights(logits, **filters), noise)
    logits[1] = bad

    drawn = draw(filtered_weights(logits, **filters), noise)

    assert 0 <= drawn[1] < 64
    assert torch.equal(drawn[[0, 2]], clean[[0, 2]])


def test_the_largest_vocabulary_does_not_overflow() -> None:
    weights = weights_of(torch.zeros(1, 1 << 18), torch.ones(1).double())

    assert weights.sum().item() == (1 << 18) << WEIGHT_BITS
    assert draw(weights, doubles(1 - 2.0**-53)).item() == (1 << 18) - 1
    assert draw(weights, doubles(2.0**-53)).item() == 0
