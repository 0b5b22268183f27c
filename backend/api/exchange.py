"""One HTTP exchange as raw ASGI: reads the request within limits, writes the answer once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BODY_WAIT_S = 30.0  # before the pace below is asked for
BODY_BYTES_PER_S_MIN = 1024
BODY_TOTAL_S_MAX = 300.0
SEND_STALL_S = 60.0  # a client that takes nothing for so long has left
JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


class ClientLeft(Exception):
    """The client closed the connection, or takes nothing any more."""


class HttpProblem(Exception):
    """What is wrong with the HTTP of a request: a status of its own, and maybe a header."""

    def __init__(
        self, status: int, message: str, *, code: str = "bad_http", headers: Headers | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers or []


class Exchange:
    """`gone` is set as soon as the client has left."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[str, str] = {}
        for name, value in scope.get("headers", ()):
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            # A repeated credential or length is ambiguous, so both values stay visible.
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self.gone = asyncio.Event()
        self.status = 0
        self.extra_headers: Headers = []
        self._is_finished = False
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._on_gone: Callable[[], None] | None = None

    @property
    def is_started(self) -> bool:
        return self.status != 0

    async def read_body(self, bytes_max: int) -> bytes:
        """The whole body. Raises HttpProblem (too large, too slow) or ClientLeft."""
        if "content-length" in self.headers and "transfer-encoding" in self.headers:
            raise HttpProblem(400, "send either Content-Length or Transfer-Encoding, not both")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpProblem(400, "compressed bodies are not read; leave Content-Encoding out")
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        loop = asyncio.get_running_loop()
        began_at_s = loop.time()
        body = bytearray()
        while True:
            earned_s = min(BODY_WAIT_S + len(body) / BODY_BYTES_PER_S_MIN, BODY_TOTAL_S_MAX)
            try:
                async with asyncio.timeout_at(began_at_s + earned_s):
                    message = await self._receive()
            except TimeoutError:
                raise HttpProblem(
                    408, f"the body came too slowly: {len(body)} bytes in {earned_s:.0f} s"
                ) from None
            if message["type"] == "http.disconnect":
                self.gone.set()
                raise ClientLeft
            body += message.get("body", b"")
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
            if not message.get("more_body", False):
                break
        self._watcher = asyncio.create_task(self._watch())
        return bytes(body)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_finished:
            self._left()

    def when_gone(self, call: Callable[[], None]) -> None:
        """Called once, as soon as the client has left; at once if it has."""
        self._on_gone = call
        if self.gone.is_set():
            call()

    def _left(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            if self._on_gone is not None:
                self._on_gone()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line. A second call is a bug of ours."""
        assert not self.is_started, "the answer was started twice"

        self.status = status
        head = [*headers, *self.extra_headers]
        await self._put({"type": "http.response.start", "status": status, "headers": head})

    async def send(self, data: bytes) -> None:
        """A part of the body; waits while the client's socket is full. Raises ClientLeft."""
        if self.gone.is_set():
            raise ClientLeft
        await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """End the body; harmless when called again."""
        if not self._is_finished:
            self._is_finished = True
            await self._put({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer in one go."""
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, [*headers, length])
        self._is_finished = True
        await self._put({"type": "http.response.body", "body": body, "more_body": False})

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_STALL_S):
                await self._send(message)
        except (TimeoutError, OSError):
            self._left()
            raise ClientLeft from None

    def close(self) -> None:
        """Stop watching the client; nothing waits on this exchange any more."""
        self._is_finished = True
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None


def _too_large(bytes_max: int) -> HttpProblem:
    return HttpProblem(
        413, f"the body is larger than {bytes_max} bytes", headers=[(b"connection", b"close")]
    )
