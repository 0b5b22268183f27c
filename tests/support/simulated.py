"""Drives a simulated provider as an ASGI app on virtual time, and reads what it sent."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import Callable
from typing import Any

from gateway.simulator.profile import ProviderProfile
from gateway.simulator.provider_server import SimulatedProvider

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
}
STEADY: dict[str, Any] = {
    "ttft_sigma": 0.0,
    "rate_sigma": 0.0,
    "event_sigma": 0.0,
    "ttft_base_s": 1.0,
    "prefill_tokens_per_s": 1e9,
    "tokens_per_s": 10.0,
    "model": "m",
}


class _Handle:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualTimers:
    """A clock that moves only when nothing else can."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None], _Handle]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> _Handle:
        handle = _Handle()
        heapq.heappush(self._due, (when, next(self._order), callback, handle))
        return handle

    async def until_done(self, *tasks: asyncio.Future[Any]) -> None:
        while True:
            for _ in range(12):
                await asyncio.sleep(0)
            if all(task.done() for task in tasks):
                return
            while self._due and self._due[0][3].is_cancelled:
                heapq.heappop(self._due)
            assert self._due, "everything waits and no timer is set"
            when, _, callback, _ = heapq.heappop(self._due)
            self.now_s = max(self.now_s, when)
            callback()


class _Transport:
    def __init__(self, lost: asyncio.Event) -> None:
        self._lost = lost
        self.ended = ""

    def close(self) -> None:
        self.ended = self.ended or "closed"
        self._lost.set()

    def abort(self) -> None:
        self.ended = "aborted"
        self._lost.set()

    def is_closing(self) -> bool:
        return bool(self.ended)


class Exchange:
    """One request and all that came back, with the virtual second of every message."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.transport = _Transport(self.lost)
        self.stamps_s: list[float] = []
        self.parts: list[bytes] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """(event name, parsed data) of an event stream; "[DONE]" stays text."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            name, data = "", ""
            for line in block.split("\n"):
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
            found.append((name, data if data == "[DONE]" else json.loads(data)))
        return found

    @property
    def chunks(self) -> list[Any]:
        return [data for _, data in self.events if data != "[DONE]"]


class SimulatedWorld:
    """One provider, its virtual clock, and requests against it."""

    def __init__(self, **profile: Any) -> None:
        self.timers = VirtualTimers()
        self.started_s = self.timers.now_s
        self.provider = SimulatedProvider(
            ProviderProfile(**{"name": "sim", **STEADY, **profile}),
            timers=self.timers,
            wall_clock=lambda: 1_800_000_000.0,
        )

    @property
    def elapsed_s(self) -> float:
        return self.timers.now_s - self.started_s

    def start(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        leave_at_s: float | None = None,
        query: str = "",
    ) -> tuple[asyncio.Task[None], Exchange]:
        exchange = Exchange()
        given = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        given |= headers or {}
        if path in ("messages", "count_tokens"):
            path = PATHS[path]
        else:
            path = PATHS.get(path, path)
            if not (headers or {}).get("anthropic-version"):
                del given["anthropic-version"]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(n.encode(), v.encode()) for n, v in given.items()],
            "extensions": {"simulator.transport": exchange.transport},
        }
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        pending = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pending:
                return pending.pop()
            await exchange.lost.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if exchange.lost.is_set():
                return
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {n.decode(): v.decode() for n, v in message["headers"]}
                return
            exchange.stamps_s.append(self.elapsed_s)
            exchange.parts.append(message.get("body", b""))
            exchange.is_complete = not message.get("more_body", False)

        if leave_at_s is not None:
            self.timers.call_at(self.timers.now_s + leave_at_s, exchange.lost.set)
        return asyncio.ensure_future(self.provider(scope, receive, send)), exchange

    async def ask(self, path: str, body: Any = None, **options: Any) -> Exchange:
        task, exchange = self.start(path, body, **options)
        await self.timers.until_done(task)
        await task
        return exchange

    async def invoice(self) -> list[dict[str, Any]]:
        return (await self.ask("/sim/invoice", method="GET")).json["lines"]

    async def stats(self) -> dict[str, Any]:
        return (await self.ask("/sim/stats", method="GET")).json

    async def control(self, **changes: Any) -> Exchange:
        return await self.ask("/sim/control", changes)


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def messages(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 4096, **chat(text, **fields)}
