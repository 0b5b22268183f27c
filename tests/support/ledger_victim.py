"""
A ledger that kills itself with SIGKILL at a named point, again and again, on one home.

Run: python -m tests.support.ledger_victim URL HOME LOG POINT KILLS SEED
LOG gets a line per fact that the process knows: "sent ID", "settled ID NANOS", "released ID".
Each child begins with what the one before left, as a restarted server would.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

from sqlalchemy import text

from gateway.ledger.ledger import Ledger
from gateway.ledger.options import LedgerOptions
from gateway.store.engine import open_store
from gateway.wire.usage import Usage
from tests.support.ledgers import CENT, cost_of, request_of

TASKS = 4
OPTIONS = LedgerOptions(
    commit_interval_s=0.002,
    records_per_commit=8,
    progress_interval_s=0.0,
    sql_wait_s=30.0,
    journal_file_bytes_max=20_000,
)


async def live(url: str, home: Path, log: int, point: str, rng: random.Random, life: int) -> None:
    """Serve until the point is hit for the nth time."""
    hits_left = rng.randint(1, 12)

    def at_point(name: str) -> None:
        nonlocal hits_left
        if name == point:
            hits_left -= 1
            if hits_left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    store = await open_store(url)
    if store.is_sqlite:
        async with store.read() as connection:
            found = (await connection.execute(text("PRAGMA integrity_check"))).scalar_one()
            assert found == "ok", found
    ledger = Ledger(store, home=home, holder_id="victim", options=OPTIONS, at_point=at_point)
    await ledger.start()

    async def serve(task: int) -> None:
        for number in range(1_000_000):
            attempt_id = f"{life}-{task}-{number}"
            hold = await ledger.reserve(request_of(attempt_id, CENT, "t", "k"))
            os.write(log, f"sent {attempt_id}\n".encode())
            ledger.progress(hold, Usage(output=rng.randint(1, 50)))
            await asyncio.sleep(rng.choice((0.0, 0.001)))
            if rng.random() < 0.2:
                ledger.release(hold, "refused")
                os.write(log, f"released {attempt_id}\n".encode())
            else:
                cost = rng.randint(0, CENT)
                ledger.settle(hold, cost_of(cost))
                ledger.settle(hold, cost_of(CENT))
                os.write(log, f"settled {attempt_id} {cost}\n".encode())

    async with asyncio.TaskGroup() as group:
        for task in range(TASKS):
            group.create_task(serve(task))


def main() -> None:
    url, home, log_path, point, kills, seed = sys.argv[1:]
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for life in range(int(kills)):
        child = os.fork()
        if child == 0:
            rng = random.Random(f"{seed}-{life}")
            asyncio.run(live(url, Path(home), log, point, rng, life))
            os._exit(1)  # it should not have lived
        _, status = os.waitpid(child, 0)
        if os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"child {life} ended by itself with status {status}")


if __name__ == "__main__":
    main()
