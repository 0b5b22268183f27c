"""PostgreSQL goes away, hangs, or drops the connection at COMMIT: behind a real proxy."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL

from gateway.errors import LedgerUnavailable
from gateway.ledger.ledger import Ledger
from gateway.ledger.records import LedgerAlert
from gateway.ledger.verify import verify
from gateway.store.engine import Store, open_store
from tests.support.databases import postgres_store
from tests.support.ledgers import (
    CENT,
    DOLLAR,
    add_budget,
    attempt_rows,
    cost_of,
    only_window,
    request_of,
)

REFUSED_WITHIN_S = 5.0  # the promise is 1 s; the machine may be busy

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


class Proxy:
    """Carries bytes to PostgreSQL until told to hang or to cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        self.cuts_at_commit = False
        self.num_cut_commits = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def hang(self) -> None:
        self._flows.clear()

    def go_on(self) -> None:
        self._flows.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._pump(reader, up_writer, is_upward=True), self._pump(up_reader, writer)
            )
        self._writers -= {writer, up_writer}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_upward: bool = False,
    ) -> None:
        while some := await reader.read(65_536):
            await self._flows.wait()
            cuts = is_upward and self.cuts_at_commit and b"COMMIT" in some
            if cuts:  # PostgreSQL gets it and commits; nobody is ever told
                self.cuts_at_commit = False
                self.hang()
            writer.write(some)
            await writer.drain()
            if cuts:
                await asyncio.sleep(0.1)
                self.num_cut_commits += 1
                self.cut()
                self.go_on()
        writer.close()


@asynccontextmanager
async def behind_proxy() -> AsyncIterator[tuple[Store, Store, Proxy]]:
    """A store that sees PostgreSQL through a proxy, and one that sees it directly."""
    async with postgres_store() as direct:
        proxy = Proxy(direct.url.host or "127.0.0.1", direct.url.port or 5432)
        await proxy.open()
        url: URL = direct.url.set(host="127.0.0.1", port=proxy.port)
        store = await open_store(url.render_as_string(hide_password=False))
        try:
            yield store, direct, proxy
        finally:
            proxy.go_on()
            await store.close()
            await proxy.go_away()


async def spend_until_refused(ledger: Ledger) -> list[str]:
    """Which attempts were served from what is leased; the refusal must come in time."""
    served: list[str] = []
    while len(served) < 1_000:
        begun = time.monotonic()
        request = request_of(f"out-{len(served)}", CENT, "b")
        try:
            hold = await ledger.reserve(request)
        except LedgerUnavailable:
            break
        ledger.settle(hold, cost_of(CENT))
        served.append(hold.attempt_id)
    assert len(served) < 1_000, "a budget without a database was never refused"
    assert time.monotonic() - begun < REFUSED_WITHIN_S
    return served


@pytest.mark.parametrize("fault", ["away", "hangs"])
async def test_an_outage_refuses_what_is_not_leased_and_books_the_rest_later(
    tmp_path: Path, fault: str
) -> None:
    async with behind_proxy() as (store, direct, proxy):
        await add_budget(direct, "b", 10 * DOLLAR)
        alerts: list[LedgerAlert] = []
        ledger = Ledger(store, home=tmp_path, alert=alerts.append)
        await ledger.start()
        running = await ledger.reserve(request_of("running", CENT, "b"))
        await ledger.flush()
        if fault == "away":
            await proxy.go_away()
        else:
            proxy.hang()

        served = await spend_until_refused(ledger)
        assert served
        ledger.settle(running, cost_of(CENT // 2))
        free = await ledger.reserve(request_of("free", DOLLAR))
        ledger.settle(free, cost_of(CENT))
        if fault == "away":
            await proxy.open()
        else:
            proxy.go_on()
        async with asyncio.timeout(30):
            while "free" not in await attempt_rows(direct):
                await asyncio.sleep(0.05)
        ledger.release(await ledger.reserve(request_of("after", CENT, "b")), "done")
        await ledger.close()
        rows = await attempt_rows(direct)
        assert set(rows) == {"running", "free", "after", *served}
        assert rows["running"].billed_nanos == CENT // 2
        assert (await only_window(direct, "b")).spent == CENT // 2 + len(served) * CENT
        assert await verify(direct, tmp_path / "journal") == []
        assert {alert.kind for alert in alerts} <= {"sql_behind"}


async def test_a_commit_whose_connection_is_cut_is_booked_exactly_once(tmp_path: Path) -> None:
    async with behind_proxy() as (store, direct, proxy):
        await add_budget(direct, "b", 10 * DOLLAR)
        ledger = Ledger(store, home=tmp_path, alert=lambda _: None)
        await ledger.start()
        hold = await ledger.reserve(request_of("a1", CENT, "b"))
        proxy.cuts_at_commit = True
        ledger.settle(hold, cost_of(CENT))

        async with asyncio.timeout(30):
            while proxy.num_cut_commits == 0 or ledger.backlog_bytes > 0:
                await asyncio.sleep(0.02)
        assert proxy.num_cut_commits == 1
        assert (await attempt_rows(direct))["a1"].billed_nanos == CENT
        ledger.settle(await ledger.reserve(request_of("a2", CENT, "b")), cost_of(CENT))
        await ledger.close()
        assert (await only_window(direct, "b")).spent == 2 * CENT
        assert await verify(direct, tmp_path / "journal") == []


async def test_a_refill_whose_commit_is_cut_leaks_and_doubles_no_money(tmp_path: Path) -> None:
    async with behind_proxy() as (store, direct, proxy):
        await add_budget(direct, "b", 10 * DOLLAR)
        ledger = Ledger(store, home=tmp_path, alert=lambda _: None)
        await ledger.start()
        proxy.cuts_at_commit = True
        with pytest.raises(LedgerUnavailable):
            await ledger.reserve(request_of("a1", 3 * DOLLAR, "b"))

        assert (await only_window(direct, "b")).leased == 3 * DOLLAR
        hold = await ledger.reserve(request_of("a2", 9 * DOLLAR, "b"))
        ledger.settle(hold, cost_of(9 * DOLLAR))
        await ledger.close()
        window = await only_window(direct, "b")
        assert (window.spent, window.leased) == (9 * DOLLAR, 0)
        assert await verify(direct, tmp_path / "journal") == []
