"""Runs one serving process from socket to drained end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog
import uvicorn

from gateway.api.app import build_litestar
from gateway.app.batching import running_batches
from gateway.app.compose import running_gateway
from gateway.app.housekeeping import Housekeeping
from gateway.app.policy_source import PolicySource
from gateway.app.server import RELOAD_SIGNAL, make_server
from gateway.batch.routes import serve_batch_path
from gateway.dashboard.app import dashboard_routes
from gateway.pipeline import Gateway
from gateway.settings import Settings
from gateway.store.engine import Store

log = structlog.get_logger()

ABORT_GRACE_S = 5.0
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


async def serve_gateway(
    settings: Settings,
    store: Store,
    source: PolicySource,
    sock: socket.socket,
    *,
    on_ready: Callable[[Gateway], None],
    hosts: frozenset[str] = frozenset(),
) -> None:
    """Serve on a bound socket until a signal; then drain, settle and close in order."""
    async with (
        running_gateway(settings, store, source, hosts=hosts) as (gateway, housekeeping),
        running_batches(gateway) as lane,
    ):
        beside = partial(serve_batch_path, lane)
        app = build_litestar(gateway, beside, dashboard_routes(gateway, lane))
        server = make_server(app, lambda: drain(gateway))
        server.on_ready = lambda: on_ready(gateway)
        _reload_on_signal(housekeeping)
        await server.serve(sockets=[sock])


async def drain(gateway: Gateway) -> None:
    """Refuse what is new, let what runs finish within the policy's time, end the rest in band."""
    gateway.is_draining = True
    limit_s = gateway.policy().drain_s
    log.info("draining", in_flight=gateway.admission.in_flight, limit_s=limit_s)
    if not await gateway.admission.wait_idle(limit_s):
        log.warning("drain limit reached", in_flight=gateway.admission.in_flight)
        gateway.relay.stop_all()
        await gateway.admission.wait_idle(ABORT_GRACE_S)


def _reload_on_signal(housekeeping: Housekeeping) -> None:
    if RELOAD_SIGNAL is not None:
        asyncio.get_running_loop().add_signal_handler(RELOAD_SIGNAL, housekeeping.reload.set)


def run_in_uvloop(main: Coroutine[Any, Any, None]) -> None:
    """Run the server's coroutine in the loop that uvicorn would choose."""
    config = uvicorn.Config(app=lambda: None, loop="auto", log_config=None)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main)
