"""One run of `looprouter up`: gateway, simulated providers and own model, from start to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.app.compose import open_policy, running_store
from gateway.app.own_backend import MODEL, PROVIDER, OwnBackend
from gateway.app.policy_source import PolicySource
from gateway.app.server import listen
from gateway.app.serving import LOCAL_HOSTS, serve_gateway
from gateway.app.up import (
    Choice,
    SimulatedProviders,
    command_here,
    first_key,
    greeting,
    write_demo_policy,
)
from gateway.dashboard.accounts import first_admin
from gateway.pipeline import Gateway
from gateway.settings import Settings

HOST = "127.0.0.1"
LOOK_EVERY_S = 0.1
LOOKS_MAX = 300


class UpRun:
    """`say` prints one line at once. `stop` must follow, whatever became of `run`."""

    def __init__(self, settings: Settings, choice: Choice, *, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._choice = choice
        self._say = say
        self._providers: SimulatedProviders | None = None
        self._own: OwnBackend | None = None
        self._written = ""  # what the demo's policy said when it was written last

    def start_providers(self, free_port: Callable[[int], int]) -> None:
        """Begin to start the simulated ones; they load while the gateway does."""
        self._say("Starting three simulated providers …")
        self._providers = SimulatedProviders.start(free_port)
        self._written = write_demo_policy(self._choice.policy_path, self._providers.ports)

    async def run(self, port: int, model_port: int | None) -> None:
        """Serve on `port`, or the next free one, and the own model on `model_port`."""
        settings, choice = self._settings, self._choice
        async with running_store(settings) as store:
            key, is_new = await first_key(settings, store, now_unix_s=time.time())
            first = await first_admin(store, now=time.time())
            source = await open_policy(settings, store, str(choice.policy_path))
            sock, bound = listen(HOST, port, take_next=True)
            if port not in (0, bound):
                self._say(f"Port {port} is busy; using {bound}.")
            if self._providers is not None:
                await asyncio.to_thread(self._providers.wait_ready)
            if model_port is not None:
                self._own = OwnBackend(model_port, settings.home, settings.environ, say=self._say)
            serving_own: list[asyncio.Task[None]] = []

            def ready(gateway: Gateway) -> None:
                models = list(gateway.policy().models)
                self._say(
                    greeting(
                        base_url=f"http://{HOST}:{bound}",
                        key=key,
                        is_new=is_new,
                        is_demo=choice.is_demo,
                        model=models[0] if models else "chat",
                        own=MODEL if self._own is not None else "",
                        first=first,
                        command=command_here(),
                    )
                )
                # Not before: on two cores it would keep a newcomer waiting for the page.
                if self._own is not None:
                    serving_own.append(asyncio.create_task(self._serve_own(self._own, source)))

            hosts = frozenset(settings.allowed_hosts) or LOCAL_HOSTS
            try:
                await serve_gateway(settings, store, source, sock, on_ready=ready, hosts=hosts)
            finally:
                for task in serving_own:
                    task.cancel()
                await asyncio.gather(*serving_own, return_exceptions=True)

    async def _serve_own(self, own: OwnBackend, source: PolicySource) -> None:
        """In the demo it joins the policy when it is ready, and leaves it when it is given up."""

        async def joined() -> None:
            self._write_policy(own.port)
            for _ in range(LOOKS_MAX):  # until the changed file is in force
                if f"{PROVIDER}/{MODEL}" in source.current.endpoints:
                    self._say(
                        f"{MODEL} is ready: a real model on this machine, ask for it by that name"
                    )
                    return
                await asyncio.sleep(LOOK_EVERY_S)
            self._say(
                f"{MODEL} runs, but the policy does not name it yet. {source.last_error}".strip()
            )

        await own.supervise(joined)
        self._write_policy(None)

    def _write_policy(self, port_of_own: int | None) -> None:
        if self._providers is not None:
            path = self._choice.policy_path
            if path.read_text() != self._written:  # by the dashboard or by hand: it is theirs now
                self._say(f"{path} was changed, so it is not written anew for {MODEL}")
                return
            self._written = write_demo_policy(path, self._providers.ports, own_port=port_of_own)

    def stop(self) -> None:
        """End the children. The gateway has drained by now."""
        if self._own is not None:
            self._own.stop()
        if self._providers is not None:
            self._providers.stop()
