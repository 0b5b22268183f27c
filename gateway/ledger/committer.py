"""From memory to journal to SQL: one write a record, fdatasync in groups, commits in groups.

SQL is fed from the journal file, not from memory, so that what a restart replays is what a
running process applies, and an outage of SQL costs disk, not memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.ledger.booking import apply_records
from gateway.ledger.journal import (
    JournalError,
    JournalReader,
    JournalWriter,
    Position,
    encode,
)
from gateway.ledger.options import LedgerOptions
from gateway.ledger.records import LedgerAlert, Record
from gateway.store.engine import Store

RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0


class Committer:
    """Owns the journal of one living holder and what of it SQL has."""

    def __init__(
        self,
        store: Store,
        writer: JournalWriter,
        *,
        holder_id: str,
        start: Position,
        options: LedgerOptions,
        sql_turn: asyncio.Lock,
        alert: Callable[[LedgerAlert], None],
        at_point: Callable[[str], None],
    ) -> None:
        self.applied = start
        self.writer = writer
        self._store = store
        self._holder_id = holder_id
        self._options = options
        self._sql_turn = sql_turn
        self._alert = alert
        self._at_point = at_point
        self._reader = JournalReader(writer.directory)
        self._num_damage = 0
        self._kept: list[bytes] = []  # ends that the disk refused; written before anything else
        self._unsynced = asyncio.Event()
        self._unapplied = asyncio.Event()
        self._is_stopping = False
        self._num_unapplied = 0
        self._many = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="looprouter-journal")

    @property
    def backlog_bytes(self) -> int:
        """About how much of the journal SQL does not have yet."""
        files = self.writer.position.file_no - self.applied.file_no
        size = self._options.journal_file_bytes_max
        return files * size + self.writer.position.offset - self.applied.offset

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def write(self, record: Record) -> None:
        """Into the journal now; JournalError when it cannot be, and then nothing of it counts."""
        if self._kept:
            self.write_kept()
        self.writer.append(encode(record))
        self._wake()

    def write_or_keep(self, record: Record) -> None:
        """As `write`, but a record that the disk refuses is kept and tried again."""
        try:
            self.write(record)
        except JournalError as e:
            if not self._kept:
                self._alert(LedgerAlert("journal_unwritable", f"{e}; no new request is taken"))
            self._kept.append(encode(record))
            self._unapplied.set()  # the commit loop tries again, should nobody else

    def write_kept(self) -> None:
        """What the disk refused before, in order; JournalError while it still refuses."""
        while self._kept:
            self.writer.append(self._kept[0])
            del self._kept[0]
            self._wake()

    def _wake(self) -> None:
        self._num_unapplied += 1
        self._unapplied.set()
        self._unsynced.set()
        if self._num_unapplied >= self._options.records_per_commit:
            self._many.set()

    async def run_syncs(self) -> None:
        """Force the journal to disk within `sync_interval_s` of a write, until stopped."""
        loop = asyncio.get_running_loop()
        synced = Position(0, 0)
        while True:
            await self._unsynced.wait()
            if self._is_stopping:
                return
            await asyncio.sleep(self._options.sync_interval_s)
            position = self.writer.position
            if position == synced:
                self._rest(self._unsynced)
                continue
            try:
                await loop.run_in_executor(self._thread, self.writer.sync)
                synced = position
            except JournalError as e:
                self._alert(LedgerAlert("journal_unsynced", str(e)))
                await asyncio.sleep(RETRY_S_MAX)

    async def run_commits(self) -> None:
        """Bring SQL after the journal, in groups, until stopped; an outage is waited out."""
        retry_s = RETRY_S_MIN
        while True:
            await self._unapplied.wait()
            if self._is_stopping:
                return
            await self._group()
            try:
                if self._kept:
                    self.write_kept()
                while await self.commit_batch():
                    pass
                retry_s = RETRY_S_MIN
            except Exception as e:
                # Whatever SQL or its driver says: the records are safe in the journal.
                if retry_s == RETRY_S_MIN:
                    self._alert(
                        LedgerAlert("sql_behind", f"cannot book into SQL yet, trying on: {e!r}")
                    )
                await asyncio.sleep(retry_s)
                retry_s = min(RETRY_S_MAX, 2 * retry_s)

    def _rest(self, event: asyncio.Event) -> None:
        """Nothing to do until the next record; once stopped, the event is what ends its loop."""
        if not self._is_stopping:
            event.clear()

    async def _group(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.commit_interval_s):
                await self._many.wait()

    async def commit_batch(self) -> bool:
        """Book the next records; False when SQL has all that was written when it was called."""
        async with self._sql_turn:
            target = self.writer.position
            if self.applied >= target:
                self._num_unapplied = 0
                if not self._kept:
                    self._rest(self._unapplied)
                self._many.clear()
                return False
            before = self.applied
            records, end = self._reader.batch(
                before, target, records_max=self._options.records_per_commit
            )
            if end == before:
                raise JournalError(f"{self.writer.directory} lost its file {before.file_no}")
            async with self._store.begin() as connection:
                position, alerts = await apply_records(
                    connection, records, holder_id=self._holder_id, start=before, end=end
                )
                self._at_point("before_settle_commit")
            self.applied = position
        for each in alerts:
            self._alert(each)
        self._report_damage()
        if position.file_no != before.file_no:
            self.writer.drop_before(position.file_no)
        return True

    async def catch_up(self) -> None:
        """Until SQL has all that was written. Raises what SQL raises."""
        if self._kept:
            self.write_kept()
        target = self.writer.position
        while self.applied < target:
            await self.commit_batch()

    def stop(self) -> None:
        """Let the loops end by themselves; nothing is lost, `catch_up` still works."""
        self._is_stopping = True
        self._unapplied.set()
        self._unsynced.set()
        self._many.set()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        with contextlib.suppress(JournalError):  # SQL may not have all of it yet
            self.writer.sync()
        self.writer.close()

    def _report_damage(self) -> None:
        for each in self._reader.damage[self._num_damage :]:
            self._alert(LedgerAlert("journal_damaged", f"{each}; what it said is lost"))
        self._num_damage = len(self._reader.damage)
