"""The pipeline's client where nobody listens: an answer into memory."""

from __future__ import annotations

import asyncio

from gateway.relay.job import Headers


class LineClient:
    """Collects one whole answer. `gone` may be set to end the request as its client would."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.is_started = False
        self.extra_headers: Headers = []
        self.status = 0
        self.ends_as = "cancelled"  # what a line whose client is `gone` comes to
        self._parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    async def start(self, status: int, headers: Headers) -> None:
        self.is_started = True
        self.status = status

    async def send(self, data: bytes) -> None:
        self._parts.append(data)

    async def finish(self) -> None:
        return

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        await self.start(status, headers)
        await self.send(body)
