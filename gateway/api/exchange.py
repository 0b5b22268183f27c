"""One HTTP exchange on the hot path: reads the request within limits, writes the answer once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from gateway.errors import BodyTooLarge, InvalidRequest, RequestTimeout

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BODY_BYTES_MAX = 10 * 1024 * 1024
BODY_WAIT_S = 30.0  # the grace before the pace below is asked for
BODY_BYTES_PER_S_MIN = 1024
BODY_TOTAL_S_MAX = 300.0


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


class Exchange:
    """Implements the relay's ClientSink. `gone` is set as soon as the client has left."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = _raw_path(scope)
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self._scheme = str(scope.get("scheme", "http"))
        self.headers: dict[str, str] = {}
        self.raw_headers: Headers = list(scope.get("headers", ()))
        for name, value in self.raw_headers:
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1")
            # A repeated credential or length is ambiguous, so both values must stay visible.
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self.gone = asyncio.Event()
        self.is_started = False
        self.is_finished = False
        self.status = 0
        self.bytes_sent = 0
        self.extra_headers: Headers = []
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        """Scheme and host as the client asked for them."""
        return f"{self._scheme}://{self.headers.get('host', '')}"

    async def read_body(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """The whole body. Raises as `body_parts` does."""
        chunks = [part async for part in self.body_parts(bytes_max)]
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def body_parts(
        self, bytes_max: int, *, total_s_max: float = BODY_TOTAL_S_MAX
    ) -> AsyncIterator[bytes]:
        """The body as it comes. Raises BodyTooLarge, RequestTimeout (drip) or ClientLeft."""
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > bytes_max:
            raise BodyTooLarge(f"the body has {declared} bytes; at most {bytes_max} are accepted")
        loop = asyncio.get_running_loop()
        began_at_s = loop.time()
        size = 0
        while True:
            earned_s = BODY_WAIT_S + size / BODY_BYTES_PER_S_MIN
            deadline_s = began_at_s + min(earned_s, total_s_max)
            try:
                async with asyncio.timeout_at(deadline_s):
                    message = await self._receive()
            except TimeoutError:
                raise RequestTimeout(
                    f"the body arrived too slowly: {size} bytes in "
                    f"{loop.time() - began_at_s:.0f} s; send it in one piece"
                ) from None
            if message["type"] == "http.disconnect":
                self.gone.set()
                raise ClientLeft
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > bytes_max:
                raise BodyTooLarge(f"the body is larger than {bytes_max} bytes")
            if chunk:
                yield chunk
            if not message.get("more_body", False):
                break
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while not self.is_finished:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self.is_finished:
                    self.gone.set()
                return

    def refuse_ambiguous_framing(self) -> None:
        """Both a length and a transfer coding is how requests are smuggled (RFC 9112 6.3)."""
        names = [name.lower() for name, _ in self.raw_headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise InvalidRequest(
                "the request has both Content-Length and Transfer-Encoding; send one of them"
            )
        if names.count(b"content-length") > 1 or names.count(b"host") > 1:
            raise InvalidRequest("Content-Length and Host may appear only once")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidRequest(
                "compressed request bodies are not accepted; remove Content-Encoding"
            )

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line. A second call is a bug of ours."""
        assert not self.is_started, "the answer was started twice"

        self.is_started = True
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.extra_headers],
            }
        )

    async def send(self, data: bytes) -> None:
        """Send a part of the body; waits while the client's socket is full."""
        if not data or self.gone.is_set():
            return
        self.bytes_sent += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """End the body; harmless when called again."""
        if self.is_finished:
            return
        self.is_finished = True
        if self.is_started:
            with contextlib.suppress(OSError):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        await self.close()

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer in one go."""
        assert not self.is_started, "the answer was started twice"

        self.is_started = self.is_finished = True
        self.status = status
        self.bytes_sent += len(body)
        head = [*headers, *self.extra_headers, (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        await self.close()

    async def close(self) -> None:
        """Stop watching the client; nothing waits on this exchange any more."""
        self.is_finished = True
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None


def _raw_path(scope: Scope) -> str:
    """The path as the client sent it, so that no rebuilt URL can differ from what is authorised."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return str(scope["path"])
    return raw.split(b"?", 1)[0].decode("latin-1")
