"""The pipeline's client behind the dashboard: reads a chat answer as it streams, for a page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.relay.job import Headers
from gateway.wire.errors import read_error
from gateway.wire.pieces import WireError
from gateway.wire.sse import SseDecoder

PENDING_CHARS_MAX = 64 * 1024  # not taken yet; then the answer waits, and with it its provider
BODY_BYTES_MAX = 256 * 1024  # of a whole answer or an error


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class AnswerSink:
    """
    Collects text until it is taken. Set `gone` to end the request as its client would.

    The bytes are frames that our own writer made, so their form is known; a frame that is none all
    the same is passed over, as it has nothing to show.
    """

    def __init__(self, clock: Callable[[], float], changed: asyncio.Event) -> None:
        self.gone = asyncio.Event()
        self.is_started = False
        self.extra_headers: Headers = []
        self.status = 0
        self.error: WireError | None = None  # of the endpoint, as it said it
        self.first_at_s: float | None = None  # of visible text or reasoning
        self.num_chars = 0
        self.finish_reason = ""
        self.body = b""
        self._clock = clock
        self._changed = changed
        self._decoder = SseDecoder()
        self._is_stream = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._num_pending = 0
        self._taken = asyncio.Event()

    async def start(self, status: int, headers: Headers) -> None:
        self.is_started = True
        self.status = status
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
        self._is_stream = kind.startswith(b"text/event-stream")
        self._changed.set()

    async def send(self, data: bytes) -> None:
        if not self._is_stream:
            self.body = (self.body + data)[:BODY_BYTES_MAX]
            return
        for event in self._decoder.feed(data):
            if event.data != b"[DONE]":
                self._read(event.data)
        self._changed.set()
        while self._num_pending > PENDING_CHARS_MAX and not self.gone.is_set():
            self._taken.clear()
            await self._taken.wait()

    async def finish(self) -> None:
        if self.status >= 400:
            self.error = read_error(self.body, self.status)
        self._changed.set()

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        await self.start(status, headers)
        await self.send(body)
        await self.finish()

    def leave(self) -> None:
        """Nobody listens any more: the request ends, upstream is closed, what came is paid."""
        self.gone.set()
        self._taken.set()

    def take(self) -> tuple[str, str]:
        """Text and reasoning that came since the last call."""
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        self._text.clear()
        self._reasoning.clear()
        self._num_pending = 0
        self._taken.set()
        return text, reasoning

    def _read(self, data: bytes) -> None:
        try:
            chunk = _CHUNK.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return
        if chunk.error is not None:
            self.error = read_error(data, 0)
        for choice in chunk.choices[:1]:
            delta = choice.delta or _Delta()
            self._keep(self._text, delta.content)
            self._keep(self._reasoning, delta.reasoning_content or delta.reasoning)
            if isinstance(choice.finish_reason, str):
                self.finish_reason = choice.finish_reason

    def _keep(self, kept: list[str], said: object) -> None:
        if not isinstance(said, str) or not said:
            return
        if self.first_at_s is None:
            self.first_at_s = self._clock()
        self.num_chars += len(said)
        self._num_pending += len(said)
        kept.append(said)
