"""F18: nothing in a request chooses where the gateway connects to, or a header it sends there.

A listener stands for the attacker's address (and for the metadata service of a cloud): it must see
no connection, whatever field or header names it. The providers keep what they were sent.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from gateway.simulator.profile import ProviderProfile
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.recording_providers import Providers, Received
from tests.support.simulator_process import BRISK

pytestmark = pytest.mark.e2e

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SECRETS = {"open-sim": "sk-provider-one-0123456789", "anth-sim": "sk-ant-provider-0123456789"}


@dataclass(slots=True)
class Canary:
    """Listens, and counts who comes."""

    port: int = 0
    seen: list[bytes] = field(default_factory=list)
    _sock: socket.socket | None = None

    def start(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._sock is not None
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                try:
                    self.seen.append(connection.recv(1024))
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                except OSError:
                    self.seen.append(b"")

    def stop(self) -> None:
        assert self._sock is not None
        self._sock.close()


@dataclass(frozen=True, slots=True)
class World:
    gateway: RunningGateway
    providers: Providers
    canary: Canary
    http: httpx.Client

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.canary.port}/v1"

    def last(self, name: str) -> Received:
        return self.providers[name].received[-1]

    def ask(
        self, path: str, change: Mapping[str, Any], headers: Mapping[str, str]
    ) -> httpx.Response:
        model = "claude" if path == MESSAGES else "gpt"
        good = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        return self.http.post(
            f"{self.gateway.base_url}{path}",
            json={**good, **change},
            headers={**self.gateway.headers, **headers},
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    providers, canary = Providers(), Canary()
    canary.start()
    profiles = [
        ProviderProfile(name="open-sim", model="gpt-sim", api_key=SECRETS["open-sim"], **BRISK),
        ProviderProfile(name="anth-sim", model="claude-sim", api_key=SECRETS["anth-sim"], **BRISK),
    ]
    providers.start(profiles)
    price = "price: {input: 1, output: 2}"
    policy = f"""
version: 1
providers:
  open-sim: {{base_url: "{providers["open-sim"].base_url}", network: private, key_env: ONE_KEY}}
  anth-sim:
    {{api: anthropic, base_url: "{providers["anth-sim"].base_url}", network: private,
      key_env: TWO_KEY}}
models:
  gpt: [{{provider: open-sim, model: gpt-sim, canonical: sim, {price}}}]
  claude: [{{provider: anth-sim, model: claude-sim, canonical: sim, {price}}}]
