"""markov_pick in Triton: each place hears of the token before, and the first of equals wins."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.markov_pick import markov_pick
from kernels.reference.linear_int8 import quantize_int8
from kernels.reference.markov_pick import markov_pick as reference


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_each_token_names_the_next() -> None:
    """A table that says of token t: t + 3 comes next, far louder than the logits."""
    vocab = 200
    table = torch.eye(vocab) * 50.0
    weight = quantize_int8(torch.eye(vocab).roll(3, dims=0))
    previous = torch.tensor([0, 7, 199])

    tokens = markov_pick(made(3, 5, vocab), previous, table, weight)

    steps = torch.arange(1, 6) * 3
    assert torch.equal(tokens, (previous[:, None] + steps) % vocab)


def test_first_of_equals_wins_within_and_across_tiles() -> None:
    logits = torch.zeros(2, 2, 700)
    logits[0, :, [130, 140, 600]] = 5.0
    logits[1, :, [3, 699]] = 5.0
    table, weight = torch.zeros(700, 8), quantize_int8(made(700, 8))

    tokens = markov_pick(logits, torch.tensor([1, 2]), table, weight)

    assert tokens.tolist() == [[130, 130], [3, 3]]


def test_logits_of_minus_infinity_alone_give_the_first() -> None:
    logits = torch.full((1, 2, 300), -torch.inf)

    tokens = markov_pick(
        logits, torch.tensor([1]), torch.zeros(300, 8), quantize_int8(made(300, 8))
    )

    assert tokens.tolist() == [[0, 0]]


def test_drafts_are_shifted_and_written_into_a_part_of_out() -> None:
    num_drafts, vocab = 60, 200
    logits, table = made(4, 3, num_drafts), made(vocab, 16, seed=1)
    weight = quantize_int8(made(num_drafts, 16, seed=2) / 4.0)
    offsets = torch.arange(num_drafts) * 2
    previous = torch.tensor([5, 199, 0, 77])
    held = torch.full((4, 8), -1)

    tokens = markov_pick(logits, previous, table, weight, offsets=offsets, out=held[:, 2:8:2])

    assert torch.equal(tokens, reference(logits, previous, table, weight, offsets=offsets))
    assert bool((tokens % 3 == 0).all())
    assert bool((held[:, [0, 1, 3, 5, 7]] == -1).all())


def test_logits_that_are_not_numbers_give_drafts_that_there_are() -> None:
    """A draft past the end would read the table behind its own."""
    logits = torch.full((2, 2, 60), torch.nan)
    logits[1] = 0.0
    weight = quantize_int8(made(60, 8))

    tokens = markov_pick(
        logits, torch.tensor([1, 2]), torch.zeros(60, 8), weight, offsets=torch.zeros(60).long()
    )

    assert bool((tokens[0] < 60).all())
    assert tokens[1].tolist() == [0, 0]
