"""Simulated providers on a loop of their own, with every request they received kept as it came."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.simulator.meter import InvoiceLine
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.provider_server import SimulatedProvider
from gateway.simulator.serve import RunningProvider, loop_factory, start_simulated

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received:
    """One request as the provider got it."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class RecordingProvider:
    """One simulated provider. Read its books and change its profile through the methods only."""

    name: str
    running: RunningProvider
    received: list[Received]
    _run: Callable[[Callable[[], Any]], Any]

    @property
    def base_url(self) -> str:
        return self.running.base_url

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self._run(self.running.provider.stats)
        return found

    def invoice(self) -> list[InvoiceLine]:
        lines: list[InvoiceLine] = self._run(lambda: list(self.running.provider.books.lines))
        return lines

    def control(self, **changes: object) -> None:
        self._run(lambda: self.running.provider.control(changes))


@dataclass(slots=True)
class Providers:
    """All of them, by name; they end with `stop`."""

    by_name: dict[str, RecordingProvider] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def __getitem__(self, name: str) -> RecordingProvider:
        return self.by_name[name]

    def start(self, profiles: Sequence[ProviderProfile]) -> None:
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        received: dict[str, list[Received]] = {profile.name: [] for profile in profiles}
        running = self._await(
            start_simulated(profiles, wrap=lambda each: recorded(each, received[each.profile.name]))
        )
        for each in running:
            name = each.provider.profile.name
            self.by_name[name] = RecordingProvider(name, each, received[name], self._run)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None

        for each in self.by_name.values():
            self._await(each.running.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None

        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _run(self, read: Callable[[], T]) -> T:
        """On the providers' own thread, so that nothing is read while it changes."""

        async def call() -> T:
            return read()

        return self._await(call())


def recorded(provider: SimulatedProvider, received: list[Received]) -> Any:
    """The provider as an ASGI app that also keeps what it is sent."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/sim/"):
            await provider(scope, receive, send)
            return
        parts: list[bytes] = []
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}

        async def tee() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    received.append(Received(scope["path"], headers, b"".join(parts)))
            return message

        await provider(scope, tee, send)

    return app
