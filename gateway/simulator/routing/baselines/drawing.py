"""Random orders out of the one source of randomness that a router is given."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import Rng


def shuffled(ids: Sequence[str], rng: Rng) -> list[str]:
    """Every order equally likely."""
    left = list(ids)
    for end in range(len(left) - 1, 0, -1):
        other = int(rng.random() * (end + 1))
        left[end], left[other] = left[other], left[end]
    return left


def drawn_order(ids: Sequence[str], weights: Sequence[float], rng: Rng) -> list[str]:
    """One after the other, each by its weight among those left; weights of zero come last."""
    left = list(zip(ids, weights, strict=True))
    drawn: list[str] = []
    while left:
        total = sum(weight for _, weight in left)
        if total <= 0.0:
            return drawn + shuffled([each for each, _ in left], rng)
        at = rng.random() * total
        idx = 0
        for idx, (_, weight) in enumerate(left):  # noqa: B007 - the last one takes the rounding
            at -= weight
            if at < 0.0:
                break
        drawn.append(left.pop(idx)[0])
    return drawn
