"""Which API an endpoint has, and lines that cannot go where they should."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.batch.native.api import NativeError, NativeLine
from gateway.batch.native.bodies import line_body
from gateway.batch.native.client import NativeClient
from gateway.batch.native.registry import FORMS, native_api
from gateway.catalogue.native_batch import NATIVE_BATCH
from gateway.core import Endpoint
from gateway.errors import FailureClass
from gateway.providers.httpx_transport import HttpxTransport
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.requests import parse_request
from tests.support.native_playback import golden, playing

pytestmark = pytest.mark.anyio


def _endpoint(base_url: str, api: Dialect = Dialect.OPENAI, **more: Any) -> Endpoint:
    given = {"id": "p/m", "provider": "p", "model": "their-name", **more}
    return Endpoint(base_url=base_url, api=api, **given)


def _line(number: int, surface: Surface, body: dict[str, Any]) -> NativeLine:
    parsed = parse_request(surface, json.dumps(body, indent=2).encode())
    return NativeLine(custom_id=f"nb_7:{number}", parsed=parsed)


async def _each(*lines: NativeLine) -> AsyncIterator[NativeLine]:
    for line in lines:
        yield line


def _chat(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


@pytest.mark.parametrize("facts", NATIVE_BATCH, ids=lambda facts: facts.name)
async def test_address_decides_which_form_is_spoken(facts: Any) -> None:
    transport = HttpxTransport()
    api = Dialect.ANTHROPIC if facts.name == "anthropic" else Dialect.OPENAI
    made = native_api(_endpoint(f"https://{facts.hosts[0]}/v1", api), transport, secret="k")

    assert made is not None
    assert isinstance(made, FORMS[facts.form])  # type: ignore[arg-type]  # they are classes
    assert made.facts is facts
    assert native_api(_endpoint("http://127.0.0.1:9/v1"), transport, secret="k") is None


def test_line_goes_under_the_endpoints_name_on_one_line_without_stream_and_tier() -> None:
    body = _chat(stream=True, stream_options={"include_usage": True}, service_tier="flex")
    line = _line(1, Surface.CHAT, {**body, "provider": {"sort": "price"}})
    made = line_body(_endpoint("https://api.openai.com/v1"), line.parsed, 7)

    assert json.loads(made.body) == {**_chat(model="their-name"), "max_tokens": 7}
    assert b"\n" not in made.body


async def test_lines_the_dialect_cannot_carry_are_told_and_the_others_sent() -> None:
    plan = golden("anthropic", "submit")
    [exchange] = plan["exchanges"]
    requests = exchange["request"]["json"]["requests"][:1]
    wanted = {**exchange["request"], "json": {"requests": requests}}
    audio = [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]
    async with playing("anthropic", [{**exchange, "request": wanted}]) as api:
        submitted = await api.submit(
            "nb_7",
            _each(
                _line(1, Surface.CHAT, _chat("one", max_tokens=16, logit_bias={"1": 1})),
                _line(2, Surface.CHAT, _chat(audio)),
            ),
        )
        with pytest.raises(NativeError, match="none of the lines") as caught:
            await api.submit("nb_7", _each(_line(2, Surface.CHAT, _chat(audio))))

    assert submitted.num_lines == 1
    assert [each.custom_id for each in submitted.refused] == ["nb_7:2"]
    assert submitted.refused[0].param
    assert submitted.dropped == ("logit_bias",)
    assert caught.value.failure is FailureClass.UNTRANSLATABLE
    assert [each.custom_id for each in caught.value.refused] == ["nb_7:2"]


async def test_lines_of_another_or_of_two_apis_are_refused() -> None:
    embeddings = {"model": "m", "input": "x"}
    async with playing("groq", []) as api:
        with pytest.raises(NativeError, match="takes chat, not embeddings"):
            await api.submit("nb_7", _each(_line(1, Surface.EMBEDDINGS, embeddings)))
    async with playing("openai", []) as api:
        with pytest.raises(NativeError, match="not chat and embeddings together"):
            await api.submit(
                "nb_7",
                _each(_line(1, Surface.CHAT, _chat()), _line(2, Surface.EMBEDDINGS, embeddings)),
            )


@pytest.mark.parametrize(
    ("provider", "window_s", "name", "value"),
    [
        ("groq", 3 * 86_400, "completion_window", "3d"),
        ("groq", 30 * 86_400, "completion_window", "7d"),
        ("openai", 3 * 86_400, "completion_window", "24h"),
        ("mistral", 5_000, "timeout_hours", 2),
        ("mistral", 30 * 86_400, "timeout_hours", 168),
    ],
)
async def test_window_is_what_was_asked_for_within_the_providers_limits(
    provider: str, window_s: int, name: str, value: Any
) -> None:
    plan = golden(provider, "submit")
    [upload, create] = plan["exchanges"]
    upload = {**upload, "request": {"method": "POST", "path": upload["request"]["path"]}}
    upload["request"] |= {"form": {"purpose": "batch"}, "filename": "nb_7.jsonl"}
    wanted = {**create["request"]["json"], name: value}
    create = {**create, "request": {**create["request"], "json": wanted}}
    async with playing(provider, [upload, create]) as api:
        line = _line(1, Surface.CHAT, _chat())
        submitted = await api.submit("nb_7", _each(line), window_s=window_s)

    assert submitted.num_lines == 1


async def test_upload_is_never_sent_to_another_address_than_the_providers() -> None:
    [start, *_] = golden("gemini", "submit")["exchanges"]
    away = {"headers": {"x-goog-upload-url": "https://elsewhere.example/upload"}, "text": ""}
    async with playing("gemini", [{**start, "answer": away}]) as api:
        with pytest.raises(NativeError, match="not its own address"):
            await api.submit("nb_7", _each(_line(1, Surface.CHAT, _chat())))

    async with playing("gemini", [{**start, "answer": {"text": ""}}]) as api:
        with pytest.raises(NativeError, match="where to send"):
            await api.submit("nb_7", _each(_line(1, Surface.CHAT, _chat())))


async def test_redirects_of_a_download_end_somewhere() -> None:
    plan = golden("together", "results")
    [status, first, *_] = plan["exchanges"]
    path = first["request"]["path"]
    around = {
        "request": {"method": "GET", "path": path},
        "answer": {"status": 307, "headers": {"location": "{origin}" + path}},
    }
    async with playing("together", [status, *[around] * 4]) as api:
        with pytest.raises(NativeError, match="more than 3 times"):
            [one async for one in api.results(plan["batch_id"])]


def test_base_urls_of_anthropic_may_leave_the_version_out() -> None:
    transport = HttpxTransport()
    urls = [
        NativeClient(_endpoint(base, Dialect.ANTHROPIC), transport, secret=None).url("/x")
        for base in ("https://api.anthropic.com", "https://api.anthropic.com/v1/")
    ]

    assert urls == ["https://api.anthropic.com/v1/x"] * 2
