"""Openings of arithmetic word problems, for the target to go on with (`own_turns`)."""

from __future__ import annotations

import random
from collections.abc import Iterator

_NAMES = (
    "Anna Ben Carla David Elena Farid Grace Hiro Ines Jamal Kate Liam Maria Noah Olga Pablo Quinn "
    "Rosa Sam Tara Umar Vera Will Xena Yusuf Zoe Alice Tom Lucy Mark Emma Jack Nina Paul Sara Leo"
)
_STARTS = (
    "{} has {} ", "{} buys {} ", "{} bakes {} ", "{} works {} hours", "{} earns ${} ",
    "{} reads {} pages", "{} runs {} miles", "{} saves ${} ", "{} sells {} ", "{} is {} years old",
    "{} drives {} miles", "{} picks {} ", "{} collects {} ", "{} spends ${} ", "{} plants {} ",
)  # fmt: skip
_OTHERS = (
    "A farmer has {} ", "A store sells {} ", "A train travels {} ", "A school has {} ",
    "There are {} ", "A bakery makes {} ", "A box holds {} ", "If {} ", "A class of {} ",
    "A company produces {} ", "In a garden there are {} ", "A recipe needs {} ",
)  # fmt: skip


def openings(seed: int) -> Iterator[str]:
    """Without end."""
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    names = _NAMES.split()
    while True:
        number = rng.choice((rng.randint(2, 20), rng.randint(2, 20), rng.randint(20, 400)))
        if rng.random() < 0.7:
            yield rng.choice(_STARTS).format(rng.choice(names), number)
        else:
            yield rng.choice(_OTHERS).format(number)
