"""Adds the attempts and their corrections up again, against the days of the roll-ups."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.ledger.windows import SECONDS_PER_DAY, day_of
from gateway.store.batch_tables import corrections
from gateway.store.ledger_tables import attempts
from gateway.store.retention import free_attempts_gone_before
from gateway.store.rollup_tables import MONEY, SPEND_NAMES, spend_rollups

PROBLEMS_MAX = 20
_Sums = dict[tuple[Any, ...], list[int]]


async def rollup_problems(connection: AsyncConnection) -> list[str]:
    """Days that do not say what their attempts say, as sentences."""
    booked = await _booked(connection)
    c = spend_rollups.c
    names = (c.bucket_start, *(c[name] for name in SPEND_NAMES))
    sums = (sa.func.sum(c[name]) for name in ("num_attempts", *MONEY))
    query = sa.select(*names, *sums).where(c.grain == "day").group_by(*names)
    summed: _Sums = {}
    for row in await connection.execute(query):
        summed[tuple(row[: len(names)])] = [int(each) for each in row[len(names) :]]
    nothing = [0] * (1 + len(MONEY))
    problems: list[str] = []
    free_gone_before = await free_attempts_gone_before(connection)
    for key in sorted(booked.keys() | summed.keys()):
        ours, theirs = summed.get(key, nothing), booked.get(key, nothing)
        if key[0] < free_gone_before and ours[0] > theirs[0]:
            theirs = [ours[0], *theirs[1:]]  # their money must be there all the same
        if ours != theirs and len(problems) < PROBLEMS_MAX:
            problems.append(_problem(key, ours, theirs))
    return problems


async def _booked(connection: AsyncConnection) -> _Sums:
    """By day and names: how many attempts ended, and the money with its corrections."""
    a, k = attempts.c, corrections.c
    is_sqlite = connection.dialect.name == "sqlite"
    days = a.sent_at / SECONDS_PER_DAY
    day = sa.cast(days if is_sqlite else sa.func.floor(days), sa.BigInteger)
    names = (day, *(a[name] for name in SPEND_NAMES))
    ended = (
        sa.select(*names, sa.func.count(), *(sa.func.sum(a[name]) for name in MONEY))
        .where(a.state != "sent")
        .group_by(*names)
    )
    moved = (
        sa.select(*names, sa.literal(0), *(sa.func.sum(k[name]) for name in MONEY))
        .join(attempts, a.attempt_id == k.attempt_id)
        .group_by(*names)
    )
    found: _Sums = {}
    for query in (ended, moved):
        for row in await connection.execute(query):
            key = (int(row[0]) * SECONDS_PER_DAY, *row[1 : len(names)])
            before = found.get(key, [0] * (1 + len(MONEY)))
            found[key] = [
                then + int(more) for then, more in zip(before, row[len(names) :], strict=True)
            ]
    return found


def _problem(key: tuple[Any, ...], ours: list[int], theirs: list[int]) -> str:
    day, *names = key
    whose = ", ".join(f"{name} {value!r}" for name, value in zip(SPEND_NAMES, names, strict=True))
    return (
        f"the roll-up of {day_of(day)} ({whose}) has {ours[0]} attempts and ${dollars(ours[1])}; "
        f"its attempts say {theirs[0]} and ${dollars(theirs[1])}"
    )
