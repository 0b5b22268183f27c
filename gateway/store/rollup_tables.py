"""Tables of the roll-ups: sums by minute, hour and day, written with the rows that they sum.

A bucket is named by its first second (unix, UTC). Spend is counted where an attempt was sent,
requests where they came in; so a day here is a day of `looprouter ledger report`.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.store.metadata import metadata
from gateway.wire.usage import BUCKETS

GRAINS_S = {"minute": 60, "hour": 3_600, "day": 86_400}

SPEND_NAMES = ("tenant_id", "team_id", "key_id", "endpoint_id", "model", "lane")
MONEY = ("cost_nanos", "billed_nanos", "overrun_nanos", "waste_nanos")
TOKENS = tuple(f"{bucket}_tokens" for bucket in BUCKETS)
SPEND_COUNTS = ("num_attempts", "num_estimated", "num_unpriced")
SPEND_SUMS = (*SPEND_COUNTS, *MONEY, *TOKENS)

REQUEST_NAMES = ("tenant_id", "endpoint_id", "model", "lane")
# Streams alone have a first token: `ttft_us` is the sum over `num_ttft` of them.
REQUEST_SUMS = (
    "num_requests", "num_refused", "num_failed", "num_ttft", "ttft_us", "duration_us",
)  # fmt: skip


def _grain() -> tuple[sa.Column[str], sa.Column[int]]:
    return (
        sa.Column("grain", sa.Text, primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
    )


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _sum(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


# Attempts that ended, with what their corrections moved. In SQLite the key is the table.
spend_rollups = sa.Table(
    "spend_rollups",
    metadata,
    *_grain(),
    *(_name(name) for name in SPEND_NAMES),
    # Paid by the operator for nothing: no baseline would have been asked a second time.
    sa.Column("is_wasted", sa.Boolean, primary_key=True),
    *(_sum(name) for name in SPEND_SUMS),
    sqlite_with_rowid=False,
)

# Requests of the log, whatever became of them.
request_rollups = sa.Table(
    "request_rollups",
    metadata,
    *_grain(),
    *(_name(name) for name in REQUEST_NAMES),
    *(_sum(name) for name in REQUEST_SUMS),
    sqlite_with_rowid=False,
)
