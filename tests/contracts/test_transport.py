"""What every Transport must do with bytes and time, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import zlib
from collections.abc import AsyncIterator

import pytest

from gateway.errors import FailureClass
from gateway.providers.transport import SendProgress, Transport, TransportError, UpstreamRequest
from tests.support.scripted_server import Connection, scripted_server
from tests.support.transports import FACTORIES, Factory, answer_everything, read_all, to

# Loopback round trips take under a millisecond; the bounds below are for a loaded machine.
SOON_S = 5.0

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sorted(FACTORIES))
def factory(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


@pytest.fixture
async def transport(factory: Factory) -> AsyncIterator[Transport]:
    made = factory(None)
    yield made
    await made.aclose()


async def test_request_arrives_whole_and_answer_comes_back(transport: Transport) -> None:
    async with scripted_server(answer_everything) as server:
        response = await transport.send(to(server, "/v1/chat?x=1", b'{"a":1}'))
        body = await read_all(response)

    request = server.requests[0]
    assert (response.status, body) == (200, b'echo:{"a":1}')
    assert (request.method, request.target) == ("POST", "/v1/chat?x=1")
    assert (b"content-type", b"application/json") in response.headers


async def test_only_given_and_framing_headers_are_sent(transport: Transport) -> None:
    async with scripted_server(answer_everything) as server:
        await read_all(await transport.send(to(server)))

    names = sorted(name.lower() for name, _ in server.requests[0].headers)
    assert names == ["accept-encoding", "content-length", "content-type", "host"]
    assert server.requests[0].header("accept-encoding") == "identity"
    assert f"127.0.0.1:{server.port}" == server.requests[0].header("host")


async def test_connection_is_reused_after_a_whole_answer(transport: Transport) -> None:
    async with scripted_server(answer_everything) as server:
        for _ in range(5):
            await read_all(await transport.send(to(server)))

    assert [len(one.requests) for one in server.connections] == [5]


async def test_each_chunk_is_yielded_before_the_next_is_sent(transport: Transport) -> None:
    seen = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        for number in range(5):
            await connection.send_chunk(b"data: %d\n\n" % number)
            await asyncio.wait_for(seen.wait(), SOON_S)
            seen.clear()
        await connection.end_stream()

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        chunks = []
        async for part in response.stream():
            chunks.append(part)
            seen.set()
        await response.aclose()

    assert [b"data: %d\n\n" % number for number in range(5)] == chunks


async def test_stamp_is_of_the_socket_not_of_the_consumer(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(b"one")
        await connection.until_peer_closes()

    async with scripted_server(script) as server:
        sent_at_s = time.monotonic()
        response = await transport.send(to(server))
        assert sent_at_s <= response.headers_at_s <= time.monotonic()
        async for _ in response.stream():
            came_at_s = response.read_at_s
            break
        assert response.headers_at_s <= came_at_s <= time.monotonic()
        await response.aclose()


async def test_not_iterating_stops_the_sender(transport: Transport) -> None:
    num_sent = 0

    async def script(connection: Connection) -> None:
        nonlocal num_sent
        await connection.read_request()
        await connection.begin_stream()
        while num_sent < 256 * 1024 * 1024:
            await connection.send_chunk(bytes(65536))
            num_sent += 65536

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        iterator = response.stream()
        await anext(iterator)
        before = -1
        while before != num_sent:  # until the sender's buffers are full and it stands still
            before = num_sent
            for _ in range(200):
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
        await iterator.aclose()
        await response.aclose()

    assert num_sent < 64 * 1024 * 1024


async def test_closing_in_the_middle_closes_the_socket_at_once(transport: Transport) -> None:
    closed_at_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(b"data: 1\n\n")
        await connection.until_peer_closes()
        closed_at_s.set_result(time.monotonic())

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        await anext(response.stream())
        began_at_s = time.monotonic()
        await response.aclose()
        await response.aclose()  # a second call is harmless
        took_s = await asyncio.wait_for(closed_at_s, SOON_S) - began_at_s

    assert took_s <= 0.25


async def test_cancelled_reader_closes_the_socket_at_once(transport: Transport) -> None:
    is_closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.until_peer_closes()
        is_closed.set()

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        task = asyncio.create_task(read_all(response))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.wait_for(is_closed.wait(), 0.25)


async def test_cancelled_send_closes_the_socket_at_once(transport: Transport) -> None:
    has_request, is_closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        has_request.set()
        await connection.until_peer_closes()
        is_closed.set()

    async with scripted_server(script) as server:
        progress = SendProgress()
        task = asyncio.create_task(transport.send(to(server), progress=progress))
        await asyncio.wait_for(has_request.wait(), SOON_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.wait_for(is_closed.wait(), 0.25)

    assert progress.is_sent


async def test_closed_port_is_a_refused_connect(transport: Transport) -> None:
    async with scripted_server(answer_everything) as server:
        pass
    progress = SendProgress()
    with pytest.raises(TransportError) as caught:
        await transport.send(to(server), progress=progress)

    assert (caught.value.failure, caught.value.was_refused) == (FailureClass.CONNECT, True)
    assert not progress.is_sent


async def test_connect_timeout_is_a_refused_connect(factory: Factory) -> None:
    async def resolve_never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    transport = factory(resolve_never)
    request = UpstreamRequest(method="POST", url="https://slow.example/v1", headers=())
    with pytest.raises(TransportError) as caught:
        await transport.send(request, connect_timeout_s=0.05)
    await transport.aclose()

    assert (caught.value.failure, caught.value.was_refused) == (FailureClass.CONNECT, True)


async def test_headers_timeout_is_not_called_refused(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.until_peer_closes()

    async with scripted_server(script) as server:
        with pytest.raises(TransportError) as caught:
            await transport.send(to(server), headers_timeout_s=0.1)

    assert FailureClass.TIMEOUT_FIRST_TOKEN is caught.value.failure
    assert not caught.value.was_refused


async def test_drip_of_header_bytes_does_not_outlive_the_timeout(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await connection.send(b"x: y\r\n")
            await asyncio.sleep(0.01)

    async with scripted_server(script) as server:
        with pytest.raises(TransportError) as caught:
            await transport.send(to(server), headers_timeout_s=0.1)

    assert FailureClass.TIMEOUT_FIRST_TOKEN is caught.value.failure


async def test_reset_after_the_request_was_sent_is_not_called_refused(
    transport: Transport,
) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        connection.reset()

    async with scripted_server(script) as server:
        with pytest.raises(TransportError) as caught:
            await transport.send(to(server))

    assert (caught.value.failure, caught.value.was_refused) == (FailureClass.CONNECT, False)
    assert len(server.requests) == 1


async def test_pooled_connection_closed_while_idle_is_replaced(transport: Transport) -> None:
    async def answer_once(connection: Connection) -> None:
        await connection.read_request()
        await connection.send_answer(b"ok")

    async with scripted_server(answer_once) as server:
        for _ in range(3):
            assert await read_all(await transport.send(to(server))) == b"ok"
            await asyncio.sleep(0.01)  # lets the server's FIN arrive

    assert [len(one.requests) for one in server.connections] == [1, 1, 1]


async def test_dead_pooled_connection_is_not_retried_when_the_request_may_have_arrived(
    transport: Transport,
) -> None:
    async def answer_then_swallow(connection: Connection) -> None:
        await connection.read_request()
        await connection.send_answer(b"ok")
        await connection.read_request()
        connection.reset()

    async with scripted_server(answer_then_swallow) as server:
        await read_all(await transport.send(to(server)))
        with pytest.raises(TransportError) as caught:
            await transport.send(to(server))

    assert (caught.value.failure, caught.value.was_refused) == (FailureClass.CONNECT, False)
    assert len(server.requests) == 2  # nothing was sent twice


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n123",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n12345\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 10\r\n\r\n"
        + gzip.compress(b"cut off")[:10],
    ],
)
async def test_body_that_ends_early_or_lies_is_an_error_never_an_end(
    transport: Transport, sent: bytes
) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(sent)

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        with pytest.raises(TransportError) as caught:
            await read_all(response)

    assert FailureClass.STREAM_BROKEN is caught.value.failure


async def test_informational_answers_are_skipped(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        await connection.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        await connection.send_answer(b"real")

    async with scripted_server(script) as server:
        response = await transport.send(to(server))

        assert (response.status, await read_all(response)) == (200, b"real")


async def test_bytes_left_over_never_answer_the_next_request(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        is_first = True
        while await connection.read_request() is not None:
            await connection.send(
                b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none"
                + (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged" if is_first else b"")
            )
            is_first = False

    async with scripted_server(script) as server:
        assert await read_all(await transport.send(to(server))) == b"one"
        second = b"one"
        with contextlib.suppress(TransportError):  # an error is as good as the right answer
            second = await read_all(await transport.send(to(server)))
        assert second == b"one"
        assert await read_all(await transport.send(to(server))) == b"one"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_stream_is_decoded_as_it_comes(
    transport: Transport, encoding: str
) -> None:
    seen = asyncio.Event()
    parts = [b"data: one\n\n", b"data: two\n\n", b"data: three\n\n"]

    async def script(connection: Connection) -> None:
        await connection.read_request()
        headers = {"content-encoding": encoding, "transfer-encoding": "chunked"}
        await connection.send_head(200, headers)
        squeezer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
        for part in parts:
            await connection.send_chunk(squeezer.compress(part) + squeezer.flush(zlib.Z_SYNC_FLUSH))
            await asyncio.wait_for(seen.wait(), SOON_S)
            seen.clear()
        await connection.send_chunk(squeezer.flush())
        await connection.end_stream()

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        got = []
        async for part in response.stream():
            got.append(part)
            seen.set()
        await response.aclose()

    assert b"".join(parts) == b"".join(got)
