"""A simulated provider's batch APIs: files and batches in OpenAI's form, batches in Anthropic's.

Nothing runs by itself: whatever is due by now is done when somebody asks, in the order and with
the times it would have had.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from gateway.simulator.connection import BODY_BYTES_MAX, Connection, Message
from gateway.simulator.gate import Refusal, is_authorised
from gateway.simulator.native_anthropic import MessageBatches
from gateway.simulator.native_jobs import Job, JobState
from gateway.simulator.native_openai import FilesAndBatches
from gateway.simulator.native_profile import BatchFaultMode
from gateway.simulator.native_store import Host, NativeStore
from gateway.simulator.native_work import LineWorker, undone
from gateway.wire.pieces import Surface

LINES_AT_ONCE = 20  # answered before other requests get their turn
FORM_BYTES_MAX = 64 * 1024  # around an uploaded file
_PATHS = re.compile(r"/v1/(files|batches|messages/batches)(/[^/]+)?(/content|/cancel|/results)?")


class NativeDesk:
    """Takes the requests to batch APIs, and does the work that is due."""

    def __init__(self, host: Host, *, seed: int, wall_clock: Callable[[], float]) -> None:
        self._host = host
        self._store = NativeStore(host, seed=seed)
        self._lock = asyncio.Lock()
        self._worker = LineWorker(
            profile=lambda: host.profile,
            books=lambda: host.books,
            new_id=host.new_id,
            wall_clock=wall_clock,
        )
        self._openai = FilesAndBatches(self._store)
        self._anthropic = MessageBatches(self._store)

    def owns(self, path: str) -> bool:
        return self._host.profile.batch is not None and _PATHS.fullmatch(path) is not None

    def body_bytes_max(self, path: str) -> int:
        batch = self._host.profile.batch
        if batch is None or not self.owns(path):
            return BODY_BYTES_MAX
        return batch.bytes_max + FORM_BYTES_MAX

    @staticmethod
    def surface(path: str) -> Surface:
        """In whose dialect errors are told."""
        return Surface.MESSAGES if path.startswith("/v1/messages") else Surface.CHAT

    async def serve(
        self, scope: Message, headers: dict[bytes, bytes], body: bytes, connection: Connection
    ) -> None:
        """Raises Refusal."""
        match = _PATHS.fullmatch(scope["path"])
        assert match is not None
        if not is_authorised(self._host.profile, headers):
            raise Refusal(401, "Incorrect API key provided.", code="invalid_api_key")
        is_messages = match[1] == "messages/batches"
        if is_messages and b"anthropic-version" not in headers:
            raise Refusal(400, "anthropic-version: header is required")
        await self.catch_up()
        side = self._anthropic if is_messages else self._openai
        answer = side.answer(scope, headers, body, match)
        if answer.is_lost:
            self._host.books.count_fault(BatchFaultMode.LOST_SUBMIT)
            await connection.abort()
            return
        self._host.books.count_status(200)
        await connection.answer(200, [answer.content_type], answer.body)

    async def catch_up(self) -> None:
        """Do what is due by now in every batch, a few lines at a time."""
        async with self._lock:
            now_s = self._host.now_s
            for job in list(self._store.jobs.values()):
                has_more = True
                while has_more:
                    has_more = job.work(now_s, self._worker, most=LINES_AT_ONCE)
                    if has_more:
                        await asyncio.sleep(0)
                self._close(job, now_s)
            self._store.now_s = now_s

    def _close(self, job: Job, now_s: float) -> None:
        state = job.state(now_s)
        if state not in (JobState.EXPIRED, JobState.CANCELLED):
            return
        is_expired = state is JobState.EXPIRED
        for entry in job.undone():
            line = undone(job, entry, self._host.new_id(), is_expired=is_expired)
            if line:
                job.errors.append(line)
