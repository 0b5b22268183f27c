"""The providers' batches that are this process's to ask for: rows, holds, and when to look next.

A row belongs to one process, which has the holds of its lines. Where that one falls silent another
takes the row, and the ledger's estimates are corrected by what the provider then says.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

import msgspec
import structlog

from gateway.batch.native.api import NativeBatchApi
from gateway.batch.native.registry import native_api
from gateway.batch.native_money import NativeMoney
from gateway.core import Endpoint
from gateway.pipeline import Gateway
from gateway.policy.turnaround import Turnaround
from gateway.providers.transport import Transport
from gateway.store.batches import batch_of_id
from gateway.store.native_batches import (
    NativeRow,
    leave_natives,
    native_history,
    reopen_members,
    take_natives,
    update_native,
)

log = structlog.get_logger()

POLL_S_MIN, POLL_S_MAX = 2.0, 60.0
POLL_SHARE = 0.05  # of its age: young ones are looked at often
SILENT_S = 60.0  # without a word its process is taken for dead


class OpenNatives:
    """Used from one event loop."""

    def __init__(self, gateway: Gateway, transport: Transport, *, owner: str) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._transport = transport
        self.owner = owner
        self.rows: dict[str, NativeRow] = {}
        self.cancelling: set[str] = set()
        self._in_making: set[str] = set()
        self._money: dict[str, NativeMoney] = {}
        self._turnarounds: dict[str, Turnaround] = {}
        self._next_look_s: dict[str, float] = {}

    def turnaround(self, endpoint_id: str) -> Turnaround:
        return self._turnarounds.setdefault(endpoint_id, Turnaround())

    def api(self, endpoint: Endpoint) -> NativeBatchApi | None:
        """None where its provider has no batch API that we speak, or we have no key for it."""
        provider = self._gateway.policy().providers.get(endpoint.provider)
        if provider is None or not provider.has_key:
            return None
        return native_api(
            endpoint,
            self._transport,
            secret=self._gateway.settings.secret(endpoint.key_env) if endpoint.key_env else None,
            verify_tls=provider.verify_tls,
            wall_clock=self._gateway.wall_clock,
        )

    # Whose they are

    async def learn(self) -> None:
        """How long the batches of each endpoint took before."""
        async with self._store.read() as connection:
            for endpoint_id in self._gateway.policy().endpoints:
                learned = self.turnaround(endpoint_id)
                for row in await native_history(connection, endpoint_id):
                    assert row.ended_at is not None

                    took_s = row.ended_at - (row.submitted_at or row.ended_at)
                    if row.error:
                        learned.gave_up(took_s)
                    else:
                        learned.finished(took_s)

    async def renew(self, *, is_first: bool = False) -> None:
        """Say that we live, and take what dead processes left; on SQLite at start all there is."""
        now = self._gateway.wall_clock()
        silent_since = now if is_first and self._store.is_sqlite else now - SILENT_S
        async with self._store.begin() as connection:
            mine = await take_natives(
                connection, owner=self.owner, now=now, silent_since=silent_since
            )
        for row in mine:
            if row.id not in self.rows and row.id not in self._in_making:
                log.info("native batch taken over", id=row.id)
                self.rows[row.id] = row
                if row.state == "cancelling":
                    self.cancelling.add(row.id)
        known = {row.id for row in mine}
        for native_id, row in list(self.rows.items()):
            if native_id not in known and (row.submitted_at or 0.0) < now - SILENT_S:
                log.warning("native batch lost to another process", id=native_id)
                self._lost(native_id)

    async def leave(self) -> None:
        """Settle what is held by estimate: whoever collects it corrects that."""
        for native_id in self._money:
            self.estimate(native_id)
        async with self._store.begin() as connection:
            await leave_natives(connection, owner=self.owner)

    def _lost(self, native_id: str) -> None:
        """Whoever has it now corrects what is settled, so nothing may stay open here."""
        self.estimate(native_id)
        self._forget(native_id)

    # Each

    def money(self, row: NativeRow, endpoint: Endpoint) -> NativeMoney:
        """Its holds; none of them are ours where an earlier process made it."""
        found = self._money.get(row.id)
        if found is None:
            found = self._money[row.id] = NativeMoney(
                self._gateway.ledger, endpoint, self._gateway.fleet.snapshot(), native_id=row.id
            )
        return found

    def has_holds(self, native_id: str) -> bool:
        """Whether its money is held here: it was submitted by this process."""
        money = self._money.get(native_id)
        return money is not None and money.num_open > 0

    def estimate(self, native_id: str) -> None:
        """Settle what is held of it by what was expected."""
        if (money := self._money.get(native_id)) is not None:
            money.estimate_all()

    def add(self, row: NativeRow) -> None:
        self.rows[row.id] = row

    @contextmanager
    def making(self, row: NativeRow) -> Iterator[None]:
        """While it is being submitted nobody looks for it at its provider."""
        self._in_making.add(row.id)
        try:
            yield
        finally:
            self._in_making.discard(row.id)

    def due(self, now: float, *, but_of: Container[str] = ()) -> list[NativeRow]:
        """Those to look at now, but for these endpoints'; each is not due again for a while."""
        found = [
            row
            for row in self.rows.values()
            if row.endpoint_id not in but_of
            and row.id not in self._in_making
            and self._next_look_s.get(row.id, 0.0) <= now
        ]
        for row in found:
            age_s = now - (row.submitted_at or now)
            wait_s = min(POLL_S_MAX, max(POLL_S_MIN, POLL_SHARE * age_s))
            self._next_look_s[row.id] = now + wait_s
        return found

    def cancel(self, native_id: str) -> None:
        """Its provider is asked to stop at the next look, which is now."""
        if native_id in self.rows and native_id not in self.cancelling:
            self.cancelling.add(native_id)
            self._next_look_s.pop(native_id, None)

    async def update(self, row: NativeRow, **values: object) -> NativeRow:
        async with self._store.begin() as connection:
            await update_native(connection, row.id, **values)
        changed = msgspec.structs.replace(row, **values)
        if row.id in self.rows:
            self.rows[row.id] = changed
        return changed

    async def close(
        self, row: NativeRow, state: str, error: str, *, not_before: float | None = None
    ) -> None:
        """Its lines that have not ended are open again, or end with their batch."""
        now = self._gateway.wall_clock()
        async with self._store.begin() as connection:
            batch = await batch_of_id(connection, row.batch_id)
            ends_as = "open"
            if batch is not None and batch.state == "cancelling":
                ends_as = "cancelled"
            elif batch is not None and (batch.is_ended or batch.deadline_at <= now):
                ends_as = "expired"
            await reopen_members(connection, row, state=ends_as, not_before=not_before, now=now)
            await update_native(connection, row.id, state=state, error=error, ended_at=now)
        self._forget(row.id)

    def _forget(self, native_id: str) -> None:
        self.rows.pop(native_id, None)
        self._money.pop(native_id, None)
        self._next_look_s.pop(native_id, None)
        self.cancelling.discard(native_id)
