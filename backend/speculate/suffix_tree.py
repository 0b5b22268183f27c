"""A suffix tree of bounded depth that forgets: which tokens followed an end of a text, how often.

Every suffix of the texts in it, cut to `depth` tokens, is a path from the root; a node counts the
suffixes that pass through it, so the count of a path is how often it stands in the texts. A path
that only one suffix takes is not spelled out: its first node remembers where in its text it goes on
(the lazy form of a suffix tree; cf. Oliaro et al., SuffixDecoding, 2024). Adding or taking out a
suffix costs a step for each token that it shares with another one, at most `depth`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class _Node:
    """`children` None: one suffix alone goes on here, at `text[start + depth of the node]`."""

    __slots__ = ("best", "children", "count", "start", "text")

    def __init__(self, text: Sequence[int], start: int) -> None:
        self.count = 1
        self.children: dict[int, _Node] | None = None
        self.best: int | None = None  # of the most frequent child; None: not known
        self.text = text
        self.start = start


@dataclass(frozen=True, slots=True)
class Match:
    """A path that stands in the tree: `length` tokens."""

    node: _Node
    length: int


class SuffixTree:
    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._root = _Node((), 0)
        self._root.children = {}
        self._root.count = 0

    @property
    def num_suffixes(self) -> int:
        return self._root.count

    def add(self, text: Sequence[int], start: int) -> None:
        """The suffix from `start` on. Up to `depth` tokens of it must not change any more."""
        node = self._root
        node.count += 1
        for place in range(min(self.depth, len(text) - start)):
            token = text[start + place]
            children = node.children
            assert children is not None
            child = children.get(token)
            if child is None:
                child = children[token] = _Node(text, start)
                _note(node, token, child)
                return
            if child.children is None:
                self._spell_out(child, place + 1)
            child.count += 1
            _note(node, token, child)
            node = child

    def remove(self, text: Sequence[int], start: int) -> None:
        """A suffix that was added."""
        node = self._root
        node.count -= 1
        for place in range(min(self.depth, len(text) - start)):
            token = text[start + place]
            children = node.children
            if children is None:
                return
            child = children[token]
            child.count -= 1
            if node.best == token:
                node.best = None
            if child.count == 0:
                del children[token]
                return
            node = child

    def count(self, path: Sequence[int]) -> int:
        """How many suffixes begin with these tokens."""
        found = self.locate(path)
        return 0 if found is None else found.node.count

    def locate(self, path: Sequence[int]) -> Match | None:
        if len(path) > self.depth:
            return None
        node = self._root
        for place, token in enumerate(path):
            if node.children is None:
                if self._alone(node, place) != token:
                    return None
            else:
                child = node.children.get(token)
                if child is None:
                    return None
                node = child
        return Match(node, len(path))

    def longest(self, text: Sequence[int], length_max: int) -> Match | None:
        """The longest end of a text that stands in the tree; None: not even its last token."""
        for length in range(min(length_max, len(text)), 0, -1):
            found = self.locate(text[len(text) - length :])
            if found is not None:
                return found
        return None

    def following(self, match: Match) -> Iterator[tuple[int, int, int]]:
        """What most often follows, token after token, down to the end of the tree.

        (token, how often it follows here, how often this place stands in the texts).
        """
        node, place = match.node, match.length
        while place < self.depth:
            if node.children is None:
                token = self._alone(node, place)
                if token is None:
                    return
                yield token, 1, 1
            else:
                best = _best(node)
                if best is None:
                    return
                child = node.children[best]
                yield best, child.count, node.count
                node = child
            place += 1

    def _alone(self, node: _Node, place: int) -> int | None:
        """The token `place` tokens behind the start of the one suffix of this node."""
        at = node.start + place
        return node.text[at] if place < self.depth and at < len(node.text) else None

    def _spell_out(self, node: _Node, place: int) -> None:
        """A second suffix comes here: the first one gets a node of its own behind it."""
        token = self._alone(node, place)
        node.children = {}
        if token is not None:
            node.children[token] = _Node(node.text, node.start)
            node.best = token
        node.text = ()  # else a text that is forgotten would be kept


def _note(node: _Node, token: int, child: _Node) -> None:
    """The newest of equally frequent ones counts."""
    if node.best is None or node.best == token:
        return
    assert node.children is not None
    if child.count >= node.children[node.best].count:
        node.best = token


def _best(node: _Node) -> int | None:
    children = node.children
    if node.best is None and children:
        node.best = max(children, key=lambda token: children[token].count)
    return node.best
