"""Providers' batch APIs as lanes: gather lines, submit, poll, collect, re-attach after a restart.

Everything about a provider's batch is in SQL before the provider hears of it, under a name of ours,
so a submission whose answer was lost is found again by that name and never made twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import structlog

from gateway.batch.lane import new_id
from gateway.batch.line_runner import line_body, unmetered
from gateway.batch.native.api import (
    LineOutcome,
    NativeBatchApi,
    NativeError,
    NativeLine,
    NativeState,
    NativeStatus,
)
from gateway.batch.native.registry import native_api
from gateway.batch.native_money import NativeMoney
from gateway.batch.native_results import Collecting
from gateway.batch.offers import Turnaround as Quantiles
from gateway.batch.planning import NativeFacts
from gateway.batch.storage import FileStorage
from gateway.core import Endpoint
from gateway.errors import ApiError, Unauthenticated
from gateway.pipeline import Gateway
from gateway.policy.placement import NATIVE
from gateway.policy.turnaround import Turnaround
from gateway.providers.transport import Transport
from gateway.store.batches import BatchRow, batch_of_id
from gateway.store.native_batches import (
    OPEN_STATES,
    NativeMember,
    NativeRow,
    gather_lines,
    lanes_due,
    members_of,
    native_history,
    native_in,
    reopen_members,
    update_native,
)
from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request

log = structlog.get_logger()

LINES_MAX = 5_000  # of one provider's batch: as many holds are open at once
POLL_S_MIN, POLL_S_MAX = 2.0, 60.0
POLL_SHARE = 0.05  # of its age: young ones are looked at often
RETRY_S = 30.0
LOST_S_MAX = 900.0  # a submission that nobody can find for so long was not made
TEXTS_AT_ONCE = 64


class NativeLane:
    """All providers' batches of this gateway. Used from one event loop."""

    def __init__(self, gateway: Gateway, storage: FileStorage, transport: Transport) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._storage = storage
        self._transport = transport
        self._money: dict[str, NativeMoney] = {}
        self._turnarounds: dict[str, Turnaround] = {}
        self._open: dict[str, NativeRow] = {}
        self._next_poll_s: dict[str, float] = {}
        self._cancelling: set[str] = set()

    # What the planner wants to know

    def facts(self) -> NativeFacts:
        """Of this instant: endpoints with an API, turnarounds, since when each batch runs."""
        now = self._gateway.wall_clock()
        endpoints, turnarounds = set(), {}
        for endpoint in self._gateway.policy().endpoints.values():
            learned = self._turnaround(endpoint.id)
            if self._api(endpoint) is None:
                continue
            endpoints.add(endpoint.id)
            ages = tuple(
                now - row.submitted_at
                for row in self._open.values()
                if row.endpoint_id == endpoint.id and row.submitted_at is not None
            )
            p50_s, p95_s = learned.quantiles(ages)
            turnarounds[endpoint.id] = Quantiles(p50_s, p95_s, learned.opens_at_s)
        since = {row.id: row.submitted_at or now for row in self._open.values()}
        return NativeFacts(frozenset(endpoints), turnarounds, since)

    def _api(self, endpoint: Endpoint) -> NativeBatchApi | None:
        settings = self._gateway.settings
        provider = self._gateway.policy().providers.get(endpoint.provider)
        if provider is None or not provider.has_key:
            return None
        return native_api(
            endpoint,
            self._transport,
            secret=settings.secret(endpoint.key_env) if endpoint.key_env else None,
            verify_tls=provider.verify_tls,
            wall_clock=self._gateway.wall_clock,
        )

    def _turnaround(self, endpoint_id: str) -> Turnaround:
        return self._turnarounds.setdefault(endpoint_id, Turnaround())

    # At start

    async def take_over(self) -> None:
        """Know again what runs at providers, and how long they took before."""
        async with self._store.read() as connection:
            rows = await native_in(connection, *OPEN_STATES)
            for endpoint_id in self._gateway.policy().endpoints:
                for row in await native_history(connection, endpoint_id):
                    assert row.ended_at is not None

                    took_s = row.ended_at - (row.submitted_at or row.ended_at)
                    learned = self._turnaround(endpoint_id)
                    if row.error:
                        learned.gave_up(took_s)
                    else:
                        learned.finished(took_s)
        self._open = {row.id: row for row in rows}
        self._cancelling = {row.id for row in rows if row.state == "cancelling"}

    # Sending

    async def submit_due(self, rows: Sequence[BatchRow], *, now: float) -> list[str]:
        """Make providers' batches of lines whose time has come; returns the other lanes due."""
        by_id = {row.id: row for row in rows}
        async with self._store.read() as connection:
            due = await lanes_due(connection, list(by_id), now=now)
        for each in due:
            endpoint_id, _, kind = each.lane.rpartition("#")
            endpoint = self._gateway.policy().endpoints.get(endpoint_id)
            if kind == NATIVE and endpoint is not None:
                await self._submit(by_id[each.batch_id], endpoint, each.lane, now)
        return list(dict.fromkeys(each.lane for each in due))

    async def _submit(self, batch: BatchRow, endpoint: Endpoint, lane: str, now: float) -> None:
        api = self._api(endpoint)
        if api is None or self._turnaround(endpoint.id).opens_at_s > now:
            return
        row = NativeRow(
            id=new_id("nb_"),
            batch_id=batch.id,
            endpoint_id=endpoint.id,
            state="submitting",
            submitted_at=now,
        )
        async with self._store.begin() as connection:
            limit = min(LINES_MAX, api.facts.lines_max)
            members = await gather_lines(connection, row, lane=lane, now=now, limit=limit)
        if not members:
            return
        row = msgspec.structs.replace(row, num_lines=len(members))
        self._open[row.id] = row
        money = NativeMoney(
            self._gateway.ledger, endpoint, self._gateway.fleet.snapshot(), native_id=row.id
        )
        self._money[row.id] = money
        collecting = Collecting(self._gateway, batch, row, money)
        lines = self._lines(batch, row, members, money, collecting)
        try:
            sent = await api.submit(row.id, lines)
        except NativeError as error:
            await self._not_submitted(row, money, error, now)
            return
        except Exception as error:
            # Our own disk or bug, before anything was sent: the lines must not wait for it.
            log.error("native batch not made", id=row.id, error=error, exc_info=error)
            money.release_all("not submitted")
            await self._close(row, "lost", repr(error)[:500], now, not_before=now + RETRY_S)
            return
        finally:
            await collecting.flush(self._store)
        for refused in sent.refused:
            await collecting.refuse(_line_no(refused.custom_id), refused.message)
        await collecting.flush(self._store)
        await self._update(
            row,
            state="running",
            provider_batch_id=sent.batch_id,
            provider_file_id=sent.file_id,
            num_lines=sent.num_lines,
        )
        log.info("native batch submitted", id=row.id, endpoint=endpoint.id, lines=sent.num_lines)

    async def _lines(
        self,
        batch: BatchRow,
        row: NativeRow,
        members: Sequence[NativeMember],
        money: NativeMoney,
        collecting: Collecting,
    ) -> AsyncIterator[NativeLine]:
        """Each line with its money held; one that its budget cannot bear ends here."""
        surface = Surface(batch.surface)
        try:
            caller = unmetered(await self._gateway.authenticator.caller_of(batch.key_id))
        except Unauthenticated as error:
            for member in members:
                await collecting.fail(member.line_no, error)
            return
        for begin in range(0, len(members), TEXTS_AT_ONCE):
            part = members[begin : begin + TEXTS_AT_ONCE]
            texts = await self._storage.read_ranges(
                batch.input_file_id,
                [each.offset_bytes for each in part],
                [each.num_bytes for each in part],
            )
            for member, text in zip(part, texts, strict=True):
                parsed = parse_request(surface, line_body(text, ""))
                try:
                    await money.hold(member.line_no, parsed, caller, member.model)
                except ApiError as error:
                    await collecting.fail(member.line_no, error)
                    continue
                yield NativeLine(custom_id=f"{row.id}:{member.line_no}", parsed=parsed)

    async def _not_submitted(
        self, row: NativeRow, money: NativeMoney, error: NativeError, now: float
    ) -> None:
        if error.is_lost:
            # It may be there: `tend` looks for it by its name, and nothing is sent meanwhile.
            log.warning("native batch submitted without an answer", id=row.id, error=error.message)
            return
        log.warning("native batch refused", id=row.id, error=error.message)
        money.release_all(f"not submitted: {error.failure.value}")
        self._turnaround(row.endpoint_id).failed(now)
        await self._close(row, "lost", error.message, now, not_before=now + RETRY_S)

    # Watching

    async def tend(self, rows: Sequence[BatchRow], *, now: float) -> None:
        """Look at those whose time has come; collect what has ended."""
        by_id = {row.id: row for row in rows}
        for row in list(self._open.values()):
            if self._next_poll_s.get(row.id, 0.0) > now:
                continue
            age_s = now - (row.submitted_at or now)
            self._next_poll_s[row.id] = now + min(POLL_S_MAX, max(POLL_S_MIN, POLL_SHARE * age_s))
            endpoint = self._gateway.policy().endpoints.get(row.endpoint_id)
            api = self._api(endpoint) if endpoint is not None else None
            if endpoint is None or api is None:
                log.warning("native batch cannot be asked for: no endpoint or key", id=row.id)
                continue
            try:
                await self._look(row, by_id.get(row.batch_id), endpoint, api, now)
            except NativeError as error:
                log.warning("native batch not looked at", id=row.id, error=error.message)

    async def _look(
        self,
        row: NativeRow,
        batch: BatchRow | None,
        endpoint: Endpoint,
        api: NativeBatchApi,
        now: float,
    ) -> None:
        if row.state == "submitting":
            found = await self._find(row, api, now)
            if found is None:
                return
            row = found
        if row.id in self._cancelling and row.state == "running":
            status = await api.cancel(row.provider_batch_id)
            row = await self._update(row, state="cancelling")
        else:
            status = await api.poll(row.provider_batch_id)
        if status.state in (NativeState.ENDED, NativeState.FAILED):
            await self._collect(row, batch, endpoint, api, status, now)

    async def _find(self, row: NativeRow, api: NativeBatchApi, now: float) -> NativeRow | None:
        """Whether the provider has a submission whose answer we never got."""
        known = [each.provider_batch_id for each in self._open.values() if each.provider_batch_id]
        found = await api.find(
            row.id,
            submitted_at_s=row.submitted_at or now,
            num_lines=row.num_lines,
            known_ids=known,
        )
        if found.status is not None:
            log.info("native batch found again", id=row.id)
            return await self._update(row, state="running", provider_batch_id=found.status.batch_id)
        is_over = now - (row.submitted_at or now) > LOST_S_MAX
        if found.is_certain or is_over:
            if (money := self._money.get(row.id)) is not None:
                money.release_all("the provider never got it")
            await self._close(row, "lost", "the provider never got it", now)
        return None

    async def _collect(
        self,
        row: NativeRow,
        batch: BatchRow | None,
        endpoint: Endpoint,
        api: NativeBatchApi,
        status: NativeStatus,
        now: float,
    ) -> None:
        """Settle and keep every result; what has none is open again, or ends with its batch."""
        if batch is None:
            batch = await self._batch_of(row)
            if batch is None:
                return
        money = self._money.get(row.id) or NativeMoney(
            self._gateway.ledger, endpoint, self._gateway.fleet.snapshot(), native_id=row.id
        )
        collecting = Collecting(self._gateway, batch, row, money)
        if status.state is NativeState.ENDED:
            async for result in api.results(row.provider_batch_id):
                if result.outcome in (LineOutcome.SUCCEEDED, LineOutcome.ERRORED):
                    await collecting.take(_line_no(result.custom_id), result, endpoint)
                if collecting.is_full:
                    await collecting.flush(self._store)
        await collecting.flush(self._store)
        async with self._store.read() as connection:
            missing = await members_of(connection, row)
        await collecting.release(self._store, [each.line_no for each in missing])
        learned = self._turnaround(row.endpoint_id)
        took_s = (status.ended_at_s or now) - (row.submitted_at or now)
        if status.state is NativeState.FAILED:
            learned.failed(now)
        elif missing:
            learned.gave_up(took_s)
        else:
            learned.finished(took_s)
        reason = "; ".join(each.message for each in status.errors)[:500]
        word = "" if not missing else reason or status.outcome or "lines undone"
        await self._close(row, "collected", word, now, batch=batch)

    async def _batch_of(self, row: NativeRow) -> BatchRow | None:
        async with self._store.read() as connection:
            return await batch_of_id(connection, row.batch_id)

    async def _close(
        self,
        row: NativeRow,
        state: str,
        error: str,
        now: float,
        *,
        batch: BatchRow | None = None,
        not_before: float | None = None,
    ) -> None:
        ends_as = "open"
        if batch is not None and batch.state == "cancelling":
            ends_as = "cancelled"
        elif batch is not None and batch.deadline_at <= now:
            ends_as = "expired"
        async with self._store.begin() as connection:
            await reopen_members(connection, row, state=ends_as, not_before=not_before, now=now)
            await update_native(connection, row.id, state=state, error=error, ended_at=now)
        self._open.pop(row.id, None)
        self._money.pop(row.id, None)
        self._next_poll_s.pop(row.id, None)
        self._cancelling.discard(row.id)

    async def _update(self, row: NativeRow, **values: object) -> NativeRow:
        async with self._store.begin() as connection:
            await update_native(connection, row.id, **values)
        changed = msgspec.structs.replace(row, **values)
        self._open[row.id] = changed
        return changed

    # Stopping

    async def cancel(self, native_id: str) -> None:
        """Its provider is asked to stop at the next look, which is now; results are collected."""
        if native_id in self._open:
            self._cancelling.add(native_id)
            self._next_poll_s.pop(native_id, None)

    async def cancel_batch(self, batch_id: str) -> None:
        for row in self._open.values():
            if row.batch_id == batch_id and row.id not in self._cancelling:
                await self.cancel(row.id)


def _line_no(custom_id: str) -> int:
    return int(custom_id.rpartition(":")[2])
