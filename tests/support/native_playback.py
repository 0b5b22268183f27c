"""Plays exchanges with a provider's batch API over real sockets, and checks each request."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from multipart import MultipartParser, parse_options_header

from gateway.batch.native.api import NativeBatchApi, NativeLine
from gateway.batch.native.registry import native_api
from gateway.catalogue.native_batch import NATIVE_BATCH, NativeBatchFacts
from gateway.core import Endpoint, Network
from gateway.providers.httpx_transport import HttpxTransport
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.requests import parse_request
from tests.support.scripted_server import (
    Connection,
    ReceivedRequest,
    ScriptedServer,
    scripted_server,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "native"
PROVIDERS = tuple(facts.name for facts in NATIVE_BATCH)
SECRET = "sk-secret"


def golden(provider: str, name: str) -> Any:
    return json.loads((GOLDEN / provider / f"{name}.json").read_text())


def facts_of(provider: str) -> NativeBatchFacts:
    return next(facts for facts in NATIVE_BATCH if facts.name == provider)


class Playback:
    """Answers in order; every way in which a request differed is kept in `problems`."""

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self.left = list(exchanges)
        self.problems: list[str] = []
        self.origin = ""
        self.other = ""

    async def __call__(self, connection: Connection) -> None:
        while (request := await connection.read_request()) is not None:
            if not self.left:
                self.problems.append(f"one more: {request.method} {request.target}")
                await connection.send_answer(b"{}", 599)
                continue
            exchange = self.left.pop(0)
            self.problems += list(_differences(exchange["request"], request))
            await self._answer(connection, exchange["answer"])

    async def _answer(self, connection: Connection, answer: dict[str, Any]) -> None:
        if answer.get("drop"):
            connection.reset()
            return
        headers = {
            name: value.replace("{origin}", self.origin).replace("{other}", self.other)
            for name, value in answer.get("headers", {}).items()
        }
        body = body_of(answer)
        if answer.get("cut"):  # in the middle of the second line
            await connection.send_head(200, {"content-length": str(len(body))})
            await connection.send(body[: body.index(b"\n") + 20])
            await asyncio.sleep(0.05)
            connection.writer.close()
            return
        await connection.send_answer(body, answer.get("status", 200), headers)

    def check(self) -> None:
        assert not self.problems, "\n".join(self.problems)
        assert not self.left, f"{len(self.left)} exchanges were not asked for"


def body_of(answer: dict[str, Any]) -> bytes:
    if "bytes" in answer:
        raw: bytes = answer["bytes"]
        return raw
    if "lines" in answer:
        return "".join(json.dumps(line) + "\n" for line in answer["lines"]).encode()
    if "json" in answer:
        return json.dumps(_expanded(answer["json"])).encode()
    return str(answer.get("text", "")).encode()


def _expanded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _expanded(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    found: list[Any] = []
    for each in value:
        is_repeated = isinstance(each, dict) and "$repeat" in each
        found += [each["of"]] * each["$repeat"] if is_repeated else [_expanded(each)]
    return found


def _differences(wanted: dict[str, Any], request: ReceivedRequest) -> list[str]:
    """What of the request is not as the exchange says."""
    found: dict[str, Any] = {"method": request.method, "path": request.target}
    body, filename = request.body, None
    content_type = request.header("content-type") or ""
    if content_type.startswith("multipart/form-data"):
        form, body, filename = _form(content_type, request.body)
        found["form"] = form
    found["filename"] = filename
    if "json" in wanted:
        found["json"] = json.loads(body)
    if "lines" in wanted:
        found["lines"] = [json.loads(line) for line in body.decode().splitlines()]
    said = [
        f"{name}: {found.get(name)!r} where {value!r} was expected"
        for name, value in wanted.items()
        if name != "headers" and found.get(name) != value
    ]
    for name, value in wanted.get("headers", {}).items():
        if request.header(name) != value:
            said.append(f"header {name} of {request.target}: {request.header(name)!r}")
    return said


def _form(content_type: str, body: bytes) -> tuple[dict[str, str], bytes, str | None]:
    _, options = parse_options_header(content_type)
    parser = MultipartParser(io.BytesIO(body), options["boundary"], strict=True)
    fields: dict[str, str] = {}
    data, filename = b"", None
    for part in parser:
        if part.filename:
            assert part.name == "file"
            data, filename = part.raw, part.filename
        else:
            fields[part.name] = part.value
    return fields, data, filename


@contextlib.asynccontextmanager
async def playing(
    provider: str, exchanges: list[dict[str, Any]], facts: NativeBatchFacts | None = None
) -> AsyncIterator[NativeBatchApi]:
    """The provider's adapter against a server that plays these exchanges; checked at the end."""
    playback = Playback(exchanges)
    submit = golden(provider, "submit")
    transport = HttpxTransport()
    async with scripted_server(playback) as server, scripted_server(playback) as other:
        playback.origin, playback.other = server.url, other.url
        endpoint = endpoint_at(provider, server, submit)
        api = native_api(endpoint, transport, secret=SECRET, facts=facts or facts_of(provider))
        assert api is not None
        try:
            yield api
        finally:
            await transport.aclose()
    playback.check()


def endpoint_at(provider: str, server: ScriptedServer, submit: dict[str, Any]) -> Endpoint:
    api = Dialect.ANTHROPIC if provider == "anthropic" else Dialect.OPENAI
    return Endpoint(
        id=f"{provider}/m",
        provider=provider,
        api=api,
        base_url=server.url + submit["base"],
        model=submit["model"],
        network=Network.PRIVATE,
        surfaces=frozenset({"messages"}) if api is Dialect.ANTHROPIC else frozenset(),
    )


def chat_line(number: int, text: str, native_id: str = "nb_7", **fields: Any) -> NativeLine:
    """A chat request of a client, who knows the model by a public name and may ask for a stream."""
    body = {
        "model": "public-name",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        **fields,
    }
    parsed = parse_request(Surface.CHAT, json.dumps(body, indent=1).encode())
    return NativeLine(custom_id=f"{native_id}:{number}", parsed=parsed)


async def lines_of(*lines: NativeLine) -> AsyncIterator[NativeLine]:
    for line in lines:
        yield line
