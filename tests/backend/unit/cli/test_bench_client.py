"""The load generator's client: bytes in any split, kept and lost connections, clear failures."""

from __future__ import annotations

import asyncio

import pytest

from backend.cli.measuring.asking import Answer, Ask, ask_once, find_model
from backend.cli.measuring.http_client import Address, ConnectionBroken, HttpClient
from backend.cli.measuring.questions import Question
from backend.errors import SetupError
from tests.backend.unit.cli.scripted_server import (
    DONE,
    FINISH,
    STREAM_END,
    STREAM_HEAD,
    Answering,
    Scripted,
    event,
    head,
    plain,
    scripted_server,
    usage,
)

QUESTION = Question("q1", 'Say "a"?')
ASK = Ask(model="m", max_tokens=8, timeout_s=5.0)
WHOLE = STREAM_HEAD + event("a ") + event("b") + FINISH + usage(10, 4, 2) + DONE + STREAM_END


def always(data: bytes, *, closes: bool = False) -> Answering:
    async def answer(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if closes:
            writer.close()

    return answer


def asked(answering: Answering, ask: Ask = ASK, times: int = 1) -> tuple[list[Answer], Scripted]:
    async def run() -> tuple[list[Answer], Scripted]:
        async with scripted_server(answering) as server:
            client = HttpClient(server.address)
            try:
                return [await ask_once(client, ask, QUESTION) for _ in range(times)], server
            finally:
                await client.close()

    return asyncio.run(run())


def test_a_whole_answer_is_read() -> None:
    (answer,), server = asked(always(WHOLE))

    assert (answer.failure, answer.text, answer.finish) == ("", "a b", "length")
    assert answer.usage is not None
    assert (answer.num_tokens, answer.usage.input_total, answer.usage.cached_read) == (2, 10, 4)
    assert answer.stamps.num_frames == 2
    assert b'"ignore_eos"' not in server.bodies[0]
    assert b'"include_usage":true' in server.bodies[0]
    assert server.heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


def test_bytes_may_come_one_by_one() -> None:
    async def drip(_body: bytes, writer: asyncio.StreamWriter) -> None:
        for idx in range(len(WHOLE)):
            writer.write(WHOLE[idx : idx + 1])
            await asyncio.sleep(0)

    (answer,), _ = asked(drip)

    assert (answer.failure, answer.text, answer.num_tokens) == ("", "a b", 2)


def test_stamps_are_those_of_the_socket() -> None:
    async def slowly(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await asyncio.sleep(0.1)
        writer.write(event("a"))
        await asyncio.sleep(0.05)
        writer.write(event("b") + FINISH + DONE + STREAM_END)

    (answer,), _ = asked(slowly)

    ttft_s = answer.stamps.ttft_any_s
    assert ttft_s is not None
    assert ttft_s >= 0.1
    assert answer.stamps.span_s >= 0.05
    assert answer.usage is None
    assert answer.num_tokens == 2  # events, where the server does not count


def test_ignoring_the_end_and_extras_go_into_the_body() -> None:
    ask = Ask(model="m", max_tokens=8, is_eos_ignored=True, extra={"cache_prompt": False})
    _, server = asked(always(WHOLE), ask)

    assert b'"ignore_eos":true' in server.bodies[0]
    assert b'"cache_prompt":false' in server.bodies[0]


def test_a_connection_is_used_again() -> None:
    answers, server = asked(always(WHOLE), times=3)

    assert [each.failure for each in answers] == ["", "", ""]
    assert server.num_connections == 1


def test_a_connection_closed_while_idle_is_replaced() -> None:
    answers, server = asked(always(WHOLE, closes=True), times=3)

    assert [each.failure for each in answers] == ["", "", ""]
    assert server.num_connections == 3


def test_a_body_may_end_with_its_connection() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    (answer,), _ = asked(always(head(200, "content-type: text/event-stream") + raw, closes=True))

    assert (answer.failure, answer.text) == ("", "a")


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (plain(429, b'{"error":{"message":"too much waits"}}'), "429: too much waits"),
        (
            STREAM_HEAD + event("a") + STREAM_END,
            "the upstream closed the stream before its end",
        ),
        (STREAM_HEAD + event("a"), "the server closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP"),
        (b"", "the server closed the connection"),
    ],
)
def test_a_failure_says_what_happened(data: bytes, failure: str) -> None:
    (answer,), _ = asked(always(data, closes=True))

    assert answer.failure.startswith(failure)


def test_an_error_in_band_is_a_failure() -> None:
    error = b'data: {"error":{"message":"out of blocks"}}\n\n'
    data = STREAM_HEAD + event("a") + b"%x\r\n" % len(error) + error + b"\r\n" + STREAM_END
    (answer,), _ = asked(always(data))

    assert answer.failure == "out of blocks"


def test_an_answer_without_end_is_given_up() -> None:
    (answer,), _ = asked(always(STREAM_HEAD + event("a")), Ask("m", 8, timeout_s=0.2))

    assert answer.failure == "no end within 0 s"


def test_a_refused_connection_is_a_failure() -> None:
    async def run() -> Answer:
        async with scripted_server(always(WHOLE)) as server:
            address = server.address
        return await ask_once(HttpClient(address), ASK, QUESTION)

    answer = asyncio.run(run())

    assert answer.failure.startswith("cannot connect to 127.0.0.1 port ")


def model_of(data: bytes) -> str:
    async def run() -> str:
        async with scripted_server(always(data)) as server:
            client = HttpClient(server.address)
            try:
                return await find_model(client, {})
            finally:
                await client.close()

    return asyncio.run(run())


def test_the_only_model_is_found() -> None:
    assert model_of(plain(200, b'{"data":[{"id":"one"}]}')) == "one"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (plain(200, b'{"data":[{"id":"one"},{"id":"two"}]}'), "serves 2 models (one, two)"),
        (plain(200, b"<html>"), "is no list of models"),
        (plain(401, b'{"error":{"message":"no key"}}'), "no key; give the key with --api-key-env"),
    ],
)
def test_which_model_cannot_be_told(data: bytes, says: str) -> None:
    with pytest.raises(SetupError) as raised:
        model_of(data)

    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100/v1"),
        ("http://[::1]:8100/", "http://[::1]:8100/v1"),
        ("https://api.example.com/openai/v1/", "https://api.example.com:443/openai/v1"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert Address.parse(url).url == shown


@pytest.mark.parametrize(
    "url", ["http://", "ftp://a/v1", "http://a:b/v1", "http://u@a/v1", "http://a/v1?x=1"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(SetupError):
        Address.parse(url)


def test_a_broken_connection_is_not_kept() -> None:
    async def run() -> None:
        async with scripted_server(always(STREAM_HEAD + event("a"), closes=True)) as server:
            client = HttpClient(server.address)
            for _ in range(2):
                with pytest.raises(ConnectionBroken):
                    await client.request("POST", "/v1/x", {}, b"{}", lambda _data, _at_s: None)
            assert server.num_connections == 2

    asyncio.run(run())
