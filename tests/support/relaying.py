"""A relay with a real ledger, fleet, policy and transport, facing servers that a test scripts."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.core import Caller, Plan
from gateway.fleet.fleet import Fleet
from gateway.ledger.ledger import Ledger
from gateway.policy.facts import describe
from gateway.policy.load import load_policy
from gateway.policy.policy import Policy
from gateway.prices.book import PriceBook
from gateway.relay.dispatch import Relay, RelayJob, RelayLimits, RelayResult
from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from tests.support.ledgers import Bench, add_budget, attempt_rows, bench
from tests.support.scripted_server import Connection, Script, ScriptedServer, scripted_server
from tests.support.transports import FACTORIES

SECRET = "sk-provider-secret-0123456789"
CLIENT_KEY = "lr-client-key-of-ours"
INPUT_NANOS, OUTPUT_NANOS = 1_000, 2_000  # a token, at the policy's $1 and $2 a million
WAIT_S = 10.0


@dataclass
class Client:
    """The edge as the relay sees it; keeps what it is given."""

    gone: asyncio.Event = field(default_factory=asyncio.Event)
    is_started: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    is_finished: bool = False
    blocks: asyncio.Event | None = None  # while set and not fired, `send` takes nothing more
    has_data: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.is_started

        self.is_started = True
        self.status = status
        self.headers = {name.decode(): value.decode() for name, value in headers}

    async def send(self, data: bytes) -> None:
        assert self.is_started
        assert not self.is_finished

        self.chunks.append(data)
        self.has_data.set()
        if self.blocks is not None:
            await self.blocks.wait()

    async def finish(self) -> None:
        self.is_finished = True

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def frames(self) -> list[str]:
        """The stream's data lines."""
        return [
            line.removeprefix("data: ")
            for line in self.body.decode().split("\n")
            if line.startswith("data: ")
        ]

    @property
    def text(self) -> str:
        """Chat text as a client would join it."""
        parts = []
        for frame in self.frames:
            if frame != "[DONE]":
                for choice in json.loads(frame).get("choices", ()):
                    parts.append(choice.get("delta", {}).get("content") or "")
        return "".join(parts)


@dataclass
class World:
    """What one test relays with."""

    servers: Sequence[ScriptedServer]
    policy: Policy
    fleet: Fleet
    ledger: Ledger
    relay: Relay
    bench: Bench
    budget_ids: tuple[str, ...]

    def job(
        self,
        body: dict[str, Any] | None = None,
        surface: Surface = Surface.CHAT,
        *,
        order: Sequence[str] | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> RelayJob:
        """A request in the order of the servers, unless said otherwise."""
        sent = body if body is not None else chat(**more)
        caller = Caller(tenant_id="ten", team_id="team", key_id="key", budget_ids=self.budget_ids)
        parsed = parse_request(surface, json.dumps(sent).encode())
        facts = describe(
            parsed,
            caller,
            headers or {},
            request_id="req_1",
            tenant_secret=b"s" * 32,
            policy=self.policy,
        )
        snapshot = self.fleet.snapshot()
        plan = Plan(
            model="chat",
            route="",
            preference="fastest",
            order=tuple(order if order is not None else self.policy.models["chat"]),
            policy_version=self.policy.version,
            snapshot_id=snapshot.id,
            seed=1,
        )
        return RelayJob(
            request_id="req_1",
            surface=surface,
            caller=caller,
            facts=facts,
            plan=plan,
            snapshot=snapshot,
            parsed=parsed,
            policy=self.policy,
            headers={"authorization": f"Bearer {CLIENT_KEY}", **(headers or {})},
        )

    async def run(self, client: Client | None = None, **more: Any) -> tuple[RelayResult, Client]:
        client = client or Client()
        result = await asyncio.wait_for(self.relay.run(self.job(**more), client), WAIT_S)
        return result, client

    async def booked(self) -> list[Any]:
        """Attempts as SQL has them, in the order of their ids."""
        await self.ledger.flush()
        rows = await attempt_rows(self.bench.store)
        return [rows[attempt_id] for attempt_id in sorted(rows)]


def chat(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say something nice."}]
    return {"model": "chat", "messages": messages, "stream": True, "max_tokens": 100, **more}


@asynccontextmanager
async def relay_world(
    home: Path,
    *scripts: Script,
    apis: Sequence[str] = (),
    policy: str = "",
    endpoint: str = "",
    budget_nanos: int | None = None,
    limits: RelayLimits | None = None,
) -> AsyncIterator[World]:
    """One scripted server a script, as providers a, b, c… of the public model `chat`.

    `endpoint`: what more every endpoint says of itself, as the policy writes it.
    """
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server(one)) for one in scripts]
        loaded = load_policy(_policy_text(servers, apis, policy, endpoint), environ=None)
        found = await stack.enter_async_context(bench(home))
        budget_ids: tuple[str, ...] = ()
        if budget_nanos is not None:
            await add_budget(found.store, "bud", budget_nanos)
            budget_ids = ("bud",)
        ledger = found.ledger()
        await ledger.start()
        stack.push_async_callback(ledger.close)
        transport = FACTORIES["httpx"](None)
        stack.push_async_callback(transport.aclose)
        ids = (f"id{number:04d}" for number in itertools.count(1))
        loop = asyncio.get_running_loop()
        fleet = Fleet(
            loaded.endpoints.values(),
            clock=loop.time,
            wall_clock=lambda: 1_700_000_000.0,
            price_rows=PriceBook().rows,
            new_id=ids.__next__,
        )
        relay = Relay(
            transport,
            ledger,
            fleet,
            secrets=lambda name: SECRET,
            clock=loop.time,
            wall_clock=lambda: 1_700_000_000.0,
            new_id=ids.__next__,
            limits=limits,
        )
        stack.push_async_callback(relay.aclose)
        yield World(servers, loaded, fleet, ledger, relay, found, budget_ids)


