"""Reserve, settle, release: money is held in memory from leased slices, journaled, then in SQL.

`reserve` takes the hold from leases in memory and writes one journal record; SQL is asked only
when a lease is too small. `settle`, `release` and `progress` never wait.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from gateway.errors import LedgerUnavailable, SetupError
from gateway.ledger.alive import AliveMark
from gateway.ledger.committer import Committer
from gateway.ledger.grants import register_holder
from gateway.ledger.holdings import Holdings
from gateway.ledger.home import JournalHome, host_name, new_holder_id
from gateway.ledger.journal import JournalError, JournalWriter, remove_directory
from gateway.ledger.leases import Lease
from gateway.ledger.options import LedgerOptions
from gateway.ledger.records import (
    NOTHING_SETTLED,
    Dropped,
    Ended,
    Hold,
    HoldRequest,
    LedgerAlert,
    Progress,
    Settled,
    Settlement,
    ended_record,
    sent_record,
)
from gateway.ledger.recovery import (
    DatabaseNow,
    adopt_dead_journals,
    expire_dead_holders,
    finish_holder,
    replay_and_finish,
)
from gateway.store.engine import Store
from gateway.wire.usage import Usage

logger = logging.getLogger("looprouter.ledger")

STOP_WAIT_S = 5.0
CLOSE_WAIT_S = 20.0


def _log_alert(alert: LedgerAlert) -> None:
    logger.warning("ledger alert %s: %s", alert.kind, alert.message)


def _no_point(name: str) -> None:
    pass


class Ledger:
    """
    One leaseholder. Used from one event loop.

    `start` replays what dead holders left under `home`; `close` gives back what is unused.
    `at_point` is called at the five places where a crash is most interesting.
    """

    def __init__(
        self,
        store: Store,
        *,
        home: Path,
        clock: Callable[[], float] = time.monotonic,
        holder_id: str = "",
        new_id: Callable[[], str] = lambda: secrets.token_hex(12),
        options: LedgerOptions | None = None,
        database_now: DatabaseNow | None = None,
        alert: Callable[[LedgerAlert], None] = _log_alert,
        at_point: Callable[[str], None] = _no_point,
        runs_in_background: bool = True,
    ) -> None:
        self.holder_id = holder_id or new_holder_id()
        self._home = JournalHome(home / "journal", self.holder_id)
        self._store = store
        self._clock = clock
        self._options = options or LedgerOptions()
        self._database_now = database_now or store.database_now
        self._alert = alert
        self._at_point = at_point
        self._runs_in_background = runs_in_background
        self._sql_turn = asyncio.Lock()
        self._holdings = Holdings(
            store,
            holder_id=self.holder_id,
            clock=clock,
            new_id=new_id,
            options=self._options,
            database_now=self._database_now,
            sql_turn=self._sql_turn,
            journal_file=lambda: self._writing().writer.path.name,
        )
        self._open: dict[str, Hold] = {}
        self._alive = AliveMark(
            self._home.directory, unix_now=self._unix_now, is_needed=lambda: bool(self._open)
        )
        self._committer: Committer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._foreign: set[str] = set()

    @property
    def num_open_holds(self) -> int:
        return len(self._open)

    @property
    def backlog_bytes(self) -> int:
        """How much of the journal is not in SQL yet."""
        return self._committer.backlog_bytes if self._committer is not None else 0

    # --- life ---

    async def start(self) -> None:
        """Take the journal directory, replay what is there, begin to serve. SetupError if taken."""
        self._home.enter()
        try:
            await self._begin()
        except BaseException:
            self._home.leave()
            raise

    async def _begin(self) -> None:
        await replay_and_finish(
            self._store,
            self._home.directory,
            self.holder_id,
            database_now=self._database_now,
            alert=self._alert,
        )
        start = await self._home.next_start(self._store)
        async with self._store.begin() as connection:
            await register_holder(
                connection,
                holder_id=self.holder_id,
                host=host_name(),
                journal_dir=str(self._home.directory),
                start=start,
                now=await self._database_now(connection),
            )
        try:
            writer = JournalWriter(
                self._home.directory,
                self.holder_id,
                start.file_no,
                file_bytes_max=self._options.journal_file_bytes_max,
            )
        except JournalError as e:
            raise SetupError(f"the ledger cannot start: {e}") from e
        writer.drop_before(start.file_no)
        self._committer = Committer(
            self._store,
            writer,
            holder_id=self.holder_id,
            start=start,
            options=self._options,
            sql_turn=self._sql_turn,
            alert=self._alert,
            at_point=self._at_point,
        )
        await self._committer.catch_up()
        await self.tend()
        if self._runs_in_background:
            self._alive.start()
            for run in (self._committer.run_commits, self._committer.run_syncs, self._run_tending):
                self._tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        """Book all, give back what is unused. What cannot be booked now is replayed later."""
        committer = self._committer
        if committer is None or self._stopping.is_set():
            return
        self._stopping.set()
        committer.stop()
        await self._end_tasks()
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await committer.catch_up()
                await self._holdings.return_all()
                await committer.catch_up()  # what was settled meanwhile
                if not self._open and committer.applied == committer.writer.position:
                    await self._end_holder()
        except Exception as e:
            # SQL is away, or the disk is full: the next start does it from the journal.
            self._alert(LedgerAlert("close_incomplete", f"left for the next start to book: {e!r}"))
        finally:
            self._committer = None
            self._alive.stop()
            committer.close()
            self._home.leave()

    async def _end_tasks(self) -> None:
        if not self._tasks:
            return
        _, pending = await asyncio.wait(self._tasks, timeout=STOP_WAIT_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _end_holder(self) -> None:
        async with self._store.begin() as connection:
            now = await self._database_now(connection)
            await finish_holder(connection, self.holder_id, now=now, is_journal_whole=True)
        remove_directory(self._home.directory)

    # --- the life of a hold ---

    async def reserve(self, request: HoldRequest) -> Hold:
        """
        Hold `request.hold_nanos` in every budget of the caller, and journal the attempt as sent.

        All budgets or none. Call it right before the request leaves. Raises BudgetExhausted,
        or LedgerUnavailable: then nothing is held and the request must not leave.
        """
        committer = self._writing()
        self._refuse_if_full(committer)
        nanos = request.hold_nanos
        if nanos < 0:
            raise ValueError(f"attempt {request.attempt_id} would hold {nanos} nano-dollars")
        if request.attempt_id in self._open:
            raise ValueError(f"attempt {request.attempt_id} is open already; ids are used once")
        self._at_point("before_hold")
        budget_ids = tuple(dict.fromkeys(request.caller.budget_ids))
        if not budget_ids or nanos == 0:
            return self._send(request, ())
        leases = self._holdings.covering(budget_ids, nanos)
        if leases is None:
            leases = await self._holdings.refilled(budget_ids, nanos)
            self._refuse_if_full(self._writing())
        return self._send(request, leases)

    def _send(self, request: HoldRequest, leases: tuple[Lease, ...]) -> Hold:
        nanos = request.hold_nanos
        self._holdings.hold(leases, nanos)
        self._at_point("after_hold")
        self._alive.begin()
        try:
            self._writing().write(sent_record(request, leases, self._unix_now()))
        except JournalError as e:
            for lease in leases:
                lease.unhold(nanos)
            raise LedgerUnavailable(
                "the ledger's journal cannot be written, so nothing is sent; the operator must "
                "free disk space",
                retry_after_s=1.0,
            ) from e
        hold = Hold(request.attempt_id, nanos, leases)
        self._open[hold.attempt_id] = hold
        self._at_point("after_sent")
        return hold

    def progress(self, hold: Hold, usage: Usage) -> None:
        """
        Note what was generated so far (cumulative), for a settle by estimate after a crash.

        Calls closer together than `progress_interval_s` are dropped.
        """
        now = self._clock()
        if hold.settled is not None or now - hold.progress_at_s < self._options.progress_interval_s:
            return
        if self._committer is None:
            return
        hold.progress_at_s = now
        try:
            self._committer.write(Progress(hold.attempt_id, usage))
        except JournalError as e:
            logger.warning("progress of attempt %s is not written: %s", hold.attempt_id, e)
        self._at_point("mid_stream")

    def settle(self, hold: Hold, settlement: Settlement) -> Settled:
        """
        End the attempt at its cost, once: a later settle or release returns the first result.

        The client is billed at most the hold; the rest is the operator's, with an alert.
        """
        if hold.settled is not None:
            return hold.settled
        cost = settlement.cost_nanos
        if cost < 0:
            raise ValueError(f"attempt {hold.attempt_id} cannot cost {cost} nano-dollars")
        is_waste = settlement.billable_to == "operator"
        billed = 0 if is_waste else min(cost, hold.hold_nanos)
        settled = Settled(
            cost_nanos=cost,
            billed_nanos=billed,
            overrun_nanos=0 if is_waste else cost - billed,
            waste_nanos=cost if is_waste else 0,
        )
        self._end(hold, settled)
        self._journal(ended_record(hold, settlement, settled, self._unix_now()))
        return settled

    def release(self, hold: Hold, reason: str) -> Settled:
        """Void the attempt: certainly no billable work was done. Ignored once it has ended."""
        if hold.settled is None:
            self._end(hold, NOTHING_SETTLED)
            self._journal(Dropped(hold.attempt_id, reason, self._unix_now()))
        assert hold.settled is not None
        return hold.settled

    def _journal(self, record: Ended | Dropped) -> None:
        if self._committer is not None:
            self._committer.write_or_keep(record)
            return
        message = f"attempt {record.attempt_id} ended after the ledger closed: booked by estimate"
        self._alert(LedgerAlert("ended_late", message, record.attempt_id))

    def _end(self, hold: Hold, settled: Settled) -> None:
        hold.settled = settled
        del self._open[hold.attempt_id]
        for lease in hold.leases:
            lease.unhold(hold.hold_nanos, settled.billed_nanos)

    # --- the rest ---

    async def flush(self) -> None:
        """Until SQL has all that was written before this call. LedgerUnavailable if it cannot."""
        try:
            await self._writing().catch_up()
        except Exception as e:
            # Whatever the driver says of a database that is away.
            raise LedgerUnavailable(f"cannot book into SQL now: {e!r}") from e

    async def reload_budgets(self) -> None:
        """Obey limits changed in SQL; called when the change watcher sees a change."""
        await self._holdings.reload()

    async def tend(self) -> None:
        """Heartbeat: renew leases, give back idle money, see to dead holders."""
        await self._holdings.tend()
        await self._holdings.reload()  # should the change watcher have missed something
        await adopt_dead_journals(
            self._store,
            self._home.root,
            database_now=self._database_now,
            alert=self._alert,
            known_foreign=self._foreign,
        )
        for each in await expire_dead_holders(
            self._store,
            holder_id=self.holder_id,
            ttl_s=self._options.lease_ttl_s,
            database_now=self._database_now,
        ):
            self._alert(each)

    async def _run_tending(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._options.heartbeat_s):
                    await self._stopping.wait()
            except TimeoutError:
                try:
                    await self.tend()
                except Exception as e:
                    # SQL is away: leases may expire, which costs early refusals, never money.
                    self._alert(LedgerAlert("heartbeat_missed", f"cannot renew leases: {e!r}"))

    def _unix_now(self) -> float:
        return self._clock() + self._holdings.unix_offset_s

    def _refuse_if_full(self, committer: Committer) -> None:
        if len(self._open) >= self._options.open_holds_max:
            raise LedgerUnavailable(
                f"{len(self._open)} requests hold money already; try again shortly",
                retry_after_s=1.0,
            )
        if committer.num_kept or committer.backlog_bytes > self._options.journal_bytes_max:
            try:
                committer.write_kept()
            except JournalError as e:
                raise LedgerUnavailable(
                    "the ledger's journal cannot be written, so nothing is sent; the operator "
                    "must free disk space",
                    retry_after_s=1.0,
                ) from e
            if committer.backlog_bytes > self._options.journal_bytes_max:
                raise LedgerUnavailable(
                    "the database has not taken the ledger's journal for too long; the operator "
                    "must mend it",
                    retry_after_s=1.0,
                )

    def _writing(self) -> Committer:
        if self._committer is None or self._stopping.is_set():
            raise LedgerUnavailable("the ledger is not running (not started, or closed)")
        return self._committer
