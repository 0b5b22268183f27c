"""The suffix tree against counting by hand, while suffixes come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backend.speculate.suffix_tree import SuffixTree

DEPTH = 5
TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)


def paths(text: Sequence[int], start: int) -> list[tuple[int, ...]]:
    """Every beginning of a suffix, as far as the tree is deep."""
    end = min(len(text), start + DEPTH)
    return [tuple(text[start:stop]) for stop in range(start + 1, end + 1)]


def check(tree: SuffixTree, held: Sequence[tuple[Sequence[int], int]]) -> Counter[tuple[int, ...]]:
    """All counts are those of the suffixes that are in it; nothing else is."""
    counts = Counter(path for text, start in held for path in paths(text, start))
    assert tree.num_suffixes == len(held)
    for path, count in counts.items():
        assert tree.count(path) == count
    for path in {(*path[:-1], token) for path in counts for token in range(4)} - set(counts):
        assert tree.count(path) == 0
    return counts


@given(texts=TEXTS, seed=st.integers(0, 1000))
def test_counts_are_those_of_the_suffixes_that_are_in_it(texts: list[list[int]], seed: int) -> None:
    """In any order in, the oldest out first, and at the end nothing is left."""
    rng = random.Random(seed)
    tree, held = SuffixTree(DEPTH), []
    coming = [(text, start) for text in texts for start in range(len(text))]
    rng.shuffle(coming)
    for text, start in coming:
        tree.add(text, start)
        held.append((text, start))
        if rng.random() < 0.3:
            tree.remove(*held.pop(0))
    check(tree, held)
    while held:
        tree.remove(*held.pop(rng.randrange(len(held))))
    check(tree, held)
    assert tree.longest(texts[0], DEPTH) is None


@given(texts=TEXTS, end=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_the_longest_end_of_a_text_is_found_and_what_most_often_follows(
    texts: list[list[int]], end: list[int]
) -> None:
    tree = SuffixTree(DEPTH)
    held = [(text, start) for text in texts for start in range(len(text))]
    for text, start in held:
        tree.add(text, start)
    counts = check(tree, held)

    match = tree.longest(end, length_max=4)

    known = [n for n in range(1, min(4, len(end)) + 1) if counts[tuple(end[-n:])]]
    assert (match.length if match is not None else 0) == max(known, default=0)
    if match is None:
        return
    path = tuple(end[len(end) - match.length :])
    for token, count, total in tree.following(match):
        behind = {other[-1]: counts[other] for other in counts if other[:-1] == path}
        assert total == counts[path]
        assert count == behind[token] == max(behind.values())
        path = (*path, token)
    assert len(path) == DEPTH or not any(other[:-1] == path for other in counts)


def test_of_equally_frequent_ones_the_newest_follows() -> None:
    tree = SuffixTree(DEPTH)
    for text in ([1, 2], [1, 3], [1, 2], [1, 3]):
        tree.add(text, 0)
    match = tree.longest([1], 3)

    assert match is not None
    assert next(tree.following(match))[0] == 3


def test_a_text_that_was_forgotten_is_not_kept() -> None:
    """What is spelt out no longer points at the text that it came from."""

    class Text(list[int]):
        num_alive = 0

        def __del__(self) -> None:
            Text.num_alive -= 1

    def some_text() -> Text:
        Text.num_alive += 1
        return Text([1, 2, 3, 4, 5, 6])

    tree = SuffixTree(DEPTH)
    first, second = some_text(), some_text()
    for text in (first, second):
        for start in range(len(text)):
            tree.add(text, start)
    for start in range(len(first)):
        tree.remove(first, start)
    del text, first

    assert Text.num_alive == 1
    assert tree.count([1, 2, 3]) == 1
