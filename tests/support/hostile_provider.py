"""A provider whose every byte a test writes, on a thread of its own, in front of which a real
gateway runs. One server plays all providers: the path says which, the body's `model` says whom.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.scripted_server import Connection, ReceivedRequest

WAIT_S = 20.0  # for whatever must happen; a hang fails the test, it does not slow it down
ONE_BYTE_MAX = 4096  # bytes sent one by one at each end of a long part


class Gate:
    """Opened by the test's thread, waited for by a script (or the other way round)."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    @property
    def is_open(self) -> bool:
        return self._event.is_set()

    async def passed(self) -> None:
        if not await asyncio.to_thread(self._event.wait, WAIT_S):
            raise AssertionError("a gate of this test never opened")

    def wait(self) -> None:
        assert self._event.wait(WAIT_S), "a gate of this test never opened"


def one_byte(data: bytes) -> Iterator[bytes]:
    """Byte by byte; of a part too long for that its first and last 4 KiB."""
    head, tail = data[:ONE_BYTE_MAX], data[ONE_BYTE_MAX:]
    middle, tail = tail[:-ONE_BYTE_MAX], tail[-ONE_BYTE_MAX:]
    yield from (head[idx : idx + 1] for idx in range(len(head)))
    yield from (middle[idx : idx + 65_536] for idx in range(0, len(middle), 65_536))
    yield from (tail[idx : idx + 1] for idx in range(len(tail)))


def randomly(data: bytes) -> Iterator[bytes]:
    """Cuts that fall anywhere, the same in every run."""
    rng = random.Random(len(data))
    longest = max(40, len(data) // 200)
    start = 0
    while start < len(data):
        size = rng.randint(1, longest)
        yield data[start : start + size]
        start += size


def whole(data: bytes) -> Iterator[bytes]:
    if data:  # an empty chunk would be the end of the stream
        yield data


Chunking = Callable[[bytes], Iterator[bytes]]
CHUNKINGS: dict[str, Chunking] = {"one_byte": one_byte, "random": randomly, "whole": whole}


@dataclass
class Turn:
    """One request as the provider sees it, and the provider's means to answer it."""

    provider: str
    model: str
    request: ReceivedRequest
    connection: Connection
    chunking: Chunking
    came_at_s: float
    client_left_at_s: float | None = None
    client_left: threading.Event = field(default_factory=threading.Event)
    is_last: bool = False  # the connection closes after it
    taken: int = 0  # of what a script offers without end

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.request.body)
        return decoded

    async def begin(self, content_type: str = "text/event-stream", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.connection.send_head(
            200, {"content-type": content_type, "transfer-encoding": "chunked", **named}
        )

    async def say(self, *parts: bytes) -> None:
        """Parts of the stream as HTTP chunks, cut as this test cuts."""
        await self._write(part for part in self.chunking(b"".join(parts)))

    async def _write(self, pieces: Iterator[bytes]) -> None:
        writer = self.connection.writer
        for idx, piece in enumerate(pieces):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if idx % 64 == 0:
                await writer.drain()
        await writer.drain()

    async def end(self) -> None:
        await self.connection.end_stream()

    async def stream(self, *parts: bytes, content_type: str = "text/event-stream") -> None:
        """A stream that is whole as HTTP goes."""
        await self.begin(content_type)
        await self.say(*parts)
        await self.end()

    async def answer(
        self,
        body: bytes | dict[str, Any],
        status: int = 200,
        content_type: str = "application/json",
        **headers: str,
    ) -> None:
        """A plain answer with a length, cut as this test cuts."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.connection.send_head(
            status, {"content-type": content_type, "content-length": str(len(data)), **named}
        )
        for piece in self.chunking(data):
            await self.connection.send(piece)

    def reset(self) -> None:
        self.is_last = True
        self.connection.reset()

    def hang_up(self) -> None:
        """Close the connection though the stream's framing promised more."""
        self.is_last = True
        self.connection.writer.close()

    async def until_client_leaves(self) -> None:
        """Wait for the gateway's FIN or RST and note when it came."""
        self.is_last = True
        await asyncio.wait_for(self.connection.until_peer_closes(), WAIT_S)
        self.client_left_at_s = time.monotonic()
        self.client_left.set()


Script = Callable[[Turn], Awaitable[None]]


class HostileProvider:
    """Start it, give it scripts, read what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.tls_port = 0
        self.turns: list[Turn] = []
        self.failures: list[BaseException] = []  # of scripts: a test must not pass over them
        self._scripts: dict[tuple[str, str], list[Script]] = {}
        self._chunkings: dict[tuple[str, str], Chunking] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._thread.start()
        self.port = self._call(self._listen(None))
        if tls is not None:
            self.tls_port = self._call(self._listen(tls))

    def stop(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def play(self, provider: str, model: str, *scripts: Script, chunking: Chunking = whole) -> None:
        """Script i answers request i to this endpoint; the last one answers all that follow."""
        self._scripts[provider, model] = list(scripts)
        self._chunkings[provider, model] = chunking

    def turns_of(self, model: str, provider: str = "") -> list[Turn]:
        return [
            turn for turn in self.turns if turn.model == model and provider in ("", turn.provider)
        ]

    def turn(self, model: str, provider: str) -> Turn:
        """The one request this endpoint got; waits until it is there."""
        deadline_s = time.monotonic() + WAIT_S
        while not (found := self.turns_of(model, provider)):
            assert time.monotonic() < deadline_s, f"{provider}/{model} was never asked"
            time.sleep(0.005)
        assert len(found) == 1
        return found[0]

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _listen(self, tls: ssl.SSLContext | None) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls, limit=1 << 24)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._converse(Connection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._running.discard(task)
            writer.close()

    async def _converse(self, connection: Connection) -> None:
        while (request := await connection.read_request()) is not None:
            provider = request.target.split("/")[1]
            model = str(json.loads(request.body).get("model"))
            key = (provider, model)
            turn = Turn(
                provider,
                model,
                request,
                connection,
                self._chunkings.get(key, whole),
                time.monotonic(),
            )
            scripts: Sequence[Script] = self._scripts.get(key, [_unexpected])
            self.turns.append(turn)
            await scripts[min(len(self.turns_of(model, provider)), len(scripts)) - 1](turn)
            if turn.is_last:
                return


async def _unexpected(turn: Turn) -> None:
    """An endpoint without a script: the router should not have come here."""
    await turn.answer({"error": {"message": "nobody wrote a script for this endpoint"}}, 500)


def names(prefix: str) -> Iterator[str]:
    """prefix000, prefix001, …: an endpoint for each test, so that none inherits a breaker."""
    return (f"{prefix}{idx:03}" for idx in itertools.count())
