"""The raw edge: what is read within limits, and a client that leaves or stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from backend.api import exchange as module
from backend.api.exchange import ClientLeft, Exchange, HttpProblem

pytestmark = pytest.mark.anyio


class Wire:
    """What the server would say and take."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for each in messages:
            self.incoming.put_nowait(each)
        self.sent: list[dict[str, Any]] = []
        self.on_send: Callable[[], Any] = lambda: None

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: Any) -> None:
        waited = self.on_send()
        if waited is not None:
            await waited
        self.sent.append(message)

    def exchange(self, *headers: tuple[bytes, bytes]) -> Exchange:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
        return Exchange(scope, self.receive, self.send)


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_body_comes_in_parts() -> None:
    exchange = Wire(part(b"ab", True), part(b"c")).exchange()

    assert await exchange.read_body(3) == b"abc"
    exchange.close()


@pytest.mark.parametrize("headers", [(), ((b"content-length", b"9"),)])
async def test_body_over_the_limit_is_refused(headers: Any) -> None:
    exchange = Wire(part(b"ab", True), part(b"cdefghi")).exchange(*headers)

    with pytest.raises(HttpProblem) as refused:
        await exchange.read_body(3)

    assert refused.value.status == 413


async def test_body_that_drips_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_WAIT_S", 0.05)

    with pytest.raises(HttpProblem) as refused:
        await Wire(part(b"a", True)).exchange().read_body(100)

    assert refused.value.status == 408


@pytest.mark.parametrize(
    "headers",
    [
        ((b"content-length", b"1"), (b"transfer-encoding", b"chunked")),
        ((b"content-encoding", b"gzip"),),
    ],
)
async def test_framing_that_can_be_read_in_two_ways_is_refused(headers: Any) -> None:
    with pytest.raises(HttpProblem) as refused:
        await Wire(part(b"a")).exchange(*headers).read_body(100)

    assert refused.value.status == 400


async def test_client_that_leaves_within_its_body_has_left() -> None:
    exchange = Wire(part(b"a", True), {"type": "http.disconnect"}).exchange()

    with pytest.raises(ClientLeft):
        await exchange.read_body(100)

    assert exchange.gone.is_set()


async def test_client_that_leaves_later_is_told_of_at_once() -> None:
    wire = Wire(part(b"a"))
    exchange = wire.exchange()
    await exchange.read_body(100)
    called: list[str] = []
    exchange.when_gone(lambda: called.append("gone"))

    wire.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(exchange.gone.wait(), 5)

    assert called == ["gone"]
    with pytest.raises(ClientLeft):
        await exchange.send(b"x")
    exchange.when_gone(lambda: called.append("late"))
    assert called == ["gone", "late"]


async def test_connection_that_closes_behind_the_answer_is_no_client_that_left() -> None:
    wire = Wire(part(b"a"))
    exchange = wire.exchange()
    await exchange.read_body(100)
    await exchange.answer(200, [], b"ok")

    wire.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.sleep(0.02)

    assert not exchange.gone.is_set()
    assert [each["type"] for each in wire.sent] == ["http.response.start", "http.response.body"]
    assert (b"content-length", b"2") in wire.sent[0]["headers"]
    exchange.close()


async def test_client_that_takes_nothing_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_STALL_S", 0.05)
    wire = Wire(part(b"a"))
    exchange = wire.exchange()
    await exchange.start(200, [])
    wire.on_send = asyncio.Event().wait

    with pytest.raises(ClientLeft):
        await exchange.send(b"x")

    assert exchange.gone.is_set()


async def test_repeated_header_keeps_both_values() -> None:
    exchange = Wire().exchange((b"X-Api-Key", b"a"), (b"x-api-key", b"b"))

    assert exchange.headers["x-api-key"] == "a, b"
