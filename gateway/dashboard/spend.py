"""The page Spend: where the money went, what a baseline had cost, and all of it as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
import sqlalchemy as sa
from litestar import Response, get, post, put
from litestar.params import FromQuery, JSONBody
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.core import dollars
from gateway.dashboard.look import look_of, page
from gateway.dashboard.page import AnyRequest, Desk, Page, actor_of
from gateway.dashboard.queries_spend import (
    COLUMNS,
    DAYS_MAX,
    EXPORT_DAYS_MAX,
    Asked,
    By,
    Spend,
    asked_of,
    export_rows,
    spans,
    spend,
)
from gateway.dashboard.roles import OPERATOR, VIEWER
from gateway.dashboard.savings import Baseline, Savings, baseline_id, name_baseline
from gateway.errors import InvalidRequest
from gateway.ledger.windows import day_of
from gateway.store.audit import AuditEvent, append_events
from gateway.store.rollup_tables import MONEY, SPEND_COUNTS, TOKENS
from gateway.store.tables import tenants

TENANTS_MAX = 500  # in the list to choose from
CSV_NAMES = ("day", "tenant_id", "team_id", "key_id", "endpoint_id", "model", "lane")


class SpendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Spend of a span; `savings` is null until an operator has named a baseline endpoint."""

    first: str
    last: str
    spend: Spend
    savings: Savings | None


class BaselineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of the policy; "" takes the baseline away."""

    endpoint: Annotated[str, msgspec.Meta(max_length=256)]


class SpendDesk:
    """What both the page and the API ask."""

    def __init__(self, desk: Desk) -> None:
        self._gateway = desk.gateway
        self._baseline = Baseline()

    def asked(self, first: str, last: str, tenant: str, *, days_max: int = DAYS_MAX) -> Asked:
        now = self._gateway.wall_clock()
        return asked_of(first, last, now=now, tenant_id=tenant, days_max=days_max)

    async def answer(self, asked: Asked, by: str) -> SpendAnswer:
        grouping = by_of(by)
        gateway = self._gateway
        async with gateway.store.read() as connection:
            found = await spend(connection, asked, by=grouping)
            endpoint = gateway.policy().endpoints.get(await baseline_id(connection))
            parts = await spans(connection, asked) if endpoint is not None else []
        saved = None if endpoint is None else await self._baseline.savings(endpoint, parts)
        first, last = day_of(asked.since), day_of(asked.until)
        return SpendAnswer(first=first, last=last, spend=found, savings=saved)

    async def choose(self, endpoint_id: str, actor: str) -> None:
        """InvalidRequest for an endpoint that the policy does not have."""
        gateway = self._gateway
        if endpoint_id and endpoint_id not in gateway.policy().endpoints:
            raise InvalidRequest(
                f"the policy has no endpoint {endpoint_id[:80]!r}; name one of "
                f"{', '.join(sorted(gateway.policy().endpoints)[:20])}"
            )
        async with gateway.store.begin() as connection:
            before = await baseline_id(connection)
            await name_baseline(connection, endpoint_id)
            event = AuditEvent(
                tenant_id="",
                at=gateway.wall_clock(),
                actor=actor,
                action="baseline.change",
                subject=endpoint_id or before,
                detail={"before": before, "after": endpoint_id},
            )
            await append_events(connection, [event])

    async def tenants(self) -> list[tuple[str, str]]:
        query = sa.select(tenants.c.id, tenants.c.name).order_by(tenants.c.name).limit(TENANTS_MAX)
        async with self._gateway.store.read() as connection:
            return [(row.id, row.name) for row in await connection.execute(query)]

    async def lines(self, asked: Asked) -> AsyncIterator[bytes]:
        """The CSV, a day at a time; its cells cannot be formulas."""
        yield _csv([(*CSV_NAMES, *SPEND_COUNTS, *(_usd(n) for n in MONEY), *TOKENS)])
        async with self._gateway.store.read() as connection:
            async for rows in export_rows(connection, asked):
                yield _csv([_cells(row) for row in rows])


def routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    its = SpendDesk(desk)

    @get("/spend", opt=VIEWER)
    async def spend_page(
        request: AnyRequest,
        by: FromQuery[str] = "day",
        first: FromQuery[str] = "",
        last: FromQuery[str] = "",
        tenant: FromQuery[str] = "",
    ) -> Response[bytes]:
        answer = await its.answer(its.asked(first, last, tenant), by)
        return page(
            "spend.html",
            look_of(request, desk),
            answer=answer,
            tenant=tenant,
            tenants=await its.tenants(),
            groupings=tuple(COLUMNS),
            log_of=partial(log_query, answer, tenant),
            endpoints=sorted(desk.gateway.policy().endpoints),
            highest=max((float(usd) for _, usd in answer.spend.days), default=0.0),
        )

    @get("/spend.csv", opt=VIEWER)
    async def export(
        first: FromQuery[str] = "", last: FromQuery[str] = "", tenant: FromQuery[str] = ""
    ) -> Stream:
        asked = its.asked(first, last, tenant, days_max=EXPORT_DAYS_MAX)
        name = f"looprouter-spend-{day_of(asked.since)}-{day_of(asked.until)}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Stream(its.lines(asked), media_type="text/csv", headers=headers)

    @post("/spend/baseline", status_code=303, opt=OPERATOR)
    async def choose(request: AnyRequest) -> Response[bytes]:
        form = await request.form()
        await its.choose(str(form.get("endpoint", "")), actor_of(request))
        return Response(b"", status_code=303, headers={"location": "/admin/spend"})

    return [spend_page, export, choose]


def api_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    its = SpendDesk(desk)

    @get("/spend", opt=VIEWER, tags=["spend"])
    async def read_spend(
        by: FromQuery[str] = "day",
        first: FromQuery[str] = "",
        last: FromQuery[str] = "",
        tenant: FromQuery[str] = "",
    ) -> SpendAnswer:
        """Spend of whole UTC days by day, key, team, model, endpoint or lane, dearest first."""
        return await its.answer(its.asked(first, last, tenant), by)

    @put("/spend/baseline", status_code=204, opt=OPERATOR, tags=["spend"])
    async def put_baseline(request: AnyRequest, data: JSONBody[BaselineChoice]) -> None:
        """Name the endpoint that savings are told against."""
        await its.choose(data.endpoint, actor_of(request))

    return [read_spend, put_baseline]


def log_query(answer: SpendAnswer, tenant_id: str, by: str, group: str) -> str:
    """The query of the log's page for the requests of one row, in the days that it sums."""
    first, last = (group, group) if by == "day" else (answer.first, answer.last)
    following = date.fromisoformat(last) + timedelta(days=1)
    asked = {"tenant": tenant_id, "since": f"{first}T00:00", "until": f"{following}T00:00"}
    if by != "day":
        asked[by] = group
    return urlencode({name: value for name, value in asked.items() if value})


def by_of(text: str) -> By:
    """InvalidRequest for a grouping that there is not."""
    for known in COLUMNS:
        if known == text:
            return known
    raise InvalidRequest(f"by={text[:40]!r} is unknown; use {', '.join(COLUMNS)}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(_no_formula(str(row[name])) for name in CSV_NAMES)
    counts = tuple(str(int(row[name])) for name in SPEND_COUNTS)
    money = tuple(dollars(int(row[name])) for name in MONEY)
    return (*names, *counts, *money, *(str(int(row[name])) for name in TOKENS))


def _no_formula(cell: str) -> str:
    """A spreadsheet runs cells that begin like this; names may come from anyone."""
    return "'" + cell if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _usd(name: str) -> str:
    return name.removesuffix("_nanos") + "_usd"


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


PAGE = Page("/spend", "nav.spend", "viewer", routes, api_routes)
