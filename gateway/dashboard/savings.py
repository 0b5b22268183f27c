"""What the same tokens had cost at an endpoint that the operator named, at the prices of then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import Endpoint, dollars
from gateway.dashboard.queries_spend import Span
from gateway.ledger.windows import SECONDS_PER_DAY
from gateway.prices.book import PriceBook
from gateway.prices.rows import cost_nanos, pick_row
from gateway.store.state import get_meta, put_meta
from gateway.store.tables import meta
from gateway.wire.usage import Usage

BASELINE_META = "dashboard.baseline_endpoint"


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars as decimal strings; `saved` is negative where the baseline had been cheaper."""

    endpoint: str
    baseline: str
    spent: str
    saved: str
    share: float  # of the baseline
    is_by_hour: bool  # else each day at its noon's price
    num_unpriced_spans: int  # of which the baseline has no price; they are in neither sum


async def baseline_id(connection: AsyncConnection) -> str:
    """The endpoint that was named; "" = none."""
    return await get_meta(connection, BASELINE_META) or ""


async def name_baseline(connection: AsyncConnection, endpoint_id: str) -> None:
    """Name it; "" = none any more."""
    if endpoint_id:
        await put_meta(connection, BASELINE_META, endpoint_id)
    else:
        await connection.execute(sa.delete(meta).where(meta.c.key == BASELINE_META))


class Baseline:
    """Prices tokens at an endpoint's rows of then, by a price book of its own."""

    def __init__(self) -> None:
        self._book = PriceBook()

    async def savings(self, endpoint: Endpoint, spans: Sequence[Span]) -> Savings:
        """In a thread: the list of prices takes a while to load at first."""
        return await asyncio.to_thread(self._savings, endpoint, spans)

    def _savings(self, endpoint: Endpoint, spans: Sequence[Span]) -> Savings:
        baseline = spent = num_unpriced = 0
        for span in spans:
            then = span.start + (span.size_s // 2 if span.size_s == SECONDS_PER_DAY else 0)
            # A sum has no context step of its own: the first one is the cheapest, so this never
            # says more than was saved.
            row = pick_row(self._book.rows(endpoint, float(then)))
            if not row.is_priced:
                num_unpriced += 1
                continue
            nanos = cost_nanos(row, Usage(**span.tokens))
            baseline += nanos + row.request_nanos * max(0, span.num_attempts - 1)
            spent += span.cost_nanos
        return Savings(
            endpoint=endpoint.id,
            baseline=dollars(baseline),
            spent=dollars(spent),
            saved=dollars(baseline - spent),
            share=(baseline - spent) / baseline if baseline else 0.0,
            is_by_hour=all(span.size_s != SECONDS_PER_DAY for span in spans),
            num_unpriced_spans=num_unpriced,
        )
