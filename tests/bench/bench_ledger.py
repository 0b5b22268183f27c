"""Measures reserve + settle in memory, with the journal's two writes: microseconds a pair.

Run: python tests/bench/bench_ledger.py [PAIRS]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from gateway.core import Caller, PriceRow
from gateway.ledger.ledger import Ledger
from gateway.ledger.records import HoldRequest, Settlement
from gateway.store.engine import open_store
from gateway.store.ledger_tables import budgets
from gateway.store.metadata import metadata
from gateway.wire.usage import Usage

PAIRS = 20_000
ROUNDS = 7
ROWS = tuple(
    PriceRow(source="policy", tier=tier, input=590_000, output=790_000, cached_read=59_000)
    for tier in ("standard", "flex")
)


async def measure(num_pairs: int, num_budgets: int, home: Path) -> float:
    """Microseconds a pair, the best of a few rounds."""
    store = await open_store(f"sqlite:///{home}/bench.db")
    async with store.begin() as connection:
        await connection.run_sync(metadata.create_all)
        for i in range(num_budgets):
            row = {"id": f"b{i}", "tenant_id": "t", "scope_kind": "key", "scope_id": f"k{i}"}
            row |= {"period": "total", "limit_nanos": 10**15, "created_at": 0, "updated_at": 0}
            await connection.execute(sa.insert(budgets).values(**row))
    ledger = Ledger(store, home=home)
    await ledger.start()
    ids = tuple(f"b{i}" for i in range(num_budgets))
    caller = Caller(tenant_id="t", team_id="m", key_id="k", budget_ids=ids)
    usage = Usage(input=500, output=100)
    settlement = Settlement(usage=usage, cost_nanos=300_000, price=ROWS[0], finish="stop")
    medians: list[float] = []
    for round_no in range(ROUNDS):
        took: list[float] = []
        for i in range(num_pairs // ROUNDS):
            request = HoldRequest(
                attempt_id=f"att-{num_budgets}-{round_no}-{i:012d}", request_id=f"req-{i:012d}",
                caller=caller, endpoint_id="groq/llama", model="chat", surface="chat", stream=True,
                hold_nanos=900_000, rows=ROWS, prompt_tokens_estimate=500,
            )  # fmt: skip
            begun = time.perf_counter()
            hold = await ledger.reserve(request)
            ledger.settle(hold, settlement)
            took.append(time.perf_counter() - begun)
            if i % 200 == 199:
                await ledger.flush()
        medians.append(statistics.median(took))
    await ledger.close()
    await store.close()
    return min(medians) * 1e6


async def main() -> None:
    num_pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    for num_budgets in (0, 1, 3):
        with tempfile.TemporaryDirectory() as directory:
            us = await measure(num_pairs, num_budgets, Path(directory))
        print(f"{num_budgets} budgets: {us:6.1f} us a reserve + settle (best of {ROUNDS} medians)")


if __name__ == "__main__":
    asyncio.run(main())
