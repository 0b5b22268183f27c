"""Prompt lookup: the longest known end of a text, its most recent place, and what followed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.config import EngineConfig
from backend.models.interface import CausalModel
from backend.speculate.proposers.ngram import TRUSTED_MORE, NgramIndex, NgramProposer
from tests.support.drafting_world import propose_input

TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=60)
LENS = st.sampled_from([(3, 2, 1), (1,), (2, 4), (5,)])


def searched(text: Sequence[int], lens: Sequence[int], num_drafts: int) -> list[int]:
    """The definition, word by word, without an index."""
    for length in sorted(lens, reverse=True):
        end = list(text[len(text) - length :])
        for start in range(len(text) - length - 1, -1, -1):
            if length < len(text) and list(text[start : start + length]) == end:
                grown = list(text)
                for place in range(min(num_drafts, length + TRUSTED_MORE)):
                    grown.append(grown[start + length + place])
                return grown[len(text) :]
    return []


@given(text=TEXTS, lens=LENS, num_drafts=st.integers(1, 9), cuts=st.sets(st.integers(1, 60)))
def test_drafts_are_what_followed_the_longest_known_end_last(
    text: list[int], lens: tuple[int, ...], num_drafts: int, cuts: set[int]
) -> None:
    """However the text grows: a token at a time or many."""
    index = NgramIndex(lens)
    for end in sorted({cut for cut in cuts if cut <= len(text)} | {len(text)}):
        index.extend(text[:end])
        assert index.find(text[:end], num_drafts) == searched(text[:end], lens, num_drafts)


def test_a_longer_end_counts_before_a_later_place() -> None:
    index, text = NgramIndex((3, 2, 1)), [1, 2, 3, 40, 9, 3, 50, 1, 2, 3]
    index.extend(text)

    assert index.find(text, 2) == [40, 9]


def test_a_text_that_repeats_itself_is_drafted_in_full() -> None:
    index, text = NgramIndex((3, 2, 1)), [9, 7, 8, 7, 8, 7]
    index.extend(text)

    assert index.find(text, 9) == [8, 7, 8, 7, 8]


def test_a_short_match_is_trusted_for_few_tokens() -> None:
    index, text = NgramIndex((3, 2, 1)), [1, 2, 3, 4, 5, 6, 7, 1]
    index.extend(text)
    assert index.find(text, 9) == [2, 3, 4]

    index.extend([*text, 2, 3])
    assert index.find([*text, 2, 3], 9) == [4, 5, 6, 7, 1]
    assert index.find([*text, 2, 3], 2) == [4, 5]


def test_ids_of_a_large_vocabulary_do_not_collide() -> None:
    large = 2**21 - 1
    index, text = NgramIndex((2,)), [large, 0, 5, 0, large, 6, large, 0]
    index.extend(text)

    assert index.find(text, 1) == [5]


@pytest.fixture
def proposer() -> NgramProposer:
    return NgramProposer(cast(CausalModel, None), EngineConfig())  # it asks no model


def test_each_sequence_has_as_many_drafts_as_were_found_and_may_count(
    proposer: NgramProposer,
) -> None:
    looping, fresh, short = [1, 2, 1, 2, 1], [1, 2, 3], [5, 5]
    made = proposer.propose(propose_input([looping, fresh, looping, short], [4, 4, 2, 0], pad=2))

    assert made is not None
    assert made.num_valid.tolist() == [4, 0, 2, 0, 0, 0]
    assert made.token_ids.shape == (6, 4)
    assert made.token_ids[0].tolist() == [2, 1, 2, 1]
    assert made.token_ids[2, :2].tolist() == [2, 1]
    assert made.probs is None


def test_rows_are_as_wide_as_the_most_that_anybody_has(proposer: NgramProposer) -> None:
    made = proposer.propose(propose_input([[1, 2, 1], [3]], [1, 8]))

    assert made is not None
    assert made.token_ids.shape == (2, 1)


def test_where_nothing_is_found_the_step_is_a_plain_one(proposer: NgramProposer) -> None:
    assert proposer.propose(propose_input([[1, 2, 3], [4]], [4, 4])) is None


def test_a_slot_begins_anew_when_its_sequence_has_left(proposer: NgramProposer) -> None:
    assert proposer.propose(propose_input([[1, 2, 3, 1, 2]], [2])) is not None
    proposer.release(1)

    assert proposer.propose(propose_input([[9, 8, 1, 2]], [2])) is None
    proposer.release(1)
    proposer.release(1)


@pytest.mark.slow
def test_a_token_costs_the_same_in_a_short_and_in_a_long_text() -> None:
    """Medians of a thousand tokens each, ten texts apart in length by a factor of 64."""
    generator = torch.Generator().manual_seed(5)
    text: list[int] = torch.randint(0, 3000, (65_000,), generator=generator).tolist()

    def cost_s(length: int) -> float:
        index = NgramIndex((3, 2, 1))
        index.extend(text[:length])
        samples = []
        grown = list(text[:length])
        for token in text[length : length + 1000]:
            grown.append(token)
            began_s = time.perf_counter()
            index.extend(grown)
            index.find(grown, 8)
            samples.append(time.perf_counter() - began_s)
        return sorted(samples)[500]

    assert cost_s(64_000) < 4 * cost_s(1000)
