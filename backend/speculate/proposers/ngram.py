"""Prompt lookup: propose what followed the last few tokens when they stood in the text before.

Saxena, Prompt Lookup Decoding (2023). The longest of the chosen lengths that is found counts, and
of its places the most recent: on real answers more of that stands than of the first place. What
is drafted is two tokens longer than the match that it rests on: behind one token that stood there
before, verifying many costs more than it brings. A match close to the end of the text goes on in
its own drafts, so a text that repeats itself is drafted in full length whatever its period is.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.config import EngineConfig
from backend.models.interface import CausalModel, FeatureTap
from backend.speculate.protocol import Proposal, ProposeInput
from backend.speculate.text import proposal_of

TRUSTED_MORE = 2  # tokens drafted beyond the length of a match
_TOKEN_BITS = 21  # of an id in the key of an n-gram


class NgramIndex:
    """Where each n-gram of one growing text was last followed by a token.

    A token costs one table entry a length, however long the text is.
    """

    def __init__(self, lens: Sequence[int]) -> None:
        """`lens`: the n's, in any order."""
        self._len_max = max(lens)
        # By length, longest first; an n-gram's key → the place behind it.
        self._places: dict[int, dict[int, int]] = {
            each: {} for each in sorted(set(lens), reverse=True)
        }
        self._num_indexed = 0  # places that have been noted as followers

    def extend(self, text: Sequence[int]) -> None:
        """Notes what has been appended to the text since the last call."""
        for place in range(max(1, self._num_indexed), len(text)):
            key = 0
            for length in range(1, min(self._len_max, place) + 1):
                key |= text[place - length] << _TOKEN_BITS * (length - 1)
                table = self._places.get(length)
                if table is not None:
                    table[key] = place
        self._num_indexed = len(text)

    def find(self, text: Sequence[int], num_drafts: int) -> list[int]:
        """At most `num_drafts` of what followed the end of `text`, all of which has been noted;
        empty if it is new."""
        for length, table in self._places.items():
            if length >= len(text):
                continue
            key = 0
            for place, token_id in enumerate(reversed(text[-length:])):
                key |= token_id << _TOKEN_BITS * place
            found = table.get(key)
            if found is not None:
                wanted = min(num_drafts, length + TRUSTED_MORE)
                drafts = list(text[found : found + wanted])
                period = len(text) - found
                while len(drafts) < wanted:
                    drafts.append(drafts[len(drafts) - period])
                return drafts
        return []


class NgramLookup:
    """One index for each sequence that decodes; it goes when the sequence leaves its slot."""

    def __init__(self, lens: Sequence[int]) -> None:
        self._lens = lens
        self._indexes: dict[int, NgramIndex] = {}

    def find(self, given: ProposeInput) -> list[list[int]]:
        """For each real sequence its drafts, as many as may count; empty where there are none."""
        drafts = []
        for slot, text, limit in zip(given.slot_ids, given.histories, given.limits, strict=True):
            index = self._indexes.get(slot)
            if index is None:
                index = self._indexes[slot] = NgramIndex(self._lens)
            index.extend(text)
            drafts.append(index.find(text, limit) if limit else [])
        return drafts

    def release(self, slot: int) -> None:
        self._indexes.pop(slot, None)


class NgramProposer:
    name = "ngram"
    num_drafts_max = 64
    taps: tuple[FeatureTap, ...] = ()

    def __init__(self, model: CausalModel, config: EngineConfig) -> None:
        self._lookup = NgramLookup(config.ngram_lens)

    def propose(self, given: ProposeInput) -> Proposal | None:
        return proposal_of(self._lookup.find(given), given)

    def release(self, slot: int) -> None:
        self._lookup.release(slot)
