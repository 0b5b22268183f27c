"""Over real sockets: the official SDKs, cuts, departures, ports, the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest

from gateway.errors import SetupError
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.serve import RunningProvider, start_simulated

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
QUICK: dict[str, Any] = {
    "model": "m",
    "api_key": "k",
    "ttft_base_s": 0.0,
    "tokens_per_s": 1e6,
    "tokens_per_event": 2,
}
USER = [{"role": "user", "content": "hello [[sim tokens=6]]"}]


@pytest.fixture
async def running(anyio_backend: str) -> AsyncIterator[RunningProvider]:
    [started] = await start_simulated([ProviderProfile(name="q", **QUICK)])
    yield started
    await started.aclose()


async def test_openai_sdk_reads_every_surface(running: RunningProvider) -> None:
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key="k", max_retries=0) as client:
        whole: Any = await client.chat.completions.create(model="m", messages=USER, seed=1)
        chunks = await client.chat.completions.create(
            model="m", messages=USER, seed=1, stream=True, stream_options={"include_usage": True}
        )
        text = ""
        usage = None
        async for chunk in chunks:
            text += "".join(c.delta.content or "" for c in chunk.choices)
            usage = chunk.usage or usage
        async with client.responses.stream(model="m", input="hi [[sim tokens=4]]") as stream:
            response = await stream.get_final_response()
        old = await client.completions.create(model="m", prompt="once", max_tokens=4)
        vectors = await client.embeddings.create(model="m", input=["a", "b"])
        listed = [each.id async for each in await client.models.list()]

    assert text == whole.choices[0].message.content
    assert usage == whole.usage
    assert response.output_text.startswith("[simulated]")
    assert response.usage is not None
    assert response.usage.output_tokens == 4
    assert old.choices[0].text.startswith("[simulated]")
    assert len(vectors.data) == 2
    assert listed == ["m"]


async def test_openai_sdk_parses_structured_output_and_errors(running: RunningProvider) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key="k", max_retries=0) as client:
        made: Any = await client.chat.completions.create(
            model="m",
            messages=USER,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="x", messages=USER)
        wrong = client.with_options(api_key="no")
        with pytest.raises(openai.AuthenticationError):
            await wrong.chat.completions.create(model="m", messages=USER)

    assert isinstance(json.loads(made.choices[0].message.content)["n"], int)


async def test_anthropic_sdk_reads_thinking_tools_and_counts(running: RunningProvider) -> None:
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
    root = running.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=root, api_key="k", max_retries=0) as client:
        async with client.messages.stream(
            model="m",
            max_tokens=2048,
            messages=USER,
            thinking={"type": "enabled", "budget_tokens": 1024},
        ) as stream:
            message = await stream.get_final_message()
        called = await client.messages.create(model="m", max_tokens=64, messages=USER, tools=[tool])
        counted = await client.messages.count_tokens(model="m", messages=USER)

    assert [each.type for each in message.content] == ["thinking", "text"]
    assert message.usage.output_tokens == 46
    assert called.stop_reason == "tool_use"
    assert counted.input_tokens == message.usage.input_tokens


async def _read_all(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], received: list[bytes]
) -> None:
    async with client.stream("POST", url, json=body) as answer:
        async for part in answer.aiter_bytes():
            received.append(part)


async def test_cut_stream_reaches_the_client_as_a_broken_one(running: RunningProvider) -> None:
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "[[sim tokens=9 fault=cut_mid_stream after=4]]"}],
    }
    received: list[bytes] = []
    url = f"{running.base_url}/chat/completions"
    async with httpx.AsyncClient(headers={"authorization": "Bearer k"}) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await _read_all(client, url, body, received)
        body["messages"] = [{"role": "user", "content": "[[sim fault=dead]]"}]
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.post(url, json=body)

    assert b"".join(received).count(b'"delta":{"content":') == 2  # two events of two tokens
    assert running.provider.books.lines[0].output == 4


async def test_leaving_client_is_noticed_and_billed_for_what_it_got(
    running: RunningProvider,
) -> None:
    running.provider.control({"tokens_per_s": 50.0, "tokens_per_event": 1, "api_key": ""})
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "[[sim tokens=500]]"}],
    }
    num_received = 0
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{running.base_url}/chat/completions", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            num_received += '"delta":{"content":"' in line and '"content":""' not in line
            if num_received == 3:
                break
    async with asyncio.timeout(5):
        while running.provider.in_flight:
            await asyncio.sleep(0.005)

    line = running.provider.books.lines[-1]
    assert line.ended == "client_gone"
    assert num_received <= line.output <= num_received + 3


async def test_taken_port_is_an_error_that_names_it(running: RunningProvider) -> None:
    profiles = [ProviderProfile(name=name, **QUICK) for name in ("free", "taken")]

    with pytest.raises(SetupError, match=f"'taken': port {running.port}"):
        await start_simulated(profiles, {"taken": running.port})


def test_command_serves_several_profiles_and_stops_on_sigterm(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_bytes(msgspec.json.encode(ProviderProfile(name="mine", **{**QUICK, "api_key": ""})))
    command = [sys.executable, "-m", "gateway.simulator", "--profile", str(mine)]
    with subprocess.Popen(
        [*command, "--profile", "fast"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = [json.loads(process.stdout.readline()) for _ in range(2)]
        listed = httpx.get(f"{ready[0]['base_url']}/models").json()
        process.send_signal(signal.SIGTERM)
        status = process.wait(10)

    assert [each["name"] for each in ready] == ["mine", "simulated-fast"]
    assert listed["data"][0]["id"] == "m"
    assert status == 0


def test_command_names_what_is_wrong_with_a_profile(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"name": "x", "speed": 3}')

    for named, said in ((str(bad), "speed"), ("nothing", "no profile 'nothing'")):
        done = subprocess.run(
            [sys.executable, "-m", "gateway.simulator", "--profile", named],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
