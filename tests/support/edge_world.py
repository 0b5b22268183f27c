"""The whole gateway in this process, asked through its ASGI edge, before servers a test scripts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.api.hot import HotApp
from gateway.app.compose import running_gateway, running_store
from gateway.app.policy_source import FilePolicySource
from gateway.keys.service import create_key
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import NewKey
from gateway.pipeline import Gateway
from gateway.settings import Settings
from tests.support.scripted_server import Script, ScriptedServer, scripted_server

SECRET = "sk-provider-secret-0123456789"
WAIT_S = 20.0


@dataclass
class Reply:
    """What the edge sent back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Edge:
    """Asks as a client on a connection of its own would."""

    gateway: Gateway
    servers: list[ScriptedServer]
    key: str
    app: HotApp

    async def ask(
        self,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        said = {"host": "localhost", "authorization": f"Bearer {self.key}", **(headers or {})}
        scope = {
            "type": "http",
            "method": "GET" if sent is None else "POST",
            "path": path,
            "raw_path": path.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in said.items()],
        }
        reply, messages = Reply(), [{"type": "http.request", "body": sent or b""}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {n.decode(): v.decode() for n, v in message["headers"]}
            else:
                reply.body += message["body"]

        await asyncio.wait_for(self.app(scope, receive, send), WAIT_S)
        return reply


@asynccontextmanager
async def edge(
    home: Path, *scripts: Script, policy: str = "", key: NewKey | None = None
) -> AsyncIterator[Edge]:
    """One scripted server a script, as providers a, b, c… of the public model `chat`; or `policy`
    with URL0, URL1… where the servers' addresses belong."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server(one)) for one in scripts]
        text = policy or _policy(len(servers))
        for idx, server in enumerate(servers):
            text = text.replace(f"URL{idx}", server.url)
        file = home / "policy.yaml"
        file.write_text(text)
        settings = Settings.from_environment({"LOOPROUTER_HOME": str(home), "KEY": SECRET})
        store = await stack.enter_async_context(running_store(settings))
        now = time.time()
        tenant_id = await ensure_tenant(store, "default", "default", now=now)
        wanted = key or NewKey(name="test")
        issued = await create_key(store, settings.pepper(), tenant_id, wanted, now=now)
        source = FilePolicySource(file, settings.environ)
        gateway, _ = await stack.enter_async_context(running_gateway(settings, store, source))
        yield Edge(gateway, servers, issued.key, HotApp(gateway))


def _policy(num_servers: int) -> str:
    lines = ["version: 1", "providers:"]
    for idx in range(num_servers):
        lines.append(
            f'  {"abcdef"[idx]}: {{base_url: "URL{idx}/v1", network: private, key_env: KEY, '
            "surfaces: [chat, completions, responses, embeddings]}"
        )
    lines += ["models:", "  chat:"]
    for idx in range(num_servers):
        lines.append(
            f"    - {{provider: {'abcdef'[idx]}, model: m, canonical: m, quantisation: fp8, "
            "price: {input: 1, output: 2}}"
        )
    return "\n".join(lines) + "\n"
