"""Anthropic's Message Batches: the lines go along with the batch, which keeps no name of ours.

Source: platform.claude.com/docs/en/build-with-claude/batch-processing and the reference of
`/v1/messages/batches`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from urllib.parse import quote, urlencode

import msgspec

from gateway.batch.native.api import (
    Found,
    LineOutcome,
    NativeError,
    NativeLine,
    NativeResult,
    NativeState,
    NativeStatus,
    ResultCounts,
    Submitted,
)
from gateway.batch.native.client import NativeClient
from gateway.batch.native.openai_form import CLOCK_SLACK_S, PAGE, PAGES_MAX, check_ended, instant
from gateway.batch.native.packing import Framed, pack
from gateway.batch.native.results import Once, json_lines, usage_of
from gateway.batch.native.spool import Spool
from gateway.catalogue.native_batch import NativeBatchFacts
from gateway.wire.errors import error_of, status_of
from gateway.wire.pieces import Surface, WireError

FIND_S = 900.0  # a batch of ours was created at most so long after we began to submit it

_STATES = {
    "in_progress": NativeState.RUNNING,
    "canceling": NativeState.CANCELLING,
    "ended": NativeState.ENDED,
}
_OUTCOMES = {
    "succeeded": LineOutcome.SUCCEEDED,
    "errored": LineOutcome.ERRORED,
    "canceled": LineOutcome.CANCELLED,
    "expired": LineOutcome.EXPIRED,
}


class _Counts(msgspec.Struct):
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return self.processing + self.succeeded + self.errored + self.canceled + self.expired


class _Batch(msgspec.Struct):
    id: str
    processing_status: str
    request_counts: _Counts
    created_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None

    def to_status(self) -> NativeStatus:
        counts = self.request_counts
        return NativeStatus(
            batch_id=self.id,
            state=_STATES.get(self.processing_status, NativeState.RUNNING),
            outcome=self.processing_status,
            surface=Surface.MESSAGES,
            num_lines=counts.total,
            num_done=counts.succeeded + counts.errored,
            num_failed=counts.errored,
            created_at_s=instant(self.created_at),
            started_at_s=instant(self.created_at),  # it begins at once
            ended_at_s=instant(self.ended_at),
            expires_at_s=instant(self.expires_at),
        )


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False
    last_id: str | None = None


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


_LINE = msgspec.json.Decoder(_Line)


class AnthropicForm:
    def __init__(self, facts: NativeBatchFacts, client: NativeClient) -> None:
        self.facts = facts
        self._client = client

    async def submit(
        self, native_id: str, lines: AsyncIterable[NativeLine], *, window_s: int | None = None
    ) -> Submitted:
        spool = Spool()
        try:
            encode = _Encoder()
            packed = await pack(self._client.endpoint, self.facts, native_id, lines, spool, encode)
            body = Framed(b'{"requests":[', spool, b"]}")
            answer, _ = await self._client.send(self._client.url("/messages/batches"), body, {})
            batch = self._client.read(answer, _Batch, is_lost=True)
        finally:
            spool.close()
        return Submitted(
            batch_id=batch.id,
            file_id="",
            surface=Surface.MESSAGES,
            num_lines=packed.num_lines,
            num_bytes=spool.num_bytes,
            refused=packed.refused,
            dropped=packed.dropped,
        )

    async def poll(self, batch_id: str) -> NativeStatus:
        batch = self._client.read(await self._client.get(self._batch_url(batch_id)), _Batch)
        return batch.to_status()

    async def results(
        self, batch_id: str, counts: ResultCounts | None = None
    ) -> AsyncIterator[NativeResult]:
        check_ended(await self.poll(batch_id))
        once = Once(counts)
        # Its results_url is this very path; ours cannot lead anywhere else.
        url = f"{self._batch_url(batch_id)}/results"
        async for line in json_lines(self._client.download(url)):
            result = _read_result(line)
            if once.passes(result):
                assert result is not None
                yield result

    async def cancel(self, batch_id: str) -> NativeStatus:
        try:
            answer = await self._client.post(f"{self._batch_url(batch_id)}/cancel")
        except NativeError as error:
            if error.status not in (400, 409):
                raise
            status = await self.poll(batch_id)
            if status.state is NativeState.RUNNING:
                raise
            return status
        batch = self._client.read(answer, _Batch)
        return batch.to_status()

    async def delete_files(self, file_ids: Sequence[str]) -> None:
        """Lines and results lie in the batch itself, which the provider deletes after 29 days."""

    async def find(
        self,
        native_id: str,
        *,
        submitted_at_s: float,
        num_lines: int,
        known_ids: Collection[str] = (),
    ) -> Found:
        """Of the batches of that age and no more lines, the one whose results bear our name.

        Until such a batch has ended it cannot be told whether it is ours.
        """
        after, is_certain = "", self._client.is_absent(submitted_at_s)
        for _ in range(PAGES_MAX):
            query = {"limit": str(PAGE)} | ({"after_id": after} if after else {})
            answer = await self._client.get(
                self._client.url(f"/messages/batches?{urlencode(query)}")
            )
            page = self._client.read(answer, _Page)
            for batch in page.data:
                if batch.id in known_ids or not _may_be(batch, submitted_at_s, num_lines):
                    continue
                status = batch.to_status()
                if status.state is not NativeState.ENDED:
                    is_certain = False
                elif await self._bears(batch.id, native_id):
                    return Found(status=status, is_certain=True)
            oldest = instant(page.data[-1].created_at) if page.data else None
            is_past = oldest is not None and oldest < submitted_at_s - CLOCK_SLACK_S
            if not page.data or not page.has_more or is_past:
                return Found(status=None, is_certain=is_certain)
            after = page.last_id or page.data[-1].id
        return Found(status=None, is_certain=False)

    async def _bears(self, batch_id: str, native_id: str) -> bool:
        """Whether the first line of its results has our name. Reads no further."""
        lines = json_lines(self._client.download(f"{self._batch_url(batch_id)}/results"))
        try:
            async for line in lines:
                result = _read_result(line)
                if result is not None:
                    return result.custom_id.rpartition(":")[0] == native_id
        finally:
            await lines.aclose()  # type: ignore[attr-defined]  # an async generator
        return False

    def _batch_url(self, batch_id: str) -> str:
        return self._client.url(f"/messages/batches/{quote(batch_id, safe='')}")


def _may_be(batch: _Batch, submitted_at_s: float, num_lines: int) -> bool:
    created_at_s = instant(batch.created_at)
    is_too_large = 0 < num_lines < batch.request_counts.total
    if is_too_large or created_at_s is None:
        return False
    return -CLOCK_SLACK_S <= created_at_s - submitted_at_s <= FIND_S + CLOCK_SLACK_S


class _Encoder:
    """Entries of a JSON list: each but the first begins with a comma.

    Custom ids are made of letters, digits, dashes and underscores only here, so the colon before
    the number becomes a dash on the way out, and a colon again on the way in.
    """

    def __init__(self) -> None:
        self._comma = b""

    def __call__(self, custom_id: str, surface: Surface, body: bytes) -> bytes:
        prefix, _, number = custom_id.rpartition(":")
        comma, self._comma = self._comma, b","
        name = f"{prefix}-{number}".encode()
        return comma + b'{"custom_id":"%s","params":' % name + body + b"}"


def _read_result(line: bytes) -> NativeResult | None:
    try:
        read = _LINE.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    prefix, _, number = read.custom_id.rpartition("-")
    outcome = _OUTCOMES.get(read.result.type)
    if outcome is None or not prefix:
        return None
    body = bytes(read.result.message if outcome is LineOutcome.SUCCEEDED else read.result.error)
    error = None if outcome is LineOutcome.SUCCEEDED else _error(body, outcome)
    status = 200
    if error is not None:
        status = status_of(error) if outcome is LineOutcome.ERRORED else 0
    return NativeResult(
        custom_id=f"{prefix}:{number}",
        outcome=outcome,
        status_code=status,
        surface=Surface.MESSAGES,
        body=body,
        usage=usage_of(body, Surface.MESSAGES),
        error=error,
    )


def _error(body: bytes, outcome: LineOutcome) -> WireError:
    value: object = msgspec.json.decode(body) if body else None
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"] if "error" in value["error"] else value
    found = error_of(value)
    if found is not None:
        return found
    word = "expired" if outcome is LineOutcome.EXPIRED else "was cancelled"
    return WireError(message=f"the line {word} before it was answered", code=outcome.value)
