"""What is kept for a time is gone after it, however much there is of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.app.housekeeping import REQUESTS_KEEP_S, Housekeeping
from gateway.app.load_polling import LoadPoller
from gateway.app.policy_source import FilePolicySource
from gateway.prices.book import PriceBook
from gateway.providers.httpx_transport import HttpxTransport
from gateway.store.requests import PURGE_ROWS_MAX, RequestRow, insert_requests
from gateway.store.tables import requests
from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, answers

pytestmark = pytest.mark.anyio


async def test_old_requests_go_however_many_there_are(tmp_path: Path) -> None:
    num_old = 2 * PURGE_ROWS_MAX + 7
    async with edge(tmp_path, answers(COMPLETION)) as world:
        gateway = world.gateway
        old_at = gateway.wall_clock() - REQUESTS_KEEP_S - 60
        row = RequestRow(
            id="", tenant_id="t", team_id="m", key_id="k", created_at=old_at, surface="chat",
            model="m", lane="interactive", stream=False,
        )  # fmt: skip
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        rows = [RequestRow(**{**values, "id": f"old{idx}"}) for idx in range(num_old)]
        fresh = RequestRow(**{**values, "id": "fresh", "created_at": gateway.wall_clock()})
        async with gateway.store.begin() as connection:
            await insert_requests(connection, [*rows, fresh])
        source = FilePolicySource(tmp_path / "policy.yaml", gateway.settings.environ)
        poller = LoadPoller(gateway, HttpxTransport())
        await Housekeeping(gateway, source, PriceBook(), poller)._purge()
        async with gateway.store.read() as connection:
            left = list((await connection.execute(sa.select(requests.c.id))).scalars())

    assert left == ["fresh"]
