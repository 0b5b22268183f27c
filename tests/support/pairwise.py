"""Few cases in which any two values of any two factors meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Greedy and always the same: each case takes the values that bring the most new pairs."""
    names = list(factors)
    missing = {
        (one, first, other, second)
        for one, other in itertools.combinations(names, 2)
        for first in factors[one]
        for second in factors[other]
    }
    cases = []
    while missing:
        one, first, other, second = min(missing, key=repr)
        case = {one: first, other: second}
        for name in names:
            if name not in case:
                case[name] = max(
                    factors[name],
                    key=lambda value: len(_met({**case, name: value}, names) & missing),
                )
        missing -= _met(case, names)
        cases.append({name: case[name] for name in names})
    return cases


def _met(case: Mapping[str, Any], names: Sequence[str]) -> set[tuple[str, Any, str, Any]]:
    return {
        (one, case[one], other, case[other])
        for one, other in itertools.combinations(names, 2)
        if one in case and other in case
    }
