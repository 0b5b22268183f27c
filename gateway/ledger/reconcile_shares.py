"""Divides what a provider charged for a day among the attempts whose cost was estimated."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from gateway.core import PriceRow
from gateway.prices.rows import cost_nanos
from gateway.wire.usage import BUCKETS, Usage


def share(
    total: int, weights: Sequence[int], caps: Sequence[int | None] | None = None
) -> list[int]:
    """
    Whole parts of `total` in proportion to `weights`, none above its cap (None: has none).

    They add up to `total`, or to all caps if that is less. What a cap cuts off goes to the others
    in proportion; what rounding leaves goes to the largest remainders, the first of equals. Where
    all weights are 0 the parts are equal. `total`, weights and caps are not negative.
    """
    num = len(weights)
    caps = caps if caps is not None else [None] * num
    parts = [0] * num
    left, weight = total, sum(weights)
    # Those that fill up first come first: then one pass settles who is capped.
    order = sorted(range(num), key=lambda idx: _fills_at(weights[idx], caps[idx]))
    for place, idx in enumerate(order):
        if weight == 0:
            return _equally(parts, left, order[place:], caps)
        cap = caps[idx]
        if cap is None or weights[idx] * left <= cap * weight:
            _in_proportion(parts, left, sorted(order[place:]), weights)
            return parts
        parts[idx] = cap
        left -= cap
        weight -= weights[idx]
    return parts


def _fills_at(weight: int, cap: int | None) -> tuple[bool, Fraction]:
    """How much a unit of weight must get until this part is full; never without a weight."""
    if weight == 0 or cap is None:
        return True, Fraction(0 if weight else 1)
    return False, Fraction(cap, weight)


def _in_proportion(parts: list[int], left: int, who: list[int], weights: Sequence[int]) -> None:
    weight = sum(weights[idx] for idx in who)
    remainders: list[tuple[int, int]] = []
    given = 0
    for idx in who:
        parts[idx], rest = divmod(left * weights[idx], weight)
        given += parts[idx]
        remainders.append((-rest, idx))
    for _, idx in sorted(remainders)[: left - given]:
        parts[idx] += 1


def _equally(parts: list[int], left: int, who: list[int], caps: Sequence[int | None]) -> list[int]:
    """The smallest caps first, so that each gets its equal part of what is left, or its cap."""
    ordered = sorted(who, key=lambda idx: (caps[idx] is None, caps[idx] or 0, -idx))
    for place, idx in enumerate(ordered):
        equal = left // (len(ordered) - place)
        cap = caps[idx]
        parts[idx] = equal if cap is None else min(cap, equal)
        left -= parts[idx]
    return parts


def spread_tokens(
    target: dict[str, int], usages: Sequence[Usage], measures: dict[str, tuple[str, ...]]
) -> list[Usage]:
    """Usages that add up to `target` by measure, each in proportion to what it was."""
    tokens = [msgspec.structs.asdict(usage) for usage in usages]
    for measure, total in target.items():
        held = measures[measure]
        now = [sum(each[bucket] for bucket in held) for each in tokens]
        for each, number in zip(tokens, share(total, now), strict=True):
            parts = share(number, [each[bucket] for bucket in held])
            if not any(each[bucket] for bucket in held):
                parts = [number, *[0] * (len(held) - 1)]
            each.update(zip(held, parts, strict=True))
    return [Usage(**each) for each in tokens]


def within_hold(usage: Usage, price: PriceRow, hold_nanos: int) -> Usage:
    """`usage`, or so much of it that it costs no more than was held for the attempt."""
    cost, fee = cost_nanos(price, usage), price.request_nanos
    if cost <= hold_nanos or hold_nanos == 0:
        return usage
    room, wanted = max(0, hold_nanos - fee), cost - fee
    if wanted <= 0:
        return usage
    return Usage(**{
        bucket: getattr(usage, bucket) * room // wanted for bucket in BUCKETS
    })  # fmt: skip
