"""Serves simulated providers over HTTP, each on its own loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import SetupError
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.provider_server import SimulatedProvider

BACKLOG = 2048
HOST = "127.0.0.1"


class _Protocol(HttpToolsProtocol):
    """uvicorn's own protocol, with the transport in reach of an app that has to cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"simulator.transport": self.transport}  # type: ignore[dict-item]  # the transport is no dict


class _Server(uvicorn.Server):
    """Leaves the signals to whoever runs the loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class RunningProvider:
    """One simulated provider that is being served."""

    provider: SimulatedProvider
    port: int
    _server: _Server
    _task: asyncio.Task[None]

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    async def wait(self) -> None:
        """Until it ends; raises what ended it."""
        await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Stop at once; running answers are cut."""
        self._server.should_exit = True
        self._server.force_exit = True
        await self._task


async def start_simulated(
    profiles: Sequence[ProviderProfile],
    ports: Mapping[str, int] | None = None,
    *,
    wrap: Callable[[SimulatedProvider], Any] = lambda provider: provider,
) -> list[RunningProvider]:
    """Serve every profile on 127.0.0.1 in this event loop.

    `ports` maps a profile's name to its port; 0 or absent takes a free one. All sockets are bound
    before the first provider starts. `wrap` may put an ASGI app around each, to watch its traffic.
    Raises SetupError when a port is taken.
    """
    ports = ports or {}
    bound: list[socket.socket] = []
    try:
        for profile in profiles:
            bound.append(_bound(profile.name, ports.get(profile.name, 0)))
    except SetupError:
        for each in bound:
            each.close()
        raise
    return [await _start(p, s, wrap) for p, s in zip(profiles, bound, strict=True)]


def _bound(name: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise SetupError(
            f"simulated provider '{name}': port {port} on {HOST} cannot be used ({error.strerror});"
            " give another port, or 0 for a free one"
        ) from error
    listener.setblocking(False)
    return listener


async def _start(
    profile: ProviderProfile, listener: socket.socket, wrap: Callable[[SimulatedProvider], Any]
) -> RunningProvider:
    loop = asyncio.get_running_loop()
    provider = SimulatedProvider(profile, timers=loop, wall_clock=time.time)
    config = uvicorn.Config(
        wrap(provider),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # a cut stream is our purpose, not an error to report
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            await task
        await asyncio.sleep(0.001)
    return RunningProvider(provider, listener.getsockname()[1], server, task)


def loop_factory() -> Any:
    """uvloop where it is installed: half the CPU per event of the standard loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
