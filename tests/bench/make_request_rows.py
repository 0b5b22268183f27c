"""Fills a database with requests of some days, their attempts and roll-ups, to measure pages on.

Run: python tests/bench/make_request_rows.py URL [--rows 10000000] [--attempts 1000000] [--days 7]

URL is sqlite:////path/to/file.db or postgresql://…; the schema is made first. `--attempts` is how
many of the newest requests of each day get rows in the ledger; the roll-ups count all of them. One
day is made and the days before it are copies of it, which the database makes: that is faster. Ids
are in order of time, so that SQLite appends to its indexes; looking a row up is no faster for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.ledger.windows import day_of, window_of
from gateway.retention import AGES
from gateway.store import migrate
from gateway.store.engine import open_store, parse_url
from gateway.store.ledger_tables import attempts, budget_windows, budgets
from gateway.store.rollups import Sums, request_sums, spend_sums
from gateway.store.tables import keys, requests, teams, tenants

CHUNK_ROWS = 20_000
COPY_S_MAX = 3_600.0
DAY_S = 86_400.0
KEEP_S = {"minute": AGES["minutes"].default * DAY_S, "hour": AGES["hours"].default * DAY_S}
TENANTS, TEAMS, KEYS = 5, 12, 40
MODELS = ("chat", "fast", "long", "code")
ENDPOINTS = (
    "groq/llama-3.3-70b", "cerebras/llama-3.3-70b", "together/llama-3.3-70b", "openai/gpt-5-mini",
    "anthropic/claude-haiku", "deepinfra/qwen3-32b", "own/smollm2-135m", "fireworks/qwen3-32b",
)  # fmt: skip
LIMIT_NANOS = 10**15  # of each budget
RARE = "rare"  # a model that one request in 50,000 asks for
FACTS = json.dumps(
    {"request_id": "", "surface": "chat", "models": ["chat"], "lane": "interactive", "stream": True,
     "prompt_tokens": 812, "max_tokens": 1024, "wants": ["tools"], "metadata": {"app": "x" * 120}}
)  # fmt: skip
LIVE = json.dumps(
    {"live": {e: {"endpoint_id": e, "in_flight": 3, "capacity": 24.5} for e in ENDPOINTS}}
)
CANDIDATES = json.dumps(
    [{"endpoint_id": e, "outcome": "fallback", "reason": ""} for e in ENDPOINTS[:4]]
)
PRICE_ROW = json.dumps({"source": "policy", "price_id": "bench", "input": 590_000})
POSTGRES_INDEXES = (  # but those of primary keys: ids come in order
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' "
    "AND tablename IN ('requests', 'attempts') AND indexname LIKE 'ix\\_%'"
)


class Maker:
    """Rows of the last day one after another, and the sums of those that were made."""

    def __init__(self, num_rows: int, num_attempts: int, *, days: int, until: float) -> None:
        self.num_rows = num_rows // days
        self.num_days = days
        self._rng = random.Random(8)
        self._first_attempt = self.num_rows - num_attempts // days
        self.until = until
        self.spend: Sums = spend_sums()
        self.counted: Sums = request_sums()

    def make(self, i: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """A request and, of the newest ones, its attempt."""
        rng = self._rng
        at = self.until - DAY_S * (1 - i / self.num_rows)
        key = min(int(rng.expovariate(0.15)), KEYS - 1)
        team, tenant = key % TEAMS, key % TENANTS
        model = RARE if i % 50_000 == 7 else MODELS[key % 2 * 2 + (rng.random() < 0.3)]
        endpoint = ENDPOINTS[min(int(rng.expovariate(0.6)), len(ENDPOINTS) - 1)]
        lane = "batch" if key % 10 == 3 else "interactive"
        dice = rng.random()
        status, error = (
            (200, "") if dice > 0.02 else (429, "rate") if dice > 0.01 else (502, "down")
        )
        is_ok = status == 200
        prompt, output = int(rng.lognormvariate(6, 1)), int(rng.lognormvariate(5, 1))
        ttft = rng.lognormvariate(5.7, 0.5) if is_ok and lane == "interactive" else None
        duration = (ttft or 200.0) + output * 9.0
        cost = prompt * 590 + output * 790 if is_ok else 0
        usage = {"input": prompt, "output": output} if is_ok else None
        row = {
            "id": f"req_{self.num_days:03}{i:021x}",
            "tenant_id": f"tenant{tenant}", "team_id": f"team{team}",
            "key_id": f"key{key}", "created_at": at, "surface": "chat", "model": model,
            "lane": lane, "stream": ttft is not None, "facts": FACTS, "policy_version": "bench",
            "route": "interactive", "preference": "fastest", "candidates": CANDIDATES,
            "live": LIVE, "seed": str(i), "snapshot_id": "", "endpoint_id": endpoint,
            "num_attempts": 1, "status": status, "error": error, "ttft_any_ms": ttft,
            "ttft_visible_ms": ttft, "duration_ms": duration, "overhead_us": 420.0,
            "usage": json.dumps(usage) if usage else "", "is_estimated": False,
            "cost_nanos": cost, "billed_nanos": cost,
        }  # fmt: skip
        self._count(row, prompt if is_ok else 0, output if is_ok else 0)
        return row, self._attempt(row, prompt, output) if i >= self._first_attempt else None

    def _count(self, row: dict[str, Any], prompt: int, output: int) -> None:
        status, cost, at = row["status"], row["cost_nanos"], row["created_at"]
        names = (row["tenant_id"], row["endpoint_id"], row["model"], row["lane"])
        ttft = row["ttft_any_ms"]
        counts = (1, int(400 <= status < 500), int(status >= 500), int(ttft is not None))
        times = (round((ttft or 0.0) * 1000), round(row["duration_ms"] * 1000))
        self.counted.add(at, names, (*counts, *times))
        whose = (row["tenant_id"], row["team_id"], row["key_id"], row["endpoint_id"], row["model"])
        tokens = (prompt, 0, 0, 0, output, 0, 0, 0, 0)
        amounts = (1, 0, 0, cost, cost, 0, 0, *tokens)
        self.spend.add(at, (*whose, row["lane"], status != 200), amounts)

    def _attempt(self, row: dict[str, Any], prompt: int, output: int) -> dict[str, Any]:
        is_ok, cost = row["status"] == 200, row["cost_nanos"]
        return {
            "attempt_id": "att" + row["id"][3:], "request_id": row["id"],
            **{name: row[name] for name in ("tenant_id", "team_id", "key_id", "endpoint_id")},
            "holder_id": "bench", "provider": row["endpoint_id"].partition("/")[0],
            "model": row["model"], "surface": "chat", "lane": row["lane"],
            "stream": row["stream"], "state": "settled", "hold_nanos": 2 * cost,
            "cost_nanos": cost, "billed_nanos": cost, "input_tokens": prompt if is_ok else 0,
            "output_tokens": output if is_ok else 0, "price_source": "policy",
            "price_tier": "standard", "price_row": PRICE_ROW, "failure": row["error"],
            "sent_at": row["created_at"], "settled_at": row["created_at"] + 1.0,
        }  # fmt: skip

    def rollups(self) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
        """Rows as they are kept: minutes and hours of long ago are gone."""
        for sums in (self.spend, self.counted):
            num_names = len(sums.table.primary_key)
            found: dict[tuple[Any, ...], list[int]] = {}
            for grain, bucket, *rest in sums.rows():
                names, amounts = rest[: num_names - 2], rest[num_names - 2 :]
                oldest = self.until - KEEP_S.get(grain, float("inf"))
                for day in range(1 if grain == "minute" else self.num_days):
                    key = (grain, bucket - day * int(DAY_S), *names)
                    if key[1] >= oldest:
                        before = found.get(key, [0] * len(amounts))
                        found[key] = [a + b for a, b in zip(before, amounts, strict=True)]
            yield sums.table, [(*key, *found[key]) for key in sorted(found)]

    def copies(self) -> Iterator[str]:
        """Statements that copy the last day to the days before it, for both databases."""
        moved = {"created_at", "sent_at", "settled_at"}
        for day in range(1, self.num_days):
            for table, prefix in ((requests, "req_"), (attempts, "att_")):
                values = {column.name: column.name for column in table.c}
                for name in values:
                    if name in ("id", "request_id", "attempt_id"):
                        digits = f"'{self.num_days - day:03}'"
                        values[name] = f"substr({name}, 1, 4) || {digits} || substr({name}, 8)"
                    elif name in moved:
                        values[name] = f"{name} - {day * DAY_S}"
                first = f"{prefix}{self.num_days:03}"
                yield (
                    f"INSERT INTO {table.name} ({', '.join(values)}) "
                    f"SELECT {', '.join(values.values())} FROM {table.name} "
                    f"WHERE {next(iter(values))} >= '{first}'"
                )


def chunks(maker: Maker) -> Iterator[tuple[list[Any], list[Any]]]:
    for begin in range(0, maker.num_rows, CHUNK_ROWS):
        made = [maker.make(i) for i in range(begin, min(begin + CHUNK_ROWS, maker.num_rows))]
        yield [row for row, _ in made], [attempt for _, attempt in made if attempt is not None]


def owners(until: float) -> dict[Any, list[dict[str, Any]]]:
    """Tenants, teams and keys that the rows belong to, and a budget a month for each of them."""
    named = [
        {"id": f"team{key % TEAMS}-{key % TENANTS}", "tenant_id": f"tenant{key % TENANTS}",
         "name": f"Team {key % TEAMS}", "created_at": 0.0}
        for key in range(KEYS)
    ]  # fmt: skip
    found = {
        tenants: [
            {"id": f"tenant{i}", "name": f"Tenant {i}", "created_at": 0.0} for i in range(TENANTS)
        ],
        teams: list({each["id"]: each for each in named}.values()),
        keys: [
            {"id": f"key{key}", "tenant_id": f"tenant{key % TENANTS}",
             "team_id": f"team{key % TEAMS}-{key % TENANTS}", "name": f"Key {key}",
             "secret_hash": b"x" * 32, "created_at": 0.0}
            for key in range(KEYS)
        ],
    }  # fmt: skip
    scopes = [(table.name[:-1], row) for table, rows in found.items() for row in rows]
    found[budgets] = [
        {"id": f"budget-{kind}-{row['id']}", "tenant_id": row.get("tenant_id", row["id"]),
         "scope_kind": kind, "scope_id": row["id"], "period": "month",
         "limit_nanos": LIMIT_NANOS, "created_at": 0.0, "updated_at": 0.0}
        for kind, row in scopes
    ]  # fmt: skip
    found[budget_windows] = [
        {"budget_id": row["id"], "window_start": window_of("month", until).start,
         "spent_nanos": LIMIT_NANOS // 3, "limit_seen_nanos": LIMIT_NANOS}
        for row in found[budgets]
    ]  # fmt: skip
    return found


def fill_sqlite(path: str, maker: Maker) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # A bench file: what a power loss leaves of it is of no interest.
        for pragma in ("synchronous=OFF", "journal_mode=OFF", "cache_size=-262144"):
            connection.execute(f"PRAGMA {pragma}")
        indexes = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL "
            "AND tbl_name IN ('requests', 'attempts')"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        for table, rows in owners(maker.until).items():
            _insert(connection, table.name, list(rows[0]), [tuple(row.values()) for row in rows])
        for logged, booked in chunks(maker):
            for table, rows in ((requests, logged), (attempts, booked)):
                if rows:
                    values = [tuple(row.values()) for row in rows]
                    _insert(connection, table.name, list(rows[0]), values)
        for statement in maker.copies():
            connection.execute(statement)
            connection.commit()
        for table, rows in maker.rollups():
            _insert(connection, table.name, [c.name for c in table.c], rows)
        for _, sql in indexes:
            connection.execute(sql)
        connection.execute("PRAGMA optimize=0x10002")
        connection.commit()


def _insert(
    connection: sqlite3.Connection, table: str, names: list[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    marks = ", ".join("?" * len(names))
    connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)
    connection.commit()


async def fill_postgres(url: str, maker: Maker) -> None:
    """By COPY, all in one transaction; indexes are built once the rows are there."""
    store = await open_store(url)
    try:
        async with store.begin() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection

            async def copy(table: Any, names: list[str], rows: list[tuple[Any, ...]]) -> None:
                await raw.copy_records_to_table(table.name, records=rows, columns=names)

            indexes = await raw.fetch(POSTGRES_INDEXES)
            for index in indexes:
                await raw.execute(f"DROP INDEX {index['indexname']}")
            for table, rows in owners(maker.until).items():
                await copy(table, list(rows[0]), [tuple(row.values()) for row in rows])
            for logged, booked in chunks(maker):
                for table, rows in ((requests, logged), (attempts, booked)):
                    if rows:
                        await copy(table, list(rows[0]), [tuple(row.values()) for row in rows])
            for statement in maker.copies():
                await raw.execute(statement, timeout=COPY_S_MAX)
            for table, rows in maker.rollups():
                await copy(table, [c.name for c in table.c], rows)
            await raw.execute("SET LOCAL maintenance_work_mem = '1GB'")
            for index in indexes:
                await raw.execute(index["indexdef"], timeout=COPY_S_MAX)
        async with store.engine.connect() as connection:
            autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
            raw = (await autocommit.get_raw_connection()).driver_connection
            # As autovacuum leaves a table that only grows: its indexes alone can answer.
            await raw.execute("VACUUM (ANALYZE)", timeout=COPY_S_MAX)
    finally:
        await store.close()


def fill(url: str, *, num_rows: int, num_attempts: int, days: int, until: float) -> None:
    """Make the schema and fill it. Runs an event loop of its own."""
    migrate.upgrade(url)
    maker = Maker(num_rows, min(num_attempts, num_rows), days=days, until=until)
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        fill_sqlite(str(parsed.database), maker)
    else:
        asyncio.run(fill_postgres(url, maker))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--attempts", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=7)
    asked = parser.parse_args()
    begun, until = time.monotonic(), time.time()
    fill(asked.url, num_rows=asked.rows, num_attempts=asked.attempts, days=asked.days, until=until)
    took_s = time.monotonic() - begun
    print(f"{asked.rows:,} requests until {day_of(until)} in {took_s:.0f} s")


if __name__ == "__main__":
    main()
