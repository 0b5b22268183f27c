"""Looks at providers' batches: polls, cancels, finds those whose answer was lost, collects."""

from __future__ import annotations

import structlog

from gateway.batch.native.api import (
    LineOutcome,
    NativeBatchApi,
    NativeError,
    NativeState,
    NativeStatus,
)
from gateway.batch.native_open import OpenNatives
from gateway.batch.native_results import Collecting, line_no_of
from gateway.core import Endpoint
from gateway.pipeline import Gateway
from gateway.store.batches import BatchRow, batch_of_id
from gateway.store.native_batches import NativeRow, has_unsettled, members_of

log = structlog.get_logger()

LOST_S_MAX = 900.0  # a submission that nobody can find for so long was not made
GIVE_UP_S = 3_600.0  # after its batch's deadline: what cannot be collected by then is let go


class Watching:
    """Of this process's batches, one look at a time each."""

    def __init__(self, gateway: Gateway, natives: OpenNatives) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._natives = natives

    async def look(self, row: NativeRow) -> None:
        """What a provider does not answer waits for the next look, or in the end is let go."""
        async with self._store.read() as connection:
            batch = await batch_of_id(connection, row.batch_id)
        if batch is None:
            return
        endpoint = self._gateway.policy().endpoints.get(row.endpoint_id)
        api = self._natives.api(endpoint) if endpoint is not None else None
        if endpoint is None or api is None:
            await self._put_off(row, batch, "no endpoint or key for it any more")
            return
        try:
            await self._look(row, batch, endpoint, api)
        except NativeError as error:
            await self._put_off(row, batch, error.message)

    async def _put_off(self, row: NativeRow, batch: BatchRow, reason: str) -> None:
        now = self._gateway.wall_clock()
        log.warning("native batch not looked at", id=row.id, reason=reason)
        ends_at = batch.deadline_at
        if batch.cancelling_at is not None:
            ends_at = min(ends_at, batch.cancelling_at)
        if now - ends_at < GIVE_UP_S:
            return
        self._natives.estimate(row.id)
        log.error("native batch given up", id=row.id, reason=reason)
        await self._natives.close(row, "lost", f"given up: {reason}"[:500])

    async def _look(
        self, row: NativeRow, batch: BatchRow, endpoint: Endpoint, api: NativeBatchApi
    ) -> None:
        if row.state == "submitting":
            found = await self._find(row, batch, endpoint, api)
            if found is None:
                return
            row = found
        if row.id in self._natives.cancelling and row.state == "running":
            status = await api.cancel(row.provider_batch_id)
            row = await self._natives.update(row, state="cancelling")
        else:
            status = await api.poll(row.provider_batch_id)
        if status.state in (NativeState.ENDED, NativeState.FAILED):
            await self._collect(row, batch, endpoint, api, status)

    async def _find(
        self, row: NativeRow, batch: BatchRow, endpoint: Endpoint, api: NativeBatchApi
    ) -> NativeRow | None:
        """Whether the provider has a submission whose answer we never got."""
        now = self._gateway.wall_clock()
        known = [
            each.provider_batch_id for each in self._natives.rows.values() if each.provider_batch_id
        ]
        found = await api.find(
            row.id,
            submitted_at_s=row.submitted_at or now,
            num_lines=row.num_lines,
            known_ids=known,
        )
        if found.status is not None:
            log.info("native batch found again", id=row.id)
            batch_id = found.status.batch_id
            return await self._natives.update(row, state="running", provider_batch_id=batch_id)
        if found.is_certain or now - (row.submitted_at or now) > LOST_S_MAX:
            if await self._is_early(row):
                return None
            await self._release_undone(row, batch, endpoint)
            await self._natives.close(row, "lost", "the provider never got it")
        return None

    async def _is_early(self, row: NativeRow) -> bool:
        """A dead process's attempts are estimated first: only what is settled can be corrected."""
        async with self._store.read() as connection:
            return not self._natives.has_holds(row.id) and await has_unsettled(connection, row)

    async def _collect(
        self,
        row: NativeRow,
        batch: BatchRow,
        endpoint: Endpoint,
        api: NativeBatchApi,
        status: NativeStatus,
    ) -> None:
        """Settle and keep every result; what has none is open again, or ends with its batch."""
        if await self._is_early(row):
            return
        collecting = Collecting(self._gateway, batch, row, self._natives.money(row, endpoint))
        if status.state is NativeState.ENDED:
            async for result in api.results(row.provider_batch_id):
                if result.outcome in (LineOutcome.SUCCEEDED, LineOutcome.ERRORED):
                    await collecting.take(line_no_of(result.custom_id), result, endpoint)
                if collecting.is_full:
                    await collecting.flush(self._store)
        await collecting.flush(self._store)
        num_undone = await self._release_undone(row, batch, endpoint)
        now = self._gateway.wall_clock()
        learned = self._natives.turnaround(row.endpoint_id)
        took_s = (status.ended_at_s or now) - (row.submitted_at or now)
        if status.state is NativeState.FAILED:
            learned.failed(now)
        elif num_undone:
            learned.gave_up(took_s)
        else:
            learned.finished(took_s)
        reason = "; ".join(each.message for each in status.errors)[:500]
        word = "" if not num_undone else reason or status.outcome or "lines undone"
        await self._natives.close(row, "collected", word)
        await self._delete_files(row, api, status)

    async def _delete_files(
        self, row: NativeRow, api: NativeBatchApi, status: NativeStatus
    ) -> None:
        """All that was in them is kept here. Once, and no harm if it fails: they expire there."""
        wanted = (row.provider_file_id, status.output_file_id, status.error_file_id)
        try:
            await api.delete_files([each for each in wanted if each])
        except NativeError as error:
            log.warning("files of a native batch not deleted", id=row.id, reason=error.message)

    async def _release_undone(self, row: NativeRow, batch: BatchRow, endpoint: Endpoint) -> int:
        async with self._store.read() as connection:
            undone = await members_of(connection, row)
        collecting = Collecting(self._gateway, batch, row, self._natives.money(row, endpoint))
        await collecting.release(self._store, [each.line_no for each in undone])
        return len(undone)