"""
    environ = {"ONE_KEY": SECRETS["open-sim"], "TWO_KEY": SECRETS["anth-sim"]}
    try:
        home = tmp_path_factory.mktemp("f18")
        with (
            running_gateway(policy, home, environ=environ) as gateway,
            httpx.Client(timeout=30) as http,
        ):
            yield World(gateway, providers, canary, http)
    finally:
        providers.stop()
        canary.stop()


URL = "URL"  # stands for the canary's address in the tables below

FIELDS: dict[str, dict[str, Any]] = {
    "api_base": {"api_base": URL},
    "base_url": {"base_url": URL},
    "base_url and key": {"base_url": URL, "api_key": "sk-attacker"},
    "headers": {"headers": {"host": URL, "authorization": "Bearer x"}},
    "extra_headers": {"extra_headers": {"x-forwarded-host": URL}},
    "extra_body": {"extra_body": {"base_url": URL}},
    "litellm_params": {"litellm_params": {"api_base": URL}},
    "user_config": {"user_config": {"model_list": [{"litellm_params": {"api_base": URL}}]}},
    "custom_llm_provider": {"custom_llm_provider": "openai", "api_base": URL},
    "metadata": {"metadata": {"api_base": URL, "webhook": URL}},
    "webhook": {"webhook": URL, "callback_url": URL, "notify_url": URL},
    "proxy": {"proxy": URL, "proxies": {"all://": URL}, "http_client": URL},
    "vertex": {"vertex_ai_location": "x.example/", "aws_bedrock_runtime_endpoint": URL},
    "region": {"region_name": URL, "azure_endpoint": URL, "api_version": "../.."},
    "provider.base_url": {"provider": {"base_url": URL}},
    "provider.order": {"provider": {"order": [URL]}},
    "provider.only": {"provider": {"only": [URL]}},
    "model is an address": {"model": URL},
    "model in another's list": {"models": [URL]},
    "route": {"route": URL, "transforms": [URL], "plugins": [{"id": "web", "url": URL}]},
    "speculation": {"speculation": {"method": URL}},
}
CONTENTS: dict[str, list[Any]] = {
    "image_url": [{"type": "image_url", "image_url": {"url": f"{URL}/a.png"}}],
    "image_url as text": [{"type": "image_url", "image_url": f"{URL}/a.png"}],
    "image source": [{"type": "image", "source": {"type": "url", "url": f"{URL}/a.png"}}],
    "file": [{"type": "file", "file": {"file_data": f"{URL}/a.pdf", "filename": "a.pdf"}}],
    "document": [{"type": "document", "source": {"type": "url", "url": f"{URL}/a.pdf"}}],
    "input_image": [{"type": "input_image", "image_url": f"{URL}/a.png"}],
    "input_audio": [{"type": "input_audio", "input_audio": {"data": URL, "format": "mp3"}}],
    "video_url": [{"type": "video_url", "video_url": {"url": f"{URL}/a.mp4"}}],
    "file scheme": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
    "text that is an address": [{"type": "text", "text": URL}],
}
TOOLS: dict[str, list[Any]] = {
    "mcp": [{"type": "mcp", "server_label": "x", "server_url": URL, "require_approval": "never"}],
    "url of a function": [{"type": "function", "function": {"name": "f", "url": URL}}],
    "web search": [{"type": "web_search", "url": URL}],
    "reference in a schema": [
        {"type": "function", "function": {"name": "f", "parameters": {"$ref": URL}}}
    ],
}
HEADERS: dict[str, dict[str, str]] = {
    "x-api-base": {"x-api-base": URL, "api-base": URL, "x-base-url": URL, "openai-api-base": URL},
    "x-forwarded": {"x-forwarded-host": URL, "x-forwarded-for": "8.8.8.8",
        "forwarded": f"host={URL}"},
    "x-original-url": {"x-original-url": "/v1/admin", "x-rewrite-url": URL, "x-original-host": URL},
    "destination": {"x-upstream": URL, "x-target": URL, "x-portkey-custom-host": URL},
    "helicone": {"helicone-target-url": URL, "helicone-openai-api-base": URL},
    "proxy": {"proxy": URL, "x-http-proxy": URL},
    "referer": {"referer": URL, "http-referer": URL, "origin": URL},
    "lane of nobody": {"x-looprouter-endpoint": URL, "x-looprouter-provider": URL},
}  # fmt: skip


def aimed(value: Any, address: str) -> Any:
    return json.loads(json.dumps(value).replace(URL, address))


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("name", FIELDS)
def test_no_field_chooses_a_destination(world: World, path: str, name: str) -> None:
    answer = world.ask(path, aimed(FIELDS[name], world.address), {})

    # Either it is ours to judge and wrong, or it is the provider's and means nothing to us.
    assert answer.status_code in (200, 400, 404, 503), answer.text
    assert world.canary.seen == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("name", CONTENTS)
def test_nothing_that_a_message_points_to_is_fetched(world: World, path: str, name: str) -> None:
    content = aimed(CONTENTS[name], world.address)
    answer = world.ask(path, {"messages": [{"role": "user", "content": content}]}, {})

    assert answer.status_code in (200, 400), answer.text
    assert world.canary.seen == []


@pytest.mark.parametrize("model", ["gpt", "claude"])
@pytest.mark.parametrize("name", ["image_url", "image source", "document"])
def test_nothing_is_fetched_to_translate_it(world: World, model: str, name: str) -> None:
    content = aimed(CONTENTS[name], world.address)
    path = MESSAGES if model == "gpt" else CHAT
    change = {"model": model, "messages": [{"role": "user", "content": content}]}
    answer = world.ask(path, change, {})

    assert answer.status_code in (200, 400), answer.text
    assert world.canary.seen == []


@pytest.mark.parametrize("name", TOOLS)
def test_no_tool_is_called_and_no_schema_is_fetched(world: World, name: str) -> None:
    for path in (CHAT, MESSAGES):
        answer = world.ask(path, {"tools": aimed(TOOLS[name], world.address)}, {})
        assert answer.status_code in (200, 400), answer.text

    assert world.canary.seen == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("name", HEADERS)
def test_no_header_chooses_a_destination(world: World, path: str, name: str) -> None:
    answer = world.ask(path, {}, aimed(HEADERS[name], world.address))

    assert answer.status_code == 200, answer.text
    assert world.canary.seen == []


def test_a_target_with_a_host_of_its_own_stays_here(world: World) -> None:
    """The absolute form of a request target, as a proxy would be asked."""
    body = json.dumps({"model": "gpt", "messages": [], "max_tokens": 8}).encode()
    head = (
        f"POST {world.address}/chat/completions HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{world.canary.port}\r\n"
        f"Authorization: {world.gateway.headers['authorization']}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", world.gateway.port), timeout=10) as sock:
        sock.sendall(head + body)
        while sock.recv(65536):
            pass

    assert world.canary.seen == []


SENT_HEADERS = {
    "authorization": "Bearer {key}", "cookie": "session=1", "x-forwarded-for": "8.8.8.8",
    "x-real-ip": "8.8.8.8", "forwarded": "for=8.8.8.8", "via": "1.1 x", "referer": "http://x/",
    "origin": "http://x", "user-agent": "spy/1", "x-stainless-lang": "python", "dnt": "1",
    "openai-organization": "org-of-the-client", "openai-project": "p", "x-custom": "1",
    "anthropic-version": "2023-06-01\u00e9", "anthropic-beta": "files-api-2025-04-14, x y, a:b",
    "accept": "text/html", "accept-encoding": "br, gzip", "te": "trailers", "x-request-id": "mine",
    "idempotency-key": "of-{path}", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7-01",
}  # fmt: skip
# All that a provider is sent: the transport's own and the adapters'.
ALLOWED = {
    "host", "content-length", "content-type", "accept", "accept-encoding", "user-agent",
    "connection", "authorization", "x-api-key", "anthropic-version", "x-client-request-id",
}  # fmt: skip


@pytest.mark.parametrize(("path", "name"), [(CHAT, "open-sim"), (MESSAGES, "anth-sim")])
def test_provider_gets_our_headers_and_none_of_the_clients(
    world: World, path: str, name: str
) -> None:
    key = world.gateway.key
    given = {
        n: v.replace("{key}", key).replace("{path}", path).encode("latin-1")
        for n, v in SENT_HEADERS.items()
    }
    answer = world.ask(path, {}, given)  # type: ignore[arg-type]  # httpx takes bytes too
    assert answer.status_code == 200, answer.text

    sent = world.last(name).headers
    assert set(sent) <= ALLOWED
    assert key not in json.dumps(sent)
    credential = sent["authorization"] if name == "open-sim" else sent["x-api-key"]
    assert credential.removeprefix("Bearer ") == SECRETS[name]
    assert sent["user-agent"] == "looprouter"
    assert sent["accept-encoding"] == "identity"
    if name == "anth-sim":
        assert sent["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize(
    "text",
    ["a\r\nset-cookie: a=b", "a\nb", "a\x00b", "é\u0301漢", "x" * 5_000, '"; rm -rf /', "a: b"],
)
def test_no_text_of_a_request_becomes_a_header_of_an_answer(world: World, text: str) -> None:
    # A field that the other dialect cannot carry is named in a header.
    for change in ({text: 1}, {"user": text, "seed": 7}, {"service_tier": text}):
        answer = world.ask(CHAT, {"model": "claude", **change}, {})
        assert answer.status_code in (200, 400), answer.text
        assert "set-cookie" not in answer.headers
        for value in answer.headers.values():
            assert len(value) <= 1_100
            assert value.isascii()
            assert value.isprintable()
    refused = world.ask(CHAT, {"model": text}, {})
    assert refused.status_code in (400, 404)
    assert "set-cookie" not in refused.headers
