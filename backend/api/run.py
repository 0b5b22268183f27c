"""Runs one serving process from a bound socket to its drained end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from backend.api.app import BackendApp
from backend.api.auth import Keys
from backend.api.context import Server
from backend.api.server import make_server
from backend.serving.job import TimeLimits
from backend.serving.service import Loaded, LoadModel, Service

BODY_BYTES_MAX = 10 * 1024 * 1024
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    served_name: str
    version: str
    keys: tuple[str, ...] = ()
    limits: TimeLimits = field(default_factory=TimeLimits)
    drain_s: float = DRAIN_S
    ends_with: int | None = None  # a file descriptor at whose end the server drains
    body_bytes_max: int = BODY_BYTES_MAX
    local_names: frozenset[str] | None = None


async def serve_model(
    options: ServeOptions,
    load_model: LoadModel,
    sock: socket.socket,
    on_ready: Callable[[Loaded], None],
) -> None:
    """Listens at once, so that /health says what goes on while the model is loaded.

    Raises what loading raises. Returns behind the drain that SIGTERM or SIGINT begins.
    """
    service = Service(options.served_name, load_model, options.limits, options.drain_s)
    app = BackendApp(
        Server(
            service=service,
            keys=Keys(options.keys),
            version=options.version,
            body_bytes_max=options.body_bytes_max,
            local_names=options.local_names,
        )
    )
    server = make_server(app, service.drain)
    if options.ends_with is not None:
        asyncio.get_running_loop().add_reader(options.ends_with, server.begin_drain)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    starting = asyncio.create_task(service.start())
    try:
        await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not serving.done():
            starting.result()
            on_ready(service.loaded)
    except BaseException:
        server.begin_drain()
        await serving
        raise
    try:
        await serving
    finally:
        starting.cancel()
        await service.close()


def run_in_uvloop(main: Coroutine[Any, Any, None]) -> None:
    """Run the server's coroutine in the loop that uvicorn would choose."""
    config = uvicorn.Config(app=lambda: None, loop="auto", log_config=None)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main)
