"""Lines of a native lane → a provider's batch, each with its money held.

Everything about a provider's batch is in SQL before the provider hears of it, under a name of ours,
so a submission whose answer was lost is found again by that name and never made twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import structlog

from gateway.batch.lane import new_id
from gateway.batch.line_runner import line_body, unmetered
from gateway.batch.native.api import NativeBatchApi, NativeError, NativeLine, Submitted
from gateway.batch.native_money import NativeMoney
from gateway.batch.native_open import OpenNatives
from gateway.batch.native_results import Collecting, line_no_of
from gateway.batch.storage import FileStorage
from gateway.core import Endpoint
from gateway.errors import ApiError, Unauthenticated
from gateway.pipeline import Gateway
from gateway.store.batches import BatchRow
from gateway.store.native_batches import NativeMember, NativeRow, gather_lines
from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request

log = structlog.get_logger()

LINES_MAX = 5_000  # of one provider's batch: as many holds are open at once
RETRY_S = 30.0
TEXTS_AT_ONCE = 64


class Submitting:
    """Makes one provider's batch of what waits on a lane."""

    def __init__(self, gateway: Gateway, storage: FileStorage, natives: OpenNatives) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._storage = storage
        self._natives = natives

    async def submit(self, batch: BatchRow, endpoint: Endpoint, lane: str) -> None:
        """Raises FileNotFoundError where the batch's input is gone; nothing is left of it then."""
        now = self._gateway.wall_clock()
        api = self._natives.api(endpoint)
        if api is None or self._natives.turnaround(endpoint.id).opens_at_s > now:
            return
        live = self._gateway.fleet.live(endpoint.id)
        if live is not None and live.held:
            return
        row = NativeRow(
            id=new_id("nb_"),
            batch_id=batch.id,
            endpoint_id=endpoint.id,
            state="submitting",
            owner=self._natives.owner,
            submitted_at=now,
            polled_at=now,
        )
        with self._natives.making(row):
            async with self._store.begin() as connection:
                limit = min(LINES_MAX, api.facts.lines_max)
                members = await gather_lines(connection, row, lane=lane, now=now, limit=limit)
            if members:
                row = msgspec.structs.replace(row, num_lines=len(members))
                await self._make(batch, row, members, endpoint, api)

    async def _make(
        self,
        batch: BatchRow,
        row: NativeRow,
        members: Sequence[NativeMember],
        endpoint: Endpoint,
        api: NativeBatchApi,
    ) -> None:
        self._natives.add(row)
        money = self._natives.money(row, endpoint)
        collecting = Collecting(self._gateway, batch, row, money)
        try:
            sent = await api.submit(row.id, self._lines(batch, row, members, money, collecting))
        except NativeError as error:
            await collecting.flush(self._store)
            await self._not_submitted(row, money, error)
        except Exception as error:
            # Our own disk or bug, before anything was sent: the lines must not wait for it.
            await collecting.flush(self._store)
            log.error("native batch not made", id=row.id, error=error)
            money.release_all("not submitted")
            not_before = self._gateway.wall_clock() + RETRY_S
            await self._natives.close(row, "lost", repr(error)[:500], not_before=not_before)
            raise
        else:
            await self._submitted(row, sent, collecting)

    async def _submitted(self, row: NativeRow, sent: Submitted, collecting: Collecting) -> None:
        for refused in sent.refused:
            await collecting.refuse(line_no_of(refused.custom_id), refused.message)
        await collecting.flush(self._store)
        await self._natives.update(
            row,
            state="running",
            provider_batch_id=sent.batch_id,
            provider_file_id=sent.file_id,
            num_lines=sent.num_lines,
        )
        log.info("native batch submitted", id=row.id, lines=sent.num_lines)

    async def _not_submitted(self, row: NativeRow, money: NativeMoney, error: NativeError) -> None:
        if error.is_lost:
            # It may be there: it is looked for by its name, and nothing is sent meanwhile.
            log.warning("native batch submitted without an answer", id=row.id, error=error.message)
            return
        now = self._gateway.wall_clock()
        if not money.num_open:  # every line ended on the way: that there are none is nobody's fault
            await self._natives.close(row, "lost", "no line could be sent")
            return
        money.release_all(f"not submitted: {error.failure.value}")
        log.warning("native batch refused", id=row.id, error=error.message)
        self._natives.turnaround(row.endpoint_id).failed(now)
        await self._natives.close(row, "lost", error.message, not_before=now + RETRY_S)

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
        # In SQL before the provider begins: whoever collects in our place can correct it there.
        await self._gateway.ledger.flush()
