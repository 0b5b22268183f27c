"""Suffix decoding: the text first, then the tenant's own earlier answers, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest

from backend.config import EngineConfig
from backend.models.interface import CausalModel
from backend.speculate.proposers.suffix import (
    DEPTH,
    MATCH_LEN_MAX,
    POOLS_MAX,
    AnswerPool,
    SuffixProposer,
)
from tests.support.drafting_world import propose_input

SLOT = 1


def proposer_of(tokens_max: int = 100_000) -> SuffixProposer:
    return SuffixProposer(cast(CausalModel, None), EngineConfig(suffix_tokens_max=tokens_max))


def write(
    proposer: SuffixProposer,
    prompt: Sequence[int],
    answer: Sequence[int],
    tenant: bytes = b"",
    limit: int = 8,
) -> list[list[int]]:
    """A sequence that is answered token by token, in slot 1: what was drafted behind each."""
    text, drafted = list(prompt), []
    for token in answer:
        text.append(token)
        made = proposer.propose(propose_input([text], [limit], tenants=[tenant]))
        count = 0 if made is None else int(made.num_valid[0])
        drafted.append([] if made is None else made.token_ids[0, :count].tolist())
    proposer.release(SLOT)
    return drafted


ANSWER = list(range(100, 140))


def test_what_was_answered_before_is_drafted_at_a_second_time() -> None:
    proposer = proposer_of()
    first = write(proposer, [1, 2], ANSWER)
    again = write(proposer, [3, 4], ANSWER)

    assert first == [[]] * len(ANSWER)
    # Behind one known token two more than it, then more and more with the length of the match.
    assert again[0] == ANSWER[1:4]
    assert again[3] == ANSWER[4:7]
    # What was seen once is believed half, so no draft is deeper than the least chance allows.
    assert max(len(each) for each in again) == 3


def test_what_was_answered_often_is_drafted_as_deep_as_the_match_is_long() -> None:
    proposer = proposer_of()
    for _ in range(30):
        write(proposer, [1, 2], ANSWER)
    again = write(proposer, [3, 4], ANSWER)

    assert again[0] == ANSWER[1:4]
    assert again[3] == ANSWER[4:10]
    assert again[12] == ANSWER[13:21]
    assert again[-1] == []


def test_the_most_frequent_continuation_is_drafted_while_it_is_probable() -> None:
    pool = AnswerPool()
    for last in [7, 7, 7, 8, 9]:
        pool.extend(pool.begin(), [1, 2, last, 5], is_whole=True)

    # 3 of 5, then 3 of 3, each with one more than were seen: 3/6 · 3/4.
    assert pool.find([1, 2], 8) == [7, 5]
    for number in range(20):
        pool.extend(pool.begin(), [3, 10 + number], is_whole=True)
    assert pool.find([3], 8) == []


def test_the_text_itself_goes_first() -> None:
    proposer = proposer_of()
    for _ in range(5):
        write(proposer, [1], [50, 51, 52, 53])

    drafted = write(proposer, [50, 60, 61, 62], [50])

    assert drafted == [[60, 61, 62]]


def test_prompts_are_not_learnt() -> None:
    proposer = proposer_of()
    write(proposer, ANSWER, [5, 6, 7])

    assert write(proposer, [1], ANSWER[:3]) == [[], [], []]
    assert write(proposer, [1], [5])[0] == [6, 7]


def test_tenants_learn_nothing_of_each_other() -> None:
    proposer = proposer_of()
    for _ in range(5):
        write(proposer, [1, 2], ANSWER, b"one")

    assert write(proposer, [3, 4], ANSWER[:20], b"other") == [[]] * 20
    assert write(proposer, [3, 4], ANSWER[:1], b"one") != [[]]


def test_answers_that_are_being_written_help_each_other() -> None:
    """Several choices of one request, or one after the other: a short while behind."""
    proposer = proposer_of()
    texts = [[1, *ANSWER], [2]]
    proposer.propose(propose_input([texts[0][:2], texts[1] + ANSWER[:1]], [8, 8]))
    made = proposer.propose(propose_input([texts[0], texts[1] + ANSWER[:1]], [8, 8]))

    assert made is not None
    assert made.num_valid.tolist() == [0, 3]
    assert made.token_ids[1, :3].tolist() == ANSWER[1:4]


def test_a_preempted_sequence_is_learnt_once() -> None:
    proposer = proposer_of()
    text = [1]
    for token in ANSWER[:30]:
        text.append(token)
        proposer.propose(propose_input([text], [8]))
    proposer.release(SLOT)
    before = proposer.num_tokens
    for token in ANSWER[30:]:
        text.append(token)
        proposer.propose(propose_input([text], [8]))
    proposer.release(SLOT)

    assert before == 30
    # The token of the step in which it came back may be among what was learnt already.
    assert len(ANSWER) - 1 <= proposer.num_tokens <= len(ANSWER)


def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    proposer = proposer_of(tokens_max=100)
    for number in range(6):
        write(proposer, [1], [1000 * number + place for place in range(40)])
        assert proposer.num_tokens <= 100

    assert proposer.num_tokens == 100
    known = [write(proposer, [2], [1000 * number + 30])[0] != [] for number in range(6)]
    assert known == [False, False, False, True, True, True]


def test_who_asked_longest_ago_loses_first() -> None:
    proposer = proposer_of(tokens_max=100)
    answers = {name: [1000 * idx + place for place in range(40)] for idx, name in enumerate("abc")}
    for name in ("a", "b", "a", "c"):
        write(proposer, [1], answers[name], name.encode())

    known = {name: write(proposer, [2], answers[name][35:36], name.encode()) for name in "cab"}
    assert known["c"] != [[]]
    assert known["a"] != [[]]
    assert known["b"] == [[]]


def test_an_answer_that_is_being_written_is_forgotten_too() -> None:
    """One endless answer, beside it short ones: the bound holds, and nothing goes wrong."""
    proposer = proposer_of(tokens_max=60)
    rng = random.Random(1)
    texts = [[1], [2]]
    for step in range(300):
        for text in texts:
            text.append(rng.randrange(5))
        if step % 7 == 0:
            proposer.release(2)
            texts[1] = [2, 3]
        proposer.propose(propose_input(texts, [8, 8]))
        assert proposer.num_tokens <= 60
    proposer.release(1)
    proposer.release(2)
    assert proposer.num_tokens == 60


def test_so_many_tenants_are_kept_and_no_more() -> None:
    proposer = proposer_of()
    for number in range(POOLS_MAX + 20):
        write(proposer, [1], ANSWER[:3], str(number).encode())

    assert proposer.num_tokens == 3 * POOLS_MAX
    assert write(proposer, [1], ANSWER[:1], b"0") == [[]]
    assert write(proposer, [1], ANSWER[:1], str(POOLS_MAX + 19).encode()) != [[]]


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_is_drafted_than_may_count(limit: int) -> None:
    proposer = proposer_of()
    for _ in range(9):
        write(proposer, [1], ANSWER)

    assert max(len(each) for each in write(proposer, [2], ANSWER, limit=limit)) == limit


def test_the_tree_is_deep_enough_for_a_match_and_its_drafts() -> None:
    assert DEPTH >= 2 * MATCH_LEN_MAX + 2
