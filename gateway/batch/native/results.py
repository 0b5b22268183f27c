"""Result files read line by line, and a line in OpenAI's form understood."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gateway.batch.line_splitter import LineSplitter, LineTooLong
from gateway.batch.native.api import (
    RESULT_LINE_BYTES_MAX,
    LineOutcome,
    NativeError,
    NativeResult,
    ResultCounts,
)
from gateway.errors import FailureClass
from gateway.wire.errors import error_of, status_of
from gateway.wire.pieces import Surface, WireError
from gateway.wire.usage import Usage
from gateway.wire.usage_read import read_usage

# Codes under which a line comes back that was never answered.
_OUTCOMES = {
    "batch_expired": LineOutcome.EXPIRED,
    "expired": LineOutcome.EXPIRED,
    "timeout_exceeded": LineOutcome.EXPIRED,
    "batch_cancelled": LineOutcome.CANCELLED,
    "batch_canceled": LineOutcome.CANCELLED,
    "cancelled": LineOutcome.CANCELLED,
    "canceled": LineOutcome.CANCELLED,
}


class _Response(msgspec.Struct):
    status_code: int = 0
    request_id: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


class _HasUsage(msgspec.Struct):
    usage: Any = None


_LINE = msgspec.json.Decoder(_Line)
_RESPONSE = msgspec.json.Decoder(_Response)
_HAS_USAGE = msgspec.json.Decoder(_HasUsage)


async def json_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, empty ones left out. Raises NativeError for one without an end."""
    splitter = LineSplitter(RESULT_LINE_BYTES_MAX)
    try:
        async for part in parts:
            for line in splitter.feed(part):
                yield line.data
        for line in splitter.end():
            yield line.data
    except LineTooLong as error:
        raise NativeError(
            FailureClass.SERVER_ERROR,
            f"line {error.number} of the results is longer than {RESULT_LINE_BYTES_MAX} bytes",
        ) from error


class Once:
    """Lets each custom_id pass once, and counts what it does not let pass."""

    def __init__(self, counts: ResultCounts | None) -> None:
        self.counts = ResultCounts() if counts is None else counts
        self._seen: set[str] = set()

    def passes(self, result: NativeResult | None) -> bool:
        if result is None:
            self.counts.num_broken += 1
            return False
        if result.custom_id in self._seen:
            self.counts.num_repeated += 1
            return False
        self._seen.add(result.custom_id)
        self.counts.num_results += 1
        return True


def openai_result(line: bytes, surface: Surface) -> NativeResult | None:
    """`{"custom_id", "response": {"status_code", "request_id", "body"}, "error"}`; None = broken.

    Failed lines come with an error object, with a response of an error status, or with both.
    """
    try:
        read = _LINE.decode(line)
        response = _read_response(bytes(read.response))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    body = bytes(response.body)
    body = b"" if body == b"null" else body
    told = _told(bytes(read.error), response.status_code)
    if told is None and 200 <= response.status_code < 300 and body:
        return NativeResult(
            custom_id=read.custom_id,
            outcome=LineOutcome.SUCCEEDED,
            status_code=response.status_code,
            surface=surface,
            body=body,
            usage=usage_of(body, surface),
            request_id=response.request_id or "",
        )
    error = told or _told(body, response.status_code)
    error = error or WireError(message="the line failed and its batch does not say why")
    outcome = _OUTCOMES.get(error.code.lower(), LineOutcome.ERRORED)
    was_tried = outcome is LineOutcome.ERRORED
    return NativeResult(
        custom_id=read.custom_id,
        outcome=outcome,
        status_code=_error_status(response.status_code, error) if was_tried else 0,
        surface=surface,
        body=body,
        # A failed line costs nothing but where it says what it used.
        usage=usage_of(body, surface),
        error=error,
        request_id=response.request_id or "",
    )


def _read_response(raw: bytes) -> _Response:
    if raw == b"null":
        return _Response()
    response = _RESPONSE.decode(raw)
    if not response.status_code and bytes(response.body) == b"null" and b'"choices"' in raw:
        return _Response(status_code=200, body=msgspec.Raw(raw))  # the answer without its envelope
    return response


def usage_of(body: bytes, surface: Surface) -> Usage | None:
    """The usage an answer's body tells; None where it tells none."""
    if b'"usage"' not in body:
        return None
    try:
        return read_usage(surface, _HAS_USAGE.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _error_status(status: int, error: WireError) -> int:
    return status if status >= 400 else status_of(error)


def _told(raw: bytes, status: int) -> WireError | None:
    """The error that a raw JSON value is, bare or under `error`; None for null and for answers."""
    if raw in (b"", b"null"):
        return None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(value, str) or (isinstance(value, dict) and "error" not in value):
        if isinstance(value, dict) and not value.keys() & {"message", "code"}:
            return None
        value = {"error": value}
    return error_of(value, status)
