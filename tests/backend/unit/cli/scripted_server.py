"""A real socket server that answers every request with the bytes it was told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from backend.cli.measuring.http_client import Address

Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Scripted:
    address: Address
    num_connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@contextlib.asynccontextmanager
async def scripted_server(answering: Answering) -> AsyncIterator[Scripted]:
    """`answering(body, writer)` writes one answer; it may close the writer."""
    seen = Scripted(Address("127.0.0.1", 0, False, "/v1"))

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_content_length(head))
                seen.heads.append(head)
                seen.bodies.append(body)
                await answering(body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    seen.address = Address("127.0.0.1", port, False, "/v1")
    try:
        yield seen
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def head(status: int = 200, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode()


def plain(status: int, body: bytes) -> bytes:
    return head(status, f"content-length: {len(body)}") + body


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM_HEAD = head(200, "content-type: text/event-stream", "transfer-encoding: chunked")
STREAM_END = chunk(b"")


def event(text: str) -> bytes:
    return chunk(
        b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode()
    )


FINISH = chunk(b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n')
DONE = chunk(b"data: [DONE]\n\n")


def usage(prompt: int, cached: int, completion: int) -> bytes:
    return chunk(
        b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}}}\n\n' % (prompt, completion, cached)
    )