def _policy_text(
    servers: Sequence[ScriptedServer], apis: Sequence[str], more: str, endpoint: str
) -> bytes:
    lines = ["version: 1", "providers:"]
    for idx, server in enumerate(servers):
        api = apis[idx] if idx < len(apis) else "openai"
        surfaces = "" if api == "openai" else ", surfaces: [messages]"
        if api == "openai":
            surfaces = ", surfaces: [chat, completions, responses, embeddings]"
        lines.append(
            f'  {"abcdef"[idx]}: {{api: {api}, base_url: "{server.url}/v1", network: private, '
            f"key_env: KEY{surfaces}}}"
        )
    lines += ["models:", "  chat:"]
    for idx in range(len(servers)):
        lines.append(
            f"    - {{provider: {'abcdef'[idx]}, model: m, canonical: m, quantisation: fp8, "
            f"price: {{input: 1, output: 2}}{endpoint and ', ' + endpoint}}}"
        )
    return ("\n".join(lines) + "\n" + more).encode()


# Upstream sides of a conversation


def frame(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """One chat frame as a provider would send it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    said = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    return b"data: " + json.dumps({**said, "choices": [choice], **more}).encode() + b"\n\n"


def token(text: str) -> bytes:
    return frame({"content": text})


ROLE = frame({"role": "assistant", "content": ""})
STOP = frame({}, "stop")
DONE = b"data: [DONE]\n\n"


def usage_frame(prompt: int, completion: int, **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion,
             "total_tokens": prompt + completion, **more}  # fmt: skip
    said = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    return b"data: " + json.dumps({**said, "choices": [], "usage": usage}).encode() + b"\n\n"


def streams(*parts: bytes) -> Script:
    """A server that streams these parts to every request, each as a chunk of its own."""

    async def script(connection: Connection) -> None:
        while await connection.read_request() is not None:
            await connection.begin_stream()
            for part in parts:
                await connection.send_chunk(part)
            await connection.end_stream()

    return script


def answers(
    body: bytes | dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Script:
    """A server that gives this whole answer to every request."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def script(connection: Connection) -> None:
        while await connection.read_request() is not None:
            await connection.send_answer(sent, status, headers)

    return script


GOOD = streams(ROLE, token("Hel"), token("lo"), STOP, usage_frame(11, 2), DONE)
COMPLETION: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13},
}


async def resets(connection: Connection) -> None:
    """A server that reads the request and resets the connection."""
    await connection.read_request()
    connection.reset()


async def hangs(connection: Connection) -> None:
    """A server that reads the request and says nothing."""
    await connection.read_request()
    await connection.until_peer_closes()
