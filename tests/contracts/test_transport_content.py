"""Requests whose body is made while it is sent: uploads of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core import Network
from gateway.providers.transport import (
    Transport,
    TransportError,
    UnsendableRequest,
    UpstreamRequest,
)
from tests.support.scripted_server import Connection, scripted_server
from tests.support.transports import FACTORIES, answer_everything, read_all

SOON_S = 5.0

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sorted(FACTORIES))
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    made = FACTORIES[request.param](None)
    yield made
    await made.aclose()


class _Counted:
    """Content that is made while it is sent, and notes how far ahead of the socket that is."""

    def __init__(self, num_pieces: int, piece: bytes = bytes(65536), *, says: int = 0) -> None:
        self.num_bytes = num_pieces * len(piece) + says
        self.num_made = 0
        self._num_pieces = num_pieces
        self._piece = piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._num_pieces):
            self.num_made += 1
            yield self._piece


def _upload(server_url: str, content: _Counted, body: bytes = b"") -> UpstreamRequest:
    return UpstreamRequest(
        method="POST",
        url=f"{server_url}/v1/files",
        headers=((b"content-type", b"application/jsonl"),),
        body=body,
        content=content,
        network=Network.PRIVATE,
    )


async def test_content_arrives_whole_with_its_length_and_twice_over_one_connection(
    transport: Transport,
) -> None:
    content = _Counted(40, b"0123456789" * 1000)
    async with scripted_server(answer_everything) as server:
        first = await read_all(await transport.send(_upload(server.url, content)))
        again = await read_all(await transport.send(_upload(server.url, content)))

    assert first == again == b"echo:" + b"0123456789" * 40_000
    assert server.requests[0].header("content-length") == "400000"
    assert server.requests[0].header("transfer-encoding") is None
    assert len(server.connections) == 1


async def test_content_is_made_no_faster_than_the_peer_reads(transport: Transport) -> None:
    content = _Counted(4096)  # 256 MiB

    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(SOON_S)

    async with scripted_server(script) as server:
        with pytest.raises(TransportError):
            await transport.send(_upload(server.url, content), headers_timeout_s=0.5)

    assert 0 < content.num_made < 1024


@pytest.mark.parametrize("says", [3, -3])
async def test_content_of_another_length_than_it_says_is_never_a_request(
    transport: Transport, says: int
) -> None:
    async with scripted_server(answer_everything) as server:
        with pytest.raises(UnsendableRequest, match="5 bytes"):
            await transport.send(_upload(server.url, _Counted(1, b"abcde", says=says)))
        after = await read_all(await transport.send(_upload(server.url, _Counted(1, b"x"))))

    assert after == b"echo:x"
    assert [request.body for request in server.requests] == [b"x"]


async def test_content_beside_a_body_is_refused(transport: Transport) -> None:
    async with scripted_server(answer_everything) as server:
        with pytest.raises(UnsendableRequest, match="in the place of a body"):
            await transport.send(_upload(server.url, _Counted(1), b"{}"))
