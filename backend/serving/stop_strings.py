"""Ends a text before the first stop string in it, however the text comes in pieces.

An Aho–Corasick automaton (Aho, Corasick: Efficient string matching, CACM 18(6), 1975) reads each
character once. The depth of its state is the length of the longest ending that could become a stop
string: exactly that much is held back, everything before it goes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    depth: int = 0
    next: dict[str, int] = field(default_factory=dict)
    fallback: int = 0  # the longest proper ending of this state that is a state
    match_len: int = 0  # of the longest stop string that ends here; 0: none


class StopAutomaton:
    """Made once a request from its stop strings; shared by its choices."""

    def __init__(self, stops: Iterable[str]) -> None:
        self.stops = tuple(dict.fromkeys(stops))
        assert all(self.stops), "an empty stop string would stop everything"
        self.nodes = [_Node()]
        for stop in self.stops:
            self._add(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        nodes = self.nodes
        while True:
            following = nodes[state].next.get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = nodes[state].fallback

    def _add(self, stop: str) -> None:
        state = 0
        for depth, character in enumerate(stop, 1):
            following = self.nodes[state].next.get(character)
            if following is None:
                following = len(self.nodes)
                self.nodes[state].next[character] = following
                self.nodes.append(_Node(depth))
            state = following
        self.nodes[state].match_len = len(stop)

    def _link(self) -> None:
        waiting = deque(self.nodes[0].next.values())
        while waiting:
            state = waiting.popleft()
            node = self.nodes[state]
            node.match_len = node.match_len or self.nodes[node.fallback].match_len
            for character, following in node.next.items():
                self.nodes[following].fallback = self.step(node.fallback, character)
                waiting.append(following)


class StopStrings:
    """The stop strings of one answer.

    Of several, the one that is complete first counts; of those complete at the same character, the
    longest.
    """

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What may go out now. After `matched` is set there is nothing more."""
        if self.matched is not None or not text:
            return ""
        automaton, state = self._automaton, self._state
        for end, character in enumerate(text, 1):
            state = automaton.step(state, character)
            match_len = automaton.nodes[state].match_len
            if match_len:
                seen = self._held + text[:end]
                self.matched = seen[-match_len:]
                self._held = ""
                return seen[:-match_len]
        self._state = state
        text = self._held + text
        num_out = len(text) - automaton.nodes[state].depth
        self._held = text[num_out:]
        return text[:num_out]

    def finish(self) -> str:
        """The text has ended: what was held back is text."""
        held, self._held = self._held, ""
        return held
