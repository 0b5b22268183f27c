"""Keeps batches going: plans, claims lines, sends them, ends batches. One a serving process.

Everything that must survive is in SQL: a worker that was killed left claims, which are taken over
once their time is up (on SQLite at once: there is no other process), and answers, which are kept
before they are paid for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.batch.creating import fail_half_created
from gateway.batch.keeper import Keeper
from gateway.batch.line_client import LineClient
from gateway.batch.line_runner import LineRun, key_refused
from gateway.batch.native_lane import NativeLane
from gateway.batch.offers import places_for_batch
from gateway.batch.output import OutputWriter, fail
from gateway.batch.planning import LanePlanner
from gateway.batch.storage import FileStorage
from gateway.core import Caller
from gateway.errors import ServiceError, Unauthenticated
from gateway.pipeline import Gateway
from gateway.policy.placement import NATIVE
from gateway.store.batch_work import (
    ClaimedLine,
    claim_lines,
    drop_claims,
    end_open_lines,
    free_claims,
    put_back,
    renew_claims,
)
from gateway.store.batches import BatchRow, batches_in, move_batch, unended_of
from gateway.store.native_batches import LaneDue, lanes_due

log = structlog.get_logger()

LOOK_S = 1.0
PAUSE_S = 0.1
PLAN_S = 60.0
CLAIM_S = 60.0
RENEW_S = 15.0
CLAIM_ROWS_MAX = 64  # of one lane at a time
LINES_AT_ONCE_MAX = 256  # of one process
GRACE_S = 60.0  # for lines under way at the deadline
RETRY_S = 1.0
STORAGE_RETRY_S = 10.0
CREATE_S_MAX = 900.0  # a batch that takes longer to make has lost its maker
STOP_S = 10.0


class BatchWorker:
    """`run()` until cancelled; `wake()` when there is something new."""

    def __init__(
        self,
        gateway: Gateway,
        storage: FileStorage,
        planner: LanePlanner,
        native: NativeLane,
        *,
        owner: str,
    ) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._storage = storage
        self._planner = planner
        self._native = native
        self._owner = owner
        self._keeper = Keeper(gateway.store)
        self._output = OutputWriter(gateway.store, storage)
        self._running: dict[tuple[str, int], tuple[asyncio.Task[None], LineClient]] = {}
        self._by_endpoint: dict[str, int] = {}
        self._something = asyncio.Event()
        self._planned_at_s = -PLAN_S
        self._known: frozenset[str] = frozenset()
        self._due: list[LaneDue] = []
        self._due_at_s = -LOOK_S

    @property
    def num_running(self) -> int:
        return len(self._running)

    def wake(self) -> None:
        self._something.set()

    async def run(self) -> None:
        side = [asyncio.create_task(work()) for work in (self._keeper.run, self._renew)]
        for each in side:
            each.add_done_callback(_tell_of_end)
        try:
            await self._until_done(self._take_over)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._something.wait()
                self._something.clear()
                await self._until_done(self._round)
                # Lines end many a second: a round each would count them all each time.
                await asyncio.sleep(PAUSE_S)
        finally:
            await self._stop(side)

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        """A database that is away costs time, and a bug of ours one round: others' lines go on."""
        try:
            await work()
        except (SQLAlchemyError, OSError, TimeoutError, ServiceError) as error:
            log.warning("batch work failed, will try again", error=error)
            await asyncio.sleep(RETRY_S)
        except Exception as error:
            log.error("batch work failed by our own fault", error=error, exc_info=error)
            await asyncio.sleep(RETRY_S)

    async def _stop(self, side: Sequence[asyncio.Task[None]]) -> None:
        """Lines under way end as if their client had left: settled, and open again."""
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        for work in (self._native.stop, self._keeper.flush, self._drop_claims):
            try:
                await work()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("batch work is left for the next start", error=error)
        for each in side:
            each.cancel()
        await asyncio.gather(*side, return_exceptions=True)

    async def _drop_claims(self) -> None:
        async with self._store.begin() as connection:
            await drop_claims(connection, owner=self._owner)

    # Once

    async def _take_over(self) -> None:
        now = self._gateway.wall_clock()
        async with self._store.begin() as connection:
            alone = self._owner if self._store.is_sqlite else ""
            freed = await free_claims(connection, now=now, owner_not=alone)
        half = await self._fail_half_created(0.0 if self._store.is_sqlite else CREATE_S_MAX)
        if freed or half:
            log.info("batch work taken over", lines=freed, half_created=half)
        await self._native.take_over()

    async def _fail_half_created(self, age_s: float) -> int:
        """Batches that nobody makes any more: so old, and still not whole."""
        now = self._gateway.wall_clock()
        async with self._store.read() as connection:
            rows = await batches_in(connection, "validating")
        half = [row for row in rows if now - row.created_at >= age_s]
        for row in half:
            await fail_half_created(self._store, row.id, now=now)
        return len(half)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self._until_done(self._renew_once)

    async def _renew_once(self) -> None:
        now = self._gateway.wall_clock()
        async with self._store.begin() as connection:
            running = list(self._running)
            await renew_claims(connection, running, owner=self._owner, until=now + CLAIM_S)
            await free_claims(connection, now=now)
        await self._native.renew()
        await self._fail_half_created(CREATE_S_MAX)

    # A round

    async def _round(self) -> None:
        if self._gateway.is_draining:
            return
        now = self._gateway.wall_clock()
        async with self._store.read() as connection:
            rows = await batches_in(connection, "in_progress", "cancelling", "finalizing")
            unended = await unended_of(connection, [row.id for row in rows])
        active: list[BatchRow] = []
        busy = {batch_id for batch_id, _ in self._running}
        for row in rows:
            if row.state == "cancelling":
                await self._cancel(row, now)
            elif row.state == "in_progress" and row.deadline_at <= now:
                await self._expire(row, now)
            elif row.state == "in_progress":
                active.append(row)
            # The last lines' money may be on its way still.
            if row.id not in unended and row.id not in busy:
                await self._end(row, now)
        await self._plan([row for row in active if row.id in unended], now)
        await self._look_for_due(active, now)
        self._native.serve(
            rows, self._due, now=now, input_gone=self._fail_input, wake=self.wake_to_look
        )
        await self._claim(now)

    def wake_to_look(self) -> None:
        """What is due may have changed: see at once."""
        self._due_at_s = -LOOK_S
        self.wake()

    async def _look_for_due(self, active: Sequence[BatchRow], now: float) -> None:
        """Once a second: it reads every open line."""
        known = {row.id for row in active}
        clock_s = self._gateway.clock()
        if clock_s - self._due_at_s >= LOOK_S:
            async with self._store.read() as connection:
                self._due = await lanes_due(connection, list(known), now=now)
            self._due_at_s = clock_s
        self._due = [each for each in self._due if each.batch_id in known]

    async def _cancel(self, row: BatchRow, now: float) -> None:
        """What was not sent is not sent; what runs ends as if its client had left."""
        async with self._store.begin() as connection:
            if await end_open_lines(connection, row.id, state="cancelled", now=now):
                self.wake()
        self._stop_lines(row.id, "cancelled")
        self._native.cancel_batch(row.id)

    async def _expire(self, row: BatchRow, now: float) -> None:
        async with self._store.begin() as connection:
            if await end_open_lines(connection, row.id, state="expired", now=now):
                self.wake()
        if now > row.deadline_at + GRACE_S:
            self._stop_lines(row.id, "expired")
            self._native.cancel_batch(row.id)

    def _stop_lines(self, batch_id: str, ends_as: str) -> None:
        for (of_batch, _), (_, client) in self._running.items():
            if of_batch == batch_id:
                client.ends_as = ends_as
                client.gone.set()

    async def _end(self, row: BatchRow, now: float) -> None:
        """All lines have ended: write the files. The first process to say so does it."""
        is_begun = row.state == "finalizing"
        if is_begun and not self._store.is_sqlite and now - (row.finalizing_at or now) < CLAIM_S:
            return  # somebody is at it; after a minute without an end, one other may
        await self._keeper.flush()
        async with self._store.begin() as connection:
            is_ours = await move_batch(
                connection,
                row.id,
                to="finalizing",
                out_of=("finalizing",) if is_begun else ("in_progress", "cancelling"),
                values={"finalizing_at": now},
                begun_at=row.finalizing_at,
            )
        if is_ours:
            was = "cancelling" if row.cancelling_at is not None else row.state
            await self._output.finish(row, was=was, now=now)

    async def _plan(self, rows: Sequence[BatchRow], now: float) -> None:
        """Every minute, and when a batch came or went."""
        known = frozenset(row.id for row in rows)
        clock_s = self._gateway.clock()
        if known == self._known and clock_s - self._planned_at_s < PLAN_S:
            return
        self._known, self._planned_at_s = known, clock_s
        leaving = await self._planner.replan(rows, now=now)
        for native_id in leaving:
            self._native.cancel(native_id)
        self._due_at_s = -LOOK_S

    async def _claim(self, now: float) -> None:
        for lane in dict.fromkeys(each.lane for each in self._due):
            endpoint_id, _, tier = lane.rpartition("#")
            room = self._room(endpoint_id)
            if tier == NATIVE or room <= 0:
                continue
            async with self._store.begin() as connection:
                claimed = await claim_lines(
                    connection,
                    owner=self._owner,
                    lane=lane,
                    now=now,
                    until=now + CLAIM_S,
                    limit=min(room, CLAIM_ROWS_MAX),
                )
            await self._send_all(claimed)
            if len(claimed) == room:
                self.wake() if self._room(endpoint_id) > 0 else None

    def _room(self, endpoint_id: str) -> int:
        live = self._gateway.fleet.live(endpoint_id)
        endpoint = self._gateway.policy().endpoints.get(endpoint_id)
        if live is None or endpoint is None or live.held:
            return 0
        if live.breaker == "open" and not live.is_cooling:
            return 0
        mine = self._by_endpoint.get(endpoint_id, 0)
        others = max(0, live.in_flight - mine)
        places = places_for_batch(live, is_own=endpoint.usd_per_hour_nanos is not None)
        return min(int(places) - mine - others, LINES_AT_ONCE_MAX - len(self._running))

    async def _send_all(self, claimed: Sequence[ClaimedLine]) -> None:
        """Read the texts of lines of one file together, then send each in a task of its own."""
        by_file: dict[str, list[ClaimedLine]] = {}
        for line in claimed:
            by_file.setdefault(line.input_file_id, []).append(line)
        for file_id, lines in by_file.items():
            try:
                texts = await self._storage.read_ranges(
                    file_id,
                    [each.offset_bytes for each in lines],
                    [each.num_bytes for each in lines],
                )
            except FileNotFoundError:
                await self._fail_input(file_id)
                continue
            except ServiceError:
                later = self._gateway.wall_clock() + STORAGE_RETRY_S
                for line in lines:
                    await self._put_back(line, later, is_a_try=False)
                raise
            for line, text in zip(lines, texts, strict=True):
                client = LineClient()
                endpoint_id = line.lane.rpartition("#")[0]
                self._by_endpoint[endpoint_id] = self._by_endpoint.get(endpoint_id, 0) + 1
                task = asyncio.create_task(self._send(line, text, client))
                self._running[line.batch_id, line.line_no] = (task, client)

    async def _fail_input(self, file_id: str) -> None:
        """Batches whose input is gone can only end."""
        now = self._gateway.wall_clock()
        async with self._store.read() as connection:
            rows = await batches_in(connection, "in_progress")
        problem = {
            "code": "input_file_gone",
            "message": f"the content of {file_id} is gone; what was answered was paid for",
        }
        for row in rows:
            if row.input_file_id == file_id:
                await fail(self._store, row, problem, now=now)

    async def _send(self, line: ClaimedLine, text: bytes, client: LineClient) -> None:
        run = LineRun(self._gateway, self._keeper.keep, self._keeper.note_cost)
        back_at: float | None = None
        is_back, is_a_try = False, True
        try:
            caller = await self._caller(line)
            if caller is not None:
                back = await run.send(line, text, caller, client)
                if back is not None:
                    is_back, is_a_try = True, back.is_a_try
                    back_at = self._gateway.wall_clock() + back.after_s
        except asyncio.CancelledError:
            is_back, is_a_try = True, False
            raise
        except Exception as error:
            log.error("a batch line failed by our own fault", line=line.line_no, exc_info=error)
            is_back, back_at = True, self._gateway.wall_clock() + CLAIM_S
        finally:
            endpoint_id = line.lane.rpartition("#")[0]
            self._by_endpoint[endpoint_id] -= 1
            self._running.pop((line.batch_id, line.line_no), None)
            self.wake()
            if is_back:
                await asyncio.shield(self._put_back(line, back_at, is_a_try))

    async def _put_back(self, line: ClaimedLine, at: float | None, is_a_try: bool) -> None:
        try:
            async with self._store.begin() as connection:
                await put_back(
                    connection, [line], owner=self._owner, not_before=at, is_a_try=is_a_try
                )
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("a line stays claimed until its time is over", error=error)

    async def _caller(self, line: ClaimedLine) -> Caller | None:
        """Whoever holds the key now; None where it is no good any more: the line has ended."""
        try:
            return await self._gateway.authenticator.caller_of(line.key_id)
        except Unauthenticated as error:
            await self._keeper.keep(key_refused(line, error, self._gateway.wall_clock()))
            return None


def _tell_of_end(task: asyncio.Task[None]) -> None:
    """A side task ends by being cancelled; any other end would leave lines waiting for ever."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("batch work has stopped", error=error, exc_info=error)
