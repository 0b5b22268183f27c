"""Add roll-ups, summed from what is there; the lane of attempts; an index to filter the log by."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

GRAINS = {"minute": 60, "hour": 3_600, "day": 86_400}
MONEY = ("cost_nanos", "billed_nanos", "overrun_nanos", "waste_nanos")
BUCKETS = (
    "input", "cached_read", "cache_write_5m", "cache_write_1h", "output", "reasoning",
    "audio_input", "audio_output", "image_input",
)  # fmt: skip
TOKENS = tuple(f"{bucket}_tokens" for bucket in BUCKETS)
SPEND_NAMES = ("tenant_id", "team_id", "key_id", "endpoint_id", "model", "lane")
SPEND_KEY = ("grain", "bucket_start", *SPEND_NAMES, "is_wasted")
SPEND_SUMS = ("num_attempts", "num_estimated", "num_unpriced", *MONEY, *TOKENS)
REQUEST_NAMES = ("tenant_id", "endpoint_id", "model", "lane")
REQUEST_KEY = ("grain", "bucket_start", *REQUEST_NAMES)
REQUEST_SUMS = (
    "num_requests", "num_refused", "num_failed", "num_ttft", "ttft_us", "duration_us",
)  # fmt: skip
# Written out: a migration says what was true at its time, whatever the code says later.
WASTED = (
    "(a.billed_nanos = 0 AND (a.waste_nanos > 0"
    " OR (a.cost_nanos = 0 AND a.failure NOT IN ('', 'gateway_crashed'))))"
)
UNPRICED = "(a.state = 'settled' AND a.price_source = 'unpriced' AND a.cost_nanos = 0)"


def upgrade() -> None:
    op.add_column(
        "attempts", sa.Column("lane", sa.Text(), server_default="interactive", nullable=False)
    )
    # Providers' batch APIs are the only ones that were paid at their price.
    op.execute("UPDATE attempts SET lane = 'batch' WHERE price_tier = 'batch'")
    op.execute(
        "UPDATE attempts SET lane = 'batch' WHERE request_id IN"
        " (SELECT id FROM requests WHERE lane = 'batch')"
    )
    _create("spend_rollups", SPEND_NAMES, SPEND_SUMS, sa.Column("is_wasted", sa.Boolean()))
    _create("request_rollups", REQUEST_NAMES, REQUEST_SUMS)
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.drop_index("ix_requests_created_at")
        batch_op.create_index(
            "ix_requests_filters",
            ["created_at", "id", "tenant_id", "key_id", "model", "endpoint_id", "lane", "stream",
             "status"],
            unique=False,
        )  # fmt: skip
    for grain, size_s in GRAINS.items():
        _sum_attempts(grain, size_s)
        _sum_requests(grain, size_s)
    _add_corrections()


def _create(name: str, names: tuple[str, ...], sums: tuple[str, ...], *more: Any) -> None:
    columns = [sa.Column("grain", sa.Text()), sa.Column("bucket_start", sa.BigInteger())]
    columns += [*(sa.Column(each, sa.Text()) for each in names), *more]
    key = [column.name for column in columns]
    for column in columns:
        column.nullable = False
    op.create_table(
        name,
        *columns,
        *(sa.Column(each, sa.BigInteger(), server_default="0", nullable=False) for each in sums),
        sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{name}")),
        sqlite_with_rowid=False,
    )


def _bucket(column: str, size_s: int) -> str:
    # A cast cuts off on SQLite and rounds on PostgreSQL.
    whole = column if op.get_bind().dialect.name == "sqlite" else f"floor({column})"
    return f"CAST({whole} AS BIGINT) / {size_s} * {size_s}"


def _if(condition: str) -> str:
    return f"SUM(CASE WHEN {condition} THEN 1 ELSE 0 END)"


def _sum_attempts(grain: str, size_s: int) -> None:
    sums = [
        "COUNT(*)", _if("is_estimated"), _if(UNPRICED), *(f"SUM({name})" for name in MONEY),
        *(f"SUM({name})" for name in TOKENS),
    ]  # fmt: skip
    keys = [_bucket("sent_at", size_s), *SPEND_NAMES, WASTED]
    _insert(
        "spend_rollups", SPEND_KEY, SPEND_SUMS,
        grain=grain, keys=keys, values=sums, source="attempts a WHERE a.state <> 'sent'",
    )  # fmt: skip


def _sum_requests(grain: str, size_s: int) -> None:
    failed = "(status >= 500 OR (status >= 200 AND status < 300 AND error <> ''))"
    refused = "(status >= 400 AND status < 500)"
    us = "COALESCE(SUM(CAST(round(CAST({} * 1000 AS NUMERIC)) AS BIGINT)), 0)"
    sums = [
        "COUNT(*)", _if(refused), _if(failed), "COUNT(ttft_any_ms)", us.format("ttft_any_ms"),
        us.format("duration_ms"),
    ]  # fmt: skip
    keys = [_bucket("created_at", size_s), *REQUEST_NAMES]
    _insert(
        "request_rollups", REQUEST_KEY, REQUEST_SUMS,
        grain=grain, keys=keys, values=sums, source="requests",
    )  # fmt: skip


def _insert(
    table: str, key: tuple[str, ...], sums: tuple[str, ...],
    *, grain: str, keys: list[str], values: list[str], source: str,
) -> None:  # fmt: skip
    # Every part of the text is a constant of this file.
    op.execute(
        f"INSERT INTO {table} ({', '.join((*key, *sums))}) "  # noqa: S608 - constants only
        f"SELECT '{grain}', {', '.join((*keys, *values))} FROM {source} "
        f"GROUP BY {', '.join(keys)}"
    )


def _add_corrections() -> None:
    """In the order they were booked: a correction's usage replaces the one before it."""
    connection = op.get_bind()
    columns = ", ".join(f"a.{name}" for name in (*SPEND_NAMES, *TOKENS, "sent_at", "price_source"))
    booked = connection.execute(
        sa.text(
            f"SELECT a.attempt_id, {columns}, {WASTED} AS wasted, "  # noqa: S608 - constants only
            "a.cost_nanos AS first_nanos, k.usage, "
            + ", ".join(f"k.{name} AS d_{name}" for name in MONEY)
            + " FROM corrections k JOIN attempts a ON a.attempt_id = k.attempt_id "
            "ORDER BY k.attempt_id, k.created_at, k.id"
        )
    )
    last, cost, tokens = "", 0, [0] * len(TOKENS)
    for row in booked.mappings().all():
        if row["attempt_id"] != last:
            last, cost = row["attempt_id"], row["first_nanos"]
            tokens = [row[name] for name in TOKENS]
        now = tokens
        if row["usage"]:
            known = json.loads(row["usage"])
            now = [known.get(bucket, 0) for bucket in BUCKETS]
        then, cost = cost, cost + row["d_cost_nanos"]
        unpriced = int(cost == 0) - int(then == 0) if row["price_source"] == "unpriced" else 0
        moved = dict(zip(TOKENS, (a - b for a, b in zip(now, tokens, strict=True)), strict=True))
        moved |= {name: row[f"d_{name}"] for name in MONEY} | {"num_unpriced": unpriced}
        tokens = now
        _move(connection, row, moved)


def _move(connection: sa.Connection, row: Any, moved: dict[str, int]) -> None:
    added = ", ".join(f"{name} = {name} + :{name}" for name in moved)
    names = " AND ".join(f"{name} = :{name}" for name in SPEND_NAMES)
    for grain, size_s in GRAINS.items():
        connection.execute(
            sa.text(
                f"UPDATE spend_rollups SET {added} WHERE grain = :grain "  # noqa: S608 - constants only
                f"AND bucket_start = :bucket AND is_wasted = :wasted AND {names}"
            ),
            {
                **moved, **{name: row[name] for name in SPEND_NAMES}, "grain": grain,
                "bucket": int(row["sent_at"] // size_s) * size_s, "wasted": bool(row["wasted"]),
            },
        )  # fmt: skip


def downgrade() -> None:
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.drop_index("ix_requests_filters")
        batch_op.create_index("ix_requests_created_at", ["created_at"], unique=False)
    op.drop_table("request_rollups")
    op.drop_table("spend_rollups")
    op.drop_column("attempts", "lane")
