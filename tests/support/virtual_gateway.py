"""The gateway's pipeline, fleet, admission, relay and ledger before simulated providers, on virtual
time: only sockets and the clock are not the real ones."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.core import Caller
from gateway.errors import ApiError, FailureClass
from gateway.fleet.fleet import Fleet
from gateway.keys.authenticate import Authenticator
from gateway.keys.limits import Limits
from gateway.measure.metrics import Metrics
from gateway.measure.recorder import Recorder
from gateway.pipeline import Gateway, Inbound, serve
from gateway.policy.load import load_policy
from gateway.prices.book import PriceBook
from gateway.providers.transport import (
    HEADERS_TIMEOUT_S,
    Headers,
    SendProgress,
    TransportError,
    UpstreamRequest,
)
from gateway.relay.admission import Admission
from gateway.relay.dispatch import Relay
from gateway.settings import Settings
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.provider_server import SimulatedProvider
from gateway.wire.pieces import Surface
from tests.support.ledgers import bench
from tests.support.open_loop import Kind, Sent
from tests.support.virtual_loop import VirtualLoop

WALL_S = 1_800_000_000.0
CALLER = Caller(tenant_id="ten", team_id="team", key_id="key")


class _Answer:
    """One exchange with a provider in this process: its messages are its packets."""

    def __init__(self, clock: Any) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.headers_at_s = self.read_at_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.has_head = asyncio.Event()
        self._clock = clock
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._left = asyncio.Event()

    async def receive_after(self, body: bytes) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        while True:
            yield {"type": "http.disconnect"}

    async def take(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = tuple(message["headers"])
            self.headers_at_s = self._clock()
            self.has_head.set()
            return
        if message.get("body"):
            self._parts.put_nowait(message["body"])
        if not message.get("more_body", False):
            self._parts.put_nowait(None)

    async def stream(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            self.read_at_s = self._clock()
            yield part

    async def aclose(self) -> None:
        self._left.set()
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)


class InProcess:
    """A Transport that calls the provider's ASGI app by the host name of the URL."""

    def __init__(self, providers: Mapping[str, SimulatedProvider]) -> None:
        self._providers = providers

    async def send(
        self,
        request: UpstreamRequest,
        *,
        connect_timeout_s: float = 0.0,
        headers_timeout_s: float = HEADERS_TIMEOUT_S,
        progress: SendProgress | None = None,
    ) -> _Answer:
        url = urlsplit(request.url)
        answer = _Answer(asyncio.get_running_loop().time)
        messages = answer.receive_after(request.body)
        scope = {
            "type": "http",
            "method": request.method,
            "path": url.path,
            "headers": list(request.headers),
        }
        if progress is not None:
            progress.is_sent = True
        provider = self._providers[url.hostname or ""]
        answer.task = asyncio.ensure_future(provider(scope, messages.__anext__, answer.take))
        try:
            async with asyncio.timeout(headers_timeout_s):
                await answer.has_head.wait()
        except TimeoutError:
            await answer.aclose()
            raise TransportError(
                FailureClass.TIMEOUT_FIRST_TOKEN, "no headers in time", was_refused=False
            ) from None
        return answer

    async def aclose(self) -> None:
        pass


@dataclass(slots=True)
class _Client:
    """Reads all it is sent at once and remembers the status."""

    status: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    is_started: bool = False
    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.is_started, self.status = True, status

    async def send(self, data: bytes) -> None:
        pass

    async def finish(self) -> None:
        pass

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.is_started, self.status = True, status


@dataclass(slots=True)
class VirtualGateway:
    """Ask it as many clients would; nothing takes time but what the providers take."""

    gateway: Gateway
    providers: Mapping[str, SimulatedProvider]
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    async def ask(self, kind: Kind, origin_s: float) -> Sent:
        clock = asyncio.get_running_loop().time
        client, began_s, code = _Client(), clock(), ""
        inbound = Inbound(
            request_id=f"req_{next(self._ids)}",
            surface=Surface.CHAT,
            caller=CALLER,
            headers=kind.headers,
            body=json.dumps(kind.body).encode(),
            client=client,
            received_at_s=began_s,
        )
        try:
            await serve(self.gateway, inbound)
        except ApiError as error:
            client.status, code = error.status, error.code or error.type
        return Sent(kind.name, client.status, began_s - origin_s, clock() - began_s, code)


@asynccontextmanager
async def virtual_gateway(
    profiles: Sequence[ProviderProfile], home: Path, policy: str
) -> AsyncIterator[VirtualGateway]:
    """Every profile answers at http://NAME/v1, which `policy` names. Needs a VirtualLoop."""
    clock = asyncio.get_running_loop().time
    providers = {
        profile.name: SimulatedProvider(
            profile, timers=asyncio.get_running_loop(), wall_clock=lambda: WALL_S + clock()
        )
        for profile in profiles
    }
    loaded = load_policy(policy.encode(), environ={})
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(bench(home))
        # Its threads know no virtual time: SQL is written at the end, from the journal.
        ledger = found.ledger()
        await ledger.start()
        stack.push_async_callback(ledger.close)
        ids = (f"id{number:06d}" for number in itertools.count(1))
        fleet = Fleet(
            loaded.endpoints.values(),
            clock=clock,
            wall_clock=lambda: WALL_S + clock(),
            price_rows=PriceBook().rows,
            new_id=ids.__next__,
        )
        relay = Relay(
            InProcess(providers),
            ledger,
            fleet,
            secrets=lambda name: None,
            clock=clock,
            wall_clock=lambda: WALL_S + clock(),
            new_id=ids.__next__,
        )
        stack.push_async_callback(relay.aclose)
        gateway = Gateway(
            settings=Settings.from_environment({"LOOPROUTER_HOME": str(home)}),
            store=found.store,
            authenticator=Authenticator(found.store, b"p" * 32, clock=clock, wall_clock=clock),
            limits=Limits(clock=clock, wall_clock=clock),
            ledger=ledger,
            fleet=fleet,
            relay=relay,
            admission=Admission(loaded.limits.requests_in_flight_max),
            metrics=Metrics(),
            recorder=Recorder(found.store),
            policy=lambda: loaded,
            policy_error=lambda: "",
            tenant_secret=lambda _: b"s" * 32,
            clock=clock,
            wall_clock=lambda: WALL_S + clock(),
            new_request_id=ids.__next__,
            started_at_s=clock(),
        )
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        with loop.jumping():
            yield VirtualGateway(gateway, providers)


def virtual_policy(profiles: Sequence[ProviderProfile], more: str = "") -> str:
    """One public model `chat` over all of them."""
    lines = ["version: 1", "providers:"]
    for profile in profiles:
        lines.append(
            f'  {profile.name}: {{base_url: "http://{profile.name}/v1", network: private, '
            "simulated: true}"
        )
    lines += ["models:", "  chat:"]
    for profile in profiles:
        lines.append(
            f"    - {{provider: {profile.name}, model: {profile.model}, canonical: simulated, "
            "price: {input: 0.1, output: 0.4}}"
        )
    return "\n".join(lines) + "\n" + more
