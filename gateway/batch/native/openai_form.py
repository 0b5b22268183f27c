"""OpenAI's batch API, and what of it the others share: a file of lines, a batch, a file of results.

Source: developers.openai.com/api/docs/guides/batch and the reference of files and batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from gateway.batch.line_check import URL_OF, URLS
from gateway.batch.native.api import (
    Found,
    NativeError,
    NativeLine,
    NativeResult,
    NativeState,
    NativeStatus,
    ResultCounts,
    Submitted,
)
from gateway.batch.native.client import NativeClient
from gateway.batch.native.packing import multipart, pack
from gateway.batch.native.results import Once, json_lines, openai_result
from gateway.batch.native.spool import Spool
from gateway.catalogue.native_batch import NativeBatchFacts
from gateway.errors import FailureClass
from gateway.wire.pieces import Surface, WireError

NAME = "looprouter_native_id"  # the key of our id in a batch's metadata
PAGE = 100
PAGES_MAX = 20  # of a listing that is searched
CLOCK_SLACK_S = 900.0  # that a provider's clock may be apart from ours
ERRORS_MAX = 20

_STATES = {
    "validating": NativeState.RUNNING,
    "in_progress": NativeState.RUNNING,
    "finalizing": NativeState.RUNNING,
    "cancelling": NativeState.CANCELLING,
    "completed": NativeState.ENDED,
    "expired": NativeState.ENDED,
    "cancelled": NativeState.ENDED,
    "failed": NativeState.FAILED,
}


class _Counts(msgspec.Struct):
    total: int | None = None
    completed: int | None = None
    failed: int | None = None


class _Problem(msgspec.Struct):
    message: str | None = None
    code: str | None = None
    line: int | None = None


class _Problems(msgspec.Struct):
    data: list[_Problem] | None = None


class Batch(msgspec.Struct):
    """The batch object, as far as it is read."""

    id: str
    status: str
    endpoint: str | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: float | None = None
    in_progress_at: float | None = None
    expires_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelled_at: float | None = None
    request_counts: _Counts | None = None
    errors: _Problems | None = None
    metadata: dict[str, Any] | None = None

    def to_status(self) -> NativeStatus:
        counts = self.request_counts or _Counts()
        state = _STATES.get(self.status, NativeState.RUNNING)
        if state is NativeState.FAILED and self.output_file_id:
            state = NativeState.ENDED
        problems = (self.errors.data if self.errors is not None else None) or []
        ended = (self.completed_at, self.expired_at, self.cancelled_at, self.failed_at)
        return NativeStatus(
            batch_id=self.id,
            state=state,
            outcome=self.status,
            surface=surface_of(self.endpoint),
            num_lines=counts.total,
            num_done=(counts.completed or 0) + (counts.failed or 0)
            if self.request_counts
            else None,
            num_failed=counts.failed,
            created_at_s=self.created_at,
            started_at_s=self.in_progress_at,
            ended_at_s=next((at for at in ended if at is not None), None),
            expires_at_s=self.expires_at,
            output_file_id=self.output_file_id or "",
            error_file_id=self.error_file_id or "",
            errors=tuple(
                WireError(
                    message=(f"line {p.line}: " if p.line is not None else "") + (p.message or ""),
                    code=p.code or "",
                )
                for p in problems[:ERRORS_MAX]
            ),
        )


class _Page(msgspec.Struct):
    data: list[Batch]
    has_more: bool = False


class _HasId(msgspec.Struct):
    id: str


class OpenAIForm:
    """Files, batches and their results. The others replace the steps in which they differ."""

    def __init__(self, facts: NativeBatchFacts, client: NativeClient) -> None:
        self.facts = facts
        self._client = client

    async def submit(
        self, native_id: str, lines: AsyncIterable[NativeLine], *, window_s: int | None = None
    ) -> Submitted:
        spool = Spool()
        try:
            packed = await pack(
                self._client.endpoint, self.facts, native_id, lines, spool, self.encode
            )
            assert packed.surface is not None
            file_id = await self._upload(native_id, spool)
            window_s = min(window_s or self.facts.window_s, self.facts.window_s_max)
            batch_id = await self._create(native_id, file_id, packed.surface, window_s)
        finally:
            spool.close()
        return Submitted(
            batch_id=batch_id,
            file_id=file_id,
            surface=packed.surface,
            num_lines=packed.num_lines,
            num_bytes=spool.num_bytes,
            refused=packed.refused,
            dropped=packed.dropped,
        )

    def encode(self, custom_id: str, surface: Surface, body: bytes) -> bytes:
        url = URL_OF[surface].encode()
        return (
            b'{"custom_id":"%s","method":"POST","url":"%s","body":' % (custom_id.encode(), url)
            + body
            + b"}\n"
        )

    async def _upload(self, native_id: str, spool: Spool) -> str:
        form, headers = multipart(f"{native_id}.jsonl", spool, {"purpose": "batch"})
        return await self._uploaded("/files", form, headers)

    async def _uploaded(self, path: str, form: Any, headers: dict[bytes, bytes]) -> str:
        try:
            answer, _ = await self._client.send(self._client.url(path), form, headers)
        except NativeError as error:
            error.is_lost = False  # a file alone costs nothing and starts nothing
            raise
        return self._client.read(answer, _HasId).id

    async def _create(self, native_id: str, file_id: str, surface: Surface, window_s: int) -> str:
        wanted = {
            "input_file_id": file_id,
            "endpoint": URL_OF[surface],
            "completion_window": self.window(window_s),
            "metadata": {NAME: native_id},
        }
        answer = await self._client.post(self._client.url("/batches"), wanted)
        return self._client.read(answer, Batch, is_lost=True).id

    def window(self, window_s: int) -> str:
        """The completion window in the provider's words."""
        return "24h"

    async def poll(self, batch_id: str) -> NativeStatus:
        answer = await self._client.get(self._client.url(f"/batches/{quote(batch_id, safe='')}"))
        return self._client.read(answer, Batch).to_status()

    async def results(
        self, batch_id: str, counts: ResultCounts | None = None
    ) -> AsyncIterator[NativeResult]:
        status = await self.poll(batch_id)
        check_ended(status)
        once = Once(counts)
        surface = status.surface or Surface.CHAT
        for file_id in (status.output_file_id, status.error_file_id):
            if not file_id:
                continue
            async for line in json_lines(self._client.download(self.file_url(file_id))):
                result = openai_result(line, surface)
                if once.passes(result):
                    assert result is not None
                    yield result

    def file_url(self, file_id: str) -> str:
        return self._client.url(f"/files/{quote(file_id, safe='')}/content")

    async def delete_files(self, file_ids: Sequence[str]) -> None:
        for file_id in file_ids:
            await self._client.delete(self._delete_url(file_id))

    def _delete_url(self, file_id: str) -> str:
        return self._client.url(f"/files/{quote(file_id, safe='')}")

    async def cancel(self, batch_id: str) -> NativeStatus:
        try:
            await self._ask_to_cancel(batch_id)
        except NativeError as error:
            if error.status not in (400, 409, 422):
                raise
            status = await self.poll(batch_id)
            if status.state in (NativeState.RUNNING,):
                raise
            return status
        return await self.poll(batch_id)

    async def _ask_to_cancel(self, batch_id: str) -> None:
        await self._client.post(self._client.url(f"/batches/{quote(batch_id, safe='')}/cancel"))

    async def find(
        self,
        native_id: str,
        *,
        submitted_at_s: float,
        num_lines: int,
        known_ids: Collection[str] = (),
    ) -> Found:
        after = ""
        for _ in range(PAGES_MAX):
            query = {"limit": str(PAGE)} | ({"after": after} if after else {})
            answer = await self._client.get(self._client.url(f"/batches?{urlencode(query)}"))
            page = self._client.read(answer, _Page)
            for batch in page.data:
                if (batch.metadata or {}).get(NAME) == native_id:
                    return Found(status=batch.to_status(), is_certain=True)
            oldest = page.data[-1].created_at if page.data else None
            is_past = oldest is not None and oldest < submitted_at_s - CLOCK_SLACK_S
            if not page.data or not page.has_more or is_past:
                return Found(status=None, is_certain=self._client.is_absent(submitted_at_s))
            after = page.data[-1].id
        return Found(status=None, is_certain=False)


class GroqForm(OpenAIForm):
    """As OpenAI's, with a window from 24 hours to seven days (console.groq.com/docs/batch)."""

    def window(self, window_s: int) -> str:
        days = -(-window_s // 86_400)
        return "24h" if days <= 1 else f"{days}d"


def surface_of(url: str | None) -> Surface | None:
    return URLS.get(url or "")


def check_ended(status: NativeStatus) -> None:
    """Raises NativeError while there can be no results."""
    if status.state in (NativeState.RUNNING, NativeState.CANCELLING):
        raise NativeError(
            FailureClass.MISCONFIGURED,
            f"the batch {status.batch_id} is {status.outcome}; it has results when it has ended",
        )


def instant(value: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time; None for none or for one that is not understood."""
    try:
        return None if not value else datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None
