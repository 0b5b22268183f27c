"""Batches hold every text once within their limit; counts and blocks are those of the text."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.train.blocks import ANCHORS_MAX, choose
from backend.train.corpus import Batch, States, Text, batches, collate, split
from backend.train.counting import PlaceCounts, count, spread

LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 400), st.integers(0, 5))
def test_every_text_is_in_one_batch_that_is_not_too_large(
    lengths: list[int], rows_max: int, seed: int
) -> None:
    made = batches(lengths, rows_max, seed)

    assert sorted(index for batch in made for index in batch) == list(range(len(lengths)))
    for batch in made:
        num_rows = len(batch) * max(lengths[index] for index in batch)
        assert num_rows <= rows_max or len(batch) == 1


def test_batches_are_full_and_little_is_padded() -> None:
    rng = random.Random(3)
    lengths = [rng.randrange(20, 200) for _ in range(400)]

    made = batches(lengths, 2048, 0)

    padded = [len(batch) * max(lengths[index] for index in batch) for batch in made]
    assert len(made) <= 1.1 * sum(padded) / 2048 + 1
    assert sum(padded) < 1.08 * sum(lengths)


def test_batches_differ_by_seed_and_by_nothing_else() -> None:
    lengths = [random.Random(seed).randrange(5, 60) for seed in range(80)]

    assert batches(lengths, 256, 1) == batches(lengths, 256, 1)
    assert batches(lengths, 256, 1) != batches(lengths, 256, 2)
    assert batches([], 256, 1) == []


def texts(num: int) -> list[Text]:
    """Every third one was drawn at random."""
    return [
        Text("k", (index, 5), tuple(range(9, 12 + index % 7)), is_greedy=index % 3 > 0)
        for index in range(num)
    ]


def test_only_greedy_texts_are_held_out() -> None:
    every = texts(30)

    train, held_out = split(every, 8, 0)

    assert len(held_out) == 8
    assert all(text.is_greedy for text in held_out)
    assert sorted([*train, *held_out], key=lambda text: text.prompt) == every
    assert split(every, 8, 0) == (train, held_out)
    assert split(every, 8, 1)[1] != held_out
    # Asked for more than there are greedy ones, all of those.
    assert len(split(every, 100, 0)[1]) == 20
    assert split([], 3, 0) == ([], [])


def states_of(text: Text, rng: torch.Generator) -> States:
    return States(
        torch.randn(len(text), 6, generator=rng), torch.randn(len(text), 3, generator=rng)
    )


def batch_of(given: list[Text]) -> tuple[Batch, list[States]]:
    rng = torch.Generator().manual_seed(0)
    states = [states_of(text, rng) for text in given]
    return collate(given, states), states


def test_a_batch_is_its_texts_and_nothing_behind_them() -> None:
    given = [Text("k", (7, 8, 9), (1, 2)), Text("k", (4,), (5, 6, 3, 2, 1, 9)), Text("k", (2,), ())]

    batch, states = batch_of(given)

    assert batch.num_rows == 3 * 7
    for row, (text, made) in enumerate(zip(given, states, strict=True)):
        size = len(text)
        assert batch.token_ids[row, :size].tolist() == list(text.token_ids)
        assert torch.equal(batch.features[row, :size], made.features)
        assert torch.equal(batch.last[row, :size], made.last)
        for padding in (batch.token_ids, batch.is_answer, batch.features, batch.last):
            assert not padding[row, size:].any()
        is_answer = [False] * len(text.prompt) + [True] * len(text.answer)
        assert batch.is_answer[row, :size].tolist() == is_answer


@pytest.mark.parametrize("num_places", [1, 4, 9])
def test_with_all_anchors_every_written_token_is_predicted_from_every_one_before(
    num_places: int,
) -> None:
    """Place j of a block at a predicts the token at a + 1 + j; anchors are written tokens."""
    given = [
        Text("k", (7, 8, 9), (1, 2)),
        Text("k", (4,), (5, 6, 3, 2, 1, 9)),
        Text("k", (2,), (6,)),
    ]
    batch, _ = batch_of(given)

    blocks = choose(batch, num_places, 1.0, torch.Generator().manual_seed(0))

    for row, text in enumerate(given):
        found = {}
        for anchor, is_there, tokens in zip(
            blocks.anchors[row].tolist(),
            blocks.is_there[row].tolist(),
            blocks.token_ids[row].tolist(),
            strict=True,
        ):
            num_there = sum(is_there)
            if num_there:
                assert is_there == [True] * num_there + [False] * (num_places - num_there)
                assert anchor not in found
                found[anchor] = tuple(tokens[: num_there + 1])
        tokens = text.token_ids
        assert found == {
            at: tokens[at : at + num_places + 1] for at in range(len(text.prompt), len(tokens) - 1)
        }


def test_the_states_of_a_place_are_those_before_its_token() -> None:
    given = [Text("k", (7, 8, 9), (1, 2)), Text("k", (4,), (5, 6, 3, 2, 1, 9))]
    batch, states = batch_of(given)
    blocks = choose(batch, 3, 1.0, torch.Generator().manual_seed(0))

    found = blocks.target_states(batch.last)

    expected = [
        states[row].last[int(blocks.anchors[row, block]) + place]
        for row, block, place in blocks.is_there.nonzero().tolist()
    ]
    assert torch.equal(found, torch.stack(expected))


def test_a_share_of_the_anchors_is_drawn_each_once() -> None:
    given = [Text("k", (7,), tuple(range(1, 42))), Text("k", (7,), (1, 2)), Text("k", (7,), (1,))]
    batch, _ = batch_of(given)
    rng = torch.Generator().manual_seed(0)

    drawn = [choose(batch, 2, 0.25, rng) for _ in range(40)]

    seen: set[int] = set()
    for blocks in drawn:
        real = blocks.is_there[0, :, 0]
        anchors = blocks.anchors[0][real].tolist()
        assert len(anchors) == len(set(anchors)) == 10  # of the 40 that are gone on from
        seen.update(anchors)
        assert blocks.anchors[1][blocks.is_there[1, :, 0]].tolist() == [1]
        assert not blocks.is_there[2].any()
    assert seen == set(range(1, 41))


def test_a_long_text_gets_no_more_blocks_than_fit() -> None:
    batch, _ = batch_of([Text("k", (7,), tuple([3] * (ANCHORS_MAX + 200)))])

    blocks = choose(batch, 2, 1.0, torch.Generator().manual_seed(0))

    assert blocks.anchors.shape == (1, ANCHORS_MAX)
    assert bool(blocks.is_there[..., 0].all())


def test_a_place_counts_only_behind_right_ones() -> None:
    is_there = [torch.tensor([1, 1, 1, 1, 0]).bool(), torch.tensor([1, 1, 1, 0, 0]).bool()]
    is_hit = [torch.tensor([1, 1, 0, 1, 1]).bool(), torch.tensor([1, 0, 1, 1, 1]).bool()]

    counts = count(zip(is_there, is_hit, strict=True))

    assert (counts.at_risk, counts.hits) == ([4, 2], [3, 1])
    assert counts.rates == (0.75, 0.5)
    assert counts.mean_acceptance_length == 1 + 0.75 + 0.75 * 0.5


def test_counts_of_different_lengths_add_up() -> None:
    counts = PlaceCounts([4, 2], [2, 1])
    counts.add(PlaceCounts([6, 4, 3], [4, 3, 0]))
    counts.add(PlaceCounts())

    assert (counts.at_risk, counts.hits) == ([10, 6, 3], [6, 4, 0])
    assert PlaceCounts().mean_acceptance_length == 1.0
    assert PlaceCounts([0, 0], [0, 0]).rates == (0.0, 0.0)


def test_what_was_taken_by_a_mask_goes_back_into_its_places() -> None:
    where = torch.tensor([[True, False, True], [False, True, False]])

    whole = spread(torch.tensor([True, False, True]), where)

    assert whole.tolist() == [[True, False, False], [False, True, False]]
