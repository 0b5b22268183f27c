"""A TCP server whose every byte and pause is written by the test: honest sockets, no mocks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class ReceivedRequest:
    """One request as it came over the socket."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Connection:
    """The server's end of one connection, for the script to drive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests: list[ReceivedRequest] = []

    async def read_request(self) -> ReceivedRequest | None:
        """The next whole request, or None when the peer has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = [
            (name, value.strip())
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        ]
        length = next((int(value) for key, value in headers if key.lower() == "content-length"), 0)
        body = await self.reader.readexactly(length)
        request = ReceivedRequest(method, target, headers, body)
        self.requests.append(request)
        return request

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_head(
        self, status: int = 200, headers: dict[str, str] | None = None, reason: str = "X"
    ) -> None:
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def send_answer(
        self, body: bytes, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """A whole answer with a content-length."""
        merged = {"content-type": "application/json", "content-length": str(len(body))}
        merged.update(headers or {})
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in merged.items())]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)

    async def begin_stream(self, content_type: str = "text/event-stream") -> None:
        await self.send_head(200, {"content-type": content_type, "transfer-encoding": "chunked"})

    async def send_chunk(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def until_peer_closes(self) -> None:
        """Return when the peer has closed or reset the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Connection], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Where the server listens and what it has seen."""

    port: int
    connections: list[Connection] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[ReceivedRequest]:
        return [request for one in self.connections for request in one.requests]


@contextlib.asynccontextmanager
async def scripted_server(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """Run `script` once for every connection; when it returns, the connection is closed."""
    running: set[asyncio.Task[None]] = set()
    served = ScriptedServer(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        connection = Connection(reader, writer)
        served.connections.append(connection)
        try:
            await script(connection)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls, limit=1 << 20)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
