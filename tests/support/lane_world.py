"""The batch lane in this process: a real gateway's parts, a database, simulated providers, no HTTP
edge. The worker runs only when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app.compose import running_gateway, running_store
from gateway.app.policy_source import FilePolicySource
from gateway.batch import service
from gateway.batch.creating import Wish
from gateway.batch.file_handlers import keep_file
from gateway.batch.intake import taking_in
from gateway.batch.lane import BatchLane, new_id
from gateway.batch.native_lane import NativeLane
from gateway.batch.planning import LanePlanner
from gateway.batch.storage import open_storage
from gateway.batch.worker import BatchWorker
from gateway.core import Caller, dollars_per_million
from gateway.keys.service import create_key
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import NewKey
from gateway.ledger.verify import verify
from gateway.pipeline import Gateway
from gateway.providers.httpx_transport import HttpxTransport
from gateway.settings import Settings
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.serve import RunningProvider, start_simulated
from gateway.store.batches import BatchRow, LineCounts
from gateway.store.engine import Store
from gateway.store.files import FileRow
from gateway.wire.pieces import Surface
from tests.support.batch_books import Compared, compared
from tests.support.batch_world import joined_lines

WAIT_S = 30.0


@dataclass(slots=True)
class LaneWorld:
    """One process's lane."""

    gateway: Gateway
    lane: BatchLane
    native: NativeLane
    planner: LanePlanner
    worker: BatchWorker
    caller: Caller
    providers: Mapping[str, RunningProvider]
    home: Path

    @property
    def store(self) -> Store:
        return self.gateway.store

    async def upload(self, lines: Sequence[Mapping[str, Any]]) -> FileRow:
        file_id, now = new_id("file-"), time.time()
        async with taking_in(self.lane.storage, file_id, line_bytes_max=2**20) as intake:
            await intake.feed(joined_lines(lines))
            index = intake.finish()
        row = FileRow(
            id=file_id,
            tenant_id=self.caller.tenant_id,
            key_id=self.caller.key_id,
            filename="in.jsonl",
            purpose="batch",
            num_bytes=intake.num_bytes,
            num_lines=len(index.lines),
            storage_key=file_id,
            created_at=now,
            expires_at=now + 3_600.0,
        )
        await keep_file(self.lane, row, index)
        return row

    async def make(self, lines: Sequence[Mapping[str, Any]], window_s: float = 86_400.0) -> str:
        """The id of a batch over these lines."""
        file = await self.upload(lines)
        wish = Wish(surface=Surface.CHAT, completion_window="24h", window_s=window_s)
        return (await service.create(self.lane, self.caller, wish, file, dialect="openai")).id

    async def look(self, batch_id: str) -> tuple[BatchRow, LineCounts]:
        return await service.find(self.lane, self.caller, batch_id)

    async def ended(self, batch_id: str, wait_s: float = WAIT_S) -> tuple[BatchRow, LineCounts]:
        found: list[tuple[BatchRow, LineCounts]] = []

        async def is_ended() -> bool:
            found[:] = [await self.look(batch_id)]
            return found[0][0].is_ended

        await until(is_ended, f"{batch_id} to end", wait_s=wait_s)
        return found[0]

    async def rows(self, query: str) -> list[dict[str, Any]]:
        async with self.store.read() as connection:
            return [dict(row) for row in (await connection.exec_driver_sql(query)).mappings()]

    async def books(self) -> Compared:
        """All that was booked against all that was invoiced; the ledger must balance."""
        await self.gateway.ledger.flush()
        assert await verify(self.store, self.home / "journal") == []
        invoices = [
            {"client_request_id": line.client_request_id, "cost_nanos": line.cost_nanos}
            for each in self.providers.values()
            for line in each.provider.books.lines
        ]
        return compared(
            await self.rows("SELECT * FROM attempts"),
            await self.rows("SELECT * FROM corrections"),
            invoices,
        )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.worker.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], Any], what: str, *, wait_s: float = WAIT_S) -> None:
    """Wait until `await holds()`; fails the test when it does not in time."""
    deadline_s = time.monotonic() + wait_s
    while not await holds():
        assert time.monotonic() < deadline_s, f"waited {wait_s} s for {what}"
        await asyncio.sleep(0.05)


def policy_text(
    providers: Mapping[str, RunningProvider], models: Mapping[str, Sequence[str]]
) -> str:
    """Each provider at its own price, with its batch API if it has one."""
    lines = ["version: 1", "providers:"]
    for name, each in providers.items():
        quirks = ", quirks: [native_batch]" if each.provider.profile.batch is not None else ""
        lines.append(
            f'  {name}: {{base_url: "{each.base_url}", network: private, simulated: true{quirks}}}'
        )
    lines.append("models:")
    for model, names in models.items():
        lines.append(f"  {model}:")
        for name in names:
            profile = providers[name].provider.profile
            prices = ", ".join(
                f"{bucket}: {dollars_per_million(getattr(profile.price, bucket))}"
                for bucket in ("input", "cached_read", "output")
            )
            lines.append(
                f"    - {{provider: {name}, model: {profile.model}, canonical: sim, "
                f"context: {profile.context_tokens_max}, price: {{{prices}}}}}"
            )
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def lane_world(
    home: Path,
    profiles: Sequence[ProviderProfile],
    models: Mapping[str, Sequence[str]],
    *,
    key: NewKey | None = None,
) -> AsyncIterator[LaneWorld]:
    """`models`: public name → provider names."""
    async with AsyncExitStack() as stack:
        providers = {each.provider.profile.name: each for each in await start_simulated(profiles)}
        for each in providers.values():
            stack.push_async_callback(each.aclose)
        file = home / "policy.yaml"
        file.write_text(policy_text(providers, models))
        settings = Settings.from_environment({"LOOPROUTER_HOME": str(home)})
        store = await stack.enter_async_context(running_store(settings))
        now = time.time()
        tenant_id = await ensure_tenant(store, "default", "default", now=now)
        wanted = key or NewKey(name="test")
        issued = await create_key(store, settings.pepper(), tenant_id, wanted, now=now)
        source = FilePolicySource(file, settings.environ)
        gateway, _ = await stack.enter_async_context(running_gateway(settings, store, source))
        transport = HttpxTransport(clock=gateway.clock)
        stack.push_async_callback(transport.aclose)
        caller = await gateway.authenticate({"authorization": f"Bearer {issued.key}"})
        yield built(gateway, transport, caller, providers, home, owner="worker-1")


def built(
    gateway: Gateway,
    transport: HttpxTransport,
    caller: Caller,
    providers: Mapping[str, RunningProvider],
    home: Path,
    *,
    owner: str,
) -> LaneWorld:
    storage = open_storage("", home)
    native = NativeLane(gateway, storage, transport, owner=owner)
    planner = LanePlanner(gateway.policy, gateway.fleet, gateway.store, native.facts)
    worker = BatchWorker(gateway, storage, planner, native, owner=owner)
    lane = BatchLane(gateway, storage, planner, worker.wake)
    return LaneWorld(gateway, lane, native, planner, worker, caller, providers, home)
