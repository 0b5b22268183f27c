"""sample against Python integers, and against the distribution that it promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from kernels.reference.sample import WEIGHT_BITS, first_largest, sample

V = 23


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kept(logits: list[float], t: float, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The weights by definition: filter after filter, each over what the one before left."""
    best = max(logits)
    weights = [round(math.exp((each - best) / t) * 2**WEIGHT_BITS) for each in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if top_k:
        last = logits[order[min(top_k, len(order)) - 1]]
        weights = [w if logits[i] >= last else 0 for i, w in enumerate(weights)]
    if top_p < 1.0:
        wanted, mass = top_p * sum(weights), 0
        for i in order:
            mass += weights[i]
            if mass >= wanted:
                weights = [w if logits[j] >= logits[i] else 0 for j, w in enumerate(weights)]
                break
    return [w if w >= min_p * 2**WEIGHT_BITS else 0 for w in weights]


def drawn(weights: list[int], uniform: float) -> int:
    passed = 0
    for token, weight in enumerate(weights):
        passed += weight
        if passed > uniform * sum(weights):
            return token
    raise AssertionError("a uniform below 1 always passes")


@given(
    seed=st.integers(0, 9999),
    t=st.sampled_from([0.2, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 7, V, V + 9]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_token_is_the_one_of_the_definition(
    seed: int, t: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = (made(1, V, seed=seed) * 3 * 4).round() / 4  # steps of a quarter: ties happen
    uniforms = torch.rand(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = kept(logits[0].tolist(), t, top_k, top_p, min_p)

    got = sample(
        logits.expand(20, V),
        uniforms,
        temperature=torch.full((20,), t, dtype=torch.float64),
        top_k=torch.full((20,), top_k),
        top_p=torch.full((20,), top_p, dtype=torch.float64),
        min_p=torch.full((20,), min_p, dtype=torch.float64),
    )

    assert got.tolist() == [drawn(weights, u) for u in uniforms.tolist()]


def test_draws_have_the_distribution_of_the_logits() -> None:
    num_draws = 4000
    logits, t = made(1, 12, seed=5) * 2, 0.8
    uniforms = torch.rand(num_draws, generator=torch.Generator().manual_seed(1))

    got = sample(logits.expand(num_draws, 12), uniforms, temperature=torch.full((num_draws,), t))

    expected = torch.softmax(logits[0].double() / t, dim=0) * num_draws
    counts = torch.bincount(got, minlength=12)
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [None, torch.zeros(3)])
def test_greedy_row_takes_its_first_largest_logit(temperature: Tensor | None) -> None:
    logits = made(3, V)
    logits[:, [4, 9]] = 50.0

    got = sample(logits, torch.full((3,), 0.99), temperature=temperature)

    assert got.tolist() == [4, 4, 4]


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits, uniforms = made(6, V), torch.linspace(0.05, 0.95, 6)
    hot = torch.full((6,), 1.3)
    mixed = torch.where(torch.arange(6) % 2 == 0, 0.0, hot)

    got = sample(logits, uniforms, temperature=mixed)

    assert torch.equal(got[0::2], sample(logits, uniforms)[0::2])
    assert torch.equal(got[1::2], sample(logits, uniforms, temperature=hot)[1::2])


def test_neutral_filters_change_nothing_and_a_row_is_the_same_alone() -> None:
    logits, uniforms = made(40, 1000) * 3, torch.rand(40)
    settings = {
        "temperature": torch.full((40,), 0.9),
        "top_k": torch.zeros(40, dtype=torch.int64),
        "top_p": torch.ones(40),
        "min_p": torch.zeros(40),
    }

    got = sample(logits, uniforms, **settings)

    assert torch.equal(got, sample(logits, uniforms, temperature=settings["temperature"]))
    for row in range(40):
        part = slice(row, row + 1)
        alone = {name: value[part] for name, value in settings.items()}
        assert torch.equal(sample(logits[part], uniforms[part], **alone), got[part])


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 2), (1.0 - 2.0**-53, 5)])
def test_extreme_uniforms_stay_among_the_possible_tokens(uniform: float, token: int) -> None:
    logits = torch.full((1, 9), -torch.inf)
    logits[0, [2, 5]] = torch.tensor([0.0, -1.0])

    got = sample(
        logits, torch.tensor([uniform], dtype=torch.float64), temperature=torch.tensor([1.0])
    )

    assert got.tolist() == [token]


def test_tokens_are_written_where_they_are_wanted() -> None:
    logits, out = made(4, V), torch.full((4,), -9)

    got = sample(logits, torch.rand(4), temperature=torch.ones(4), out=out)

    assert got is out
    assert ((got >= 0) & (got < V)).all()


def test_row_of_nan_gives_some_token_and_harms_no_other() -> None:
    logits, uniforms = made(3, V), torch.rand(3)
    want = sample(logits, uniforms, temperature=torch.ones(3))
    logits[1] = torch.nan

    got = sample(logits, uniforms, temperature=torch.ones(3))

    assert torch.equal(got[0::2], want[0::2])
    assert 0 <= got[1] < V


@pytest.mark.parametrize("vocab_size", [1, 37, 64, 256, 257, 1024, 128_256])
def test_the_first_largest_is_argmax_in_blocks_or_without(vocab_size: int) -> None:
    logits = torch.randint(0, 50, (3, 2 * vocab_size), generator=torch.Generator().manual_seed(1))
    part = logits.float()[:, :vocab_size]  # many ties, and rows that do not follow each other
    part[1] = -torch.inf
    part[2, vocab_size // 2] = torch.nan

    assert first_largest(part).tolist() == part.argmax(dim=1).tolist()
