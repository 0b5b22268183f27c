"""Whatever is reconciled balances, whatever its order, and never twice."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ledger.verify import verify
from tests.support.ledgers import DOLLAR, Bench, add_budget, attempt_rows, bench
from tests.support.reconciling import (
    DAY_1,
    DAY_2,
    HOLD,
    booked,
    compare,
    num_corrections,
    plain,
    settle,
    usd,
)

pytestmark = pytest.mark.slow

COST = st.integers(0, HOLD)
ATTEMPT = st.fixed_dictionaries({
    "cost": COST,
    "is_estimated": st.booleans(),
    "day": st.integers(1, 2),
    "endpoint_id": st.sampled_from(["acme/m1", "acme/m2"]),
    "hold": st.integers(1, HOLD),
})  # fmt: skip
ROW = st.tuples(
    st.sampled_from([DAY_1, DAY_2]),
    st.sampled_from(["m1", "m2"]),
    st.integers(0, 3 * HOLD).map(usd),
    st.sampled_from(["", "", "a0", "a1", "a2", "nobody"]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ATTEMPT, min_size=1, max_size=5), st.lists(ROW, min_size=1, max_size=8), st.data())
def test_whatever_is_reconciled_balances(
    some: list[dict[str, object]], rows: list[tuple[str, ...]], data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 99))

    async def main(home: Path) -> None:
        async with bench(home) as at:
            await balances(at, some, rows, seed)

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(main(Path(home)))


async def balances(
    at: Bench, some: list[dict[str, object]], rows: list[tuple[str, ...]], seed: int
) -> None:
    await add_budget(at.store, "b", DOLLAR)
    await settle(at, *({"id": f"a{idx}", **each} for idx, each in enumerate(some)))
    before = await attempt_rows(at.store)
    shuffled = random.Random(seed).sample(rows, len(rows))
    one = await compare(at.store, plain(*rows), is_dry_run=True)
    other = await compare(at.store, plain(*shuffled), is_dry_run=True)
    assert one.days == other.days  # the order of rows does not matter

    found = await compare(at.store, plain(*rows))
    moved = await booked(at.store)
    assert found.days == one.days
    assert sum(moved.values()) == found.total.corrected_nanos
    assert await attempt_rows(at.store) == before  # never edited
    assert all(before[name].is_estimated for name in moved)  # never an exact one
    assert await verify(at.store, None) == []  # balances, and no client pays above its hold

    num = await num_corrections(at.store)
    again = await compare(at.store, plain(*rows))
    reordered = await compare(at.store, plain(*shuffled) + "\n")
    assert (again.num_corrected, reordered.num_corrected) == (0, 0)
    assert await num_corrections(at.store) == num
    assert reordered.days == again.days
