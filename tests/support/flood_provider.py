"""A provider that streams megabytes as fast as they are taken: run as a process of its own.

Its answers: to `stream: true` so many mebibytes of text, else a short one. GET /stats counts.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys

MEBIBYTE = 1024 * 1024
FRAME_CHARS = 16_384
STREAM_MEBIBYTES = 4
SEND_BUFFER_BYTES = 128 * 1024  # what lies here unsent is not yet with the gateway


def frame(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    said = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    data = b"data: " + json.dumps({**said, "choices": [choice]}).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


TEXT = frame("word " * (FRAME_CHARS // 5))
END = frame("", "stop")
SHORT = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop",
    }],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}).encode()  # fmt: skip
OK = b"HTTP/1.1 200 OK\r\n"


class Flood:
    """Counts what it sent and who is still connected."""

    def __init__(self) -> None:
        self.num_streams = 0  # begun
        self.num_open = 0  # streams not yet at their end
        self.num_whole = 0
        self.bytes_sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        body = await reader.readexactly(size)
        if head.startswith(b"GET /stats"):
            await self._answer(writer, json.dumps(vars(self)).encode())
        elif json.loads(body).get("stream"):
            await self._flood(writer)
        else:
            await self._answer(writer, SHORT)
        return True

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        kind = b"content-type: application/json\r\n"
        writer.write(OK + kind + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        self.num_streams += 1
        self.num_open += 1
        try:
            kind = b"content-type: text/event-stream\r\n"
            writer.write(OK + kind + b"transfer-encoding: chunked\r\n\r\n")
            for _ in range(STREAM_MEBIBYTES * MEBIBYTE // FRAME_CHARS):
                writer.write(TEXT)
                await writer.drain()
                self.bytes_sent += len(TEXT)
            done = b"data: [DONE]\n\n"
            writer.write(END + b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
            await writer.drain()
            self.num_whole += 1
        finally:
            self.num_open -= 1


async def main() -> None:
    flood = Flood()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited
    sock.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(flood.serve, sock=sock, limit=MEBIBYTE, backlog=1_024)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Whoever started us holds the other end: its end is ours.
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
