"""Texts that run in circles. A small model often ends so, and a head learns nothing from it."""

from __future__ import annotations

from collections.abc import Sequence

GRAM = 8
# A run of so many repeated grams is a circle and not a phrase that comes again.
RUN_MIN = 24
KEPT = 8  # tokens of the second time round that are kept: that it begins again is worth learning


def repeated_share(token_ids: Sequence[int], gram: int = GRAM) -> float:
    """Of the grams of a text, those that stood in it before; 0 for a text of less than two."""
    grams = _grams(token_ids, gram)
    return 1.0 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0


def loop_start(token_ids: Sequence[int]) -> int:
    """Where the tail begins that only repeats what stood before; the length if there is none."""
    seen: set[tuple[int, ...]] = set()
    run = 0
    for index, gram in enumerate(_grams(token_ids, GRAM)):
        run = run + 1 if gram in seen else 0
        if run >= RUN_MIN:
            return index - run + 1
        seen.add(gram)
    return len(token_ids)


def without_loop(token_ids: Sequence[int]) -> tuple[int, ...]:
    """The text up to a little behind the start of its circle."""
    return tuple(token_ids[: loop_start(token_ids) + KEPT])


def _grams(token_ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(token_ids[at : at + size]) for at in range(len(token_ids) - size + 1)]
