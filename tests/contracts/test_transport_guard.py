"""What every Transport must refuse, never mix and never leak, over real sockets (goal F18)."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import random
import ssl
from collections.abc import AsyncIterator

import pytest

from gateway.core import Network
from gateway.errors import FailureClass
from gateway.providers.transport import SendProgress, Transport, TransportError, UpstreamRequest
from tests.support.scripted_server import Connection, ScriptedServer, scripted_server
from tests.support.transports import FACTORIES, TLS, Factory, answer_everything, read_all, to

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sorted(FACTORIES))
def factory(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


@pytest.fixture
async def transport(factory: Factory) -> AsyncIterator[Transport]:
    made = factory(None)
    yield made
    await made.aclose()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_an_answer_and_is_not_followed(transport: Transport, status: int) -> None:
    async with scripted_server(answer_everything) as trap:

        async def script(connection: Connection) -> None:
            await connection.read_request()
            await connection.send_answer(b"", status, {"location": trap.url})

        async with scripted_server(script) as server:
            response = await transport.send(to(server))
            await read_all(response)

        assert status == response.status
        assert trap.connections == []


async def test_cookies_are_not_kept(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        while await connection.read_request() is not None:
            await connection.send_answer(b"{}", headers={"set-cookie": "session=1; Path=/"})

    async with scripted_server(script) as server:
        for _ in range(2):
            await read_all(await transport.send(to(server)))

    assert [request.header("cookie") for request in server.requests] == [None, None]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"])
async def test_proxies_of_the_environment_are_ignored(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with scripted_server(answer_everything) as trap:
        monkeypatch.setenv(name, trap.url)
        transport = factory(None)
        async with scripted_server(answer_everything) as server:
            await read_all(await transport.send(to(server)))
        await transport.aclose()

    assert (len(server.requests), len(trap.connections)) == (1, 0)


BAD_HEADERS = [
    (b"x-id", b"a\r\nauthorization: Bearer stolen"),
    (b"x-id", b"a\nb"),
    (b"x-id", b"a\rb"),
    (b"x-id", b"a\x00b"),
    (b"x-id", b" padded "),
    (b"x-id", b"a\x7f"),
    (b"x id", b"a"),
    (b"x-id:", b"a"),
    (b"x-id\r\nevil", b"a"),
    (b"", b"a"),
    (b"Host", b"evil.example"),
    (b"content-length", b"0"),
    (b"Transfer-Encoding", b"chunked"),
    (b"connection", b"upgrade"),
    (b"expect", b"100-continue"),
]


@pytest.mark.parametrize("header", BAD_HEADERS)
async def test_header_injection_is_refused_before_a_connection(
    transport: Transport, header: tuple[bytes, bytes]
) -> None:
    async with scripted_server(answer_everything) as server:
        request = UpstreamRequest(
            method="POST", url=server.url, headers=(header,), network=Network.PRIVATE
        )
        with pytest.raises(ValueError, match="header"):
            await transport.send(request)

    assert server.connections == []


async def test_random_header_values_never_split_a_request(transport: Transport) -> None:
    rng = random.Random(7)
    num_accepted = 0
    async with scripted_server(answer_everything) as server:
        for _ in range(300):
            value = bytes(rng.choice(b"\r\n\x00\t ab:;\x80\xff\x1f") for _ in range(6))
            request = UpstreamRequest(
                method="POST",
                url=server.url,
                headers=((b"x-fuzz", value),),
                network=Network.PRIVATE,
            )
            try:
                response = await transport.send(request)
            except ValueError:
                continue
            num_accepted += 1
            await read_all(response)

    assert num_accepted == len(server.requests)
    assert {("accept-encoding", "content-length", "host", "x-fuzz")} >= {
        tuple(sorted(name.lower() for name, _ in request.headers)) for request in server.requests
    }


async def test_forbidden_targets_never_get_a_connection(factory: Factory) -> None:
    async def resolve_to_loopback(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with scripted_server(answer_everything) as server:
        transport = factory(resolve_to_loopback)
        hosts = ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]",
                 "internal.example", "127.0.0.1.nip.example", "0", "127.1"]  # fmt: skip
        for scheme in ("http", "https"):
            for host in hosts:
                request = UpstreamRequest(
                    method="POST", url=f"{scheme}://{host}:{server.port}/v1", headers=()
                )
                with pytest.raises(TransportError) as caught:
                    await transport.send(request)
                assert FailureClass.MISCONFIGURED is caught.value.failure
                assert caught.value.was_refused
        await transport.aclose()

    assert server.connections == []


async def test_rebinding_name_is_judged_again_at_each_new_connection(factory: Factory) -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "169.254.169.254"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    async def answer_once(connection: Connection) -> None:
        await connection.read_request()
        await connection.send_answer(b"ok")

    async with scripted_server(answer_once) as server:
        transport = factory(resolve)
        request = UpstreamRequest(
            method="POST",
            url=f"http://rebind.example:{server.port}/",
            headers=(),
            network=Network.PRIVATE,
        )
        assert await read_all(await transport.send(request)) == b"ok"
        for _ in range(2):
            await asyncio.sleep(0.01)  # the first connection is gone, a new one must be made
            with pytest.raises(TransportError, match=r"169\.254\.169\.254"):
                await transport.send(request)
        await transport.aclose()

    assert f"rebind.example:{server.port}" == server.requests[0].header("host")
    assert len(server.connections) == 1


async def test_pooled_private_connection_is_not_lent_to_a_public_provider(
    factory: Factory,
) -> None:
    transport = factory(None)
    async with scripted_server(answer_everything) as server:
        await read_all(await transport.send(to(server)))
        public = UpstreamRequest(method="POST", url=server.url + "/v1/x", headers=())
        with pytest.raises(TransportError):
            await transport.send(public)
    await transport.aclose()

    assert len(server.requests) == 1


async def test_second_address_is_tried_when_the_first_refuses(factory: Factory) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    transport = factory(resolve)
    async with scripted_server(answer_everything) as server:
        request = UpstreamRequest(
            method="POST",
            url=f"http://two.example:{server.port}/",
            headers=(),
            network=Network.PRIVATE,
        )
        assert await read_all(await transport.send(request)) == b"echo:"
    await transport.aclose()


async def test_early_error_answer_to_a_large_body_is_read(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send_answer(b"too large", 413, {"connection": "close"})
        await connection.until_peer_closes()  # a lingering close: what comes is thrown away

    async with scripted_server(script) as server:
        response = await transport.send(to(server, body=bytes(8 * 1024 * 1024)))

        assert (response.status, await read_all(response)) == (413, b"too large")


async def test_hundred_requests_at_once_do_not_mix_answers(transport: Transport) -> None:
    async def one(number: int) -> bytes:
        return await read_all(await transport.send(to(server, body=b"%d" % number)))

    async with scripted_server(answer_everything) as server:
        answers = await asyncio.gather(*(one(number) for number in range(100)))

    assert [b"echo:%d" % number for number in range(100)] == answers


def server_tls(names: list[str | None]) -> ssl.SSLContext:
    """The certificate of provider.example; appends each name the client asks for (SNI)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "provider.pem")
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    return context


async def resolve_to_loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def to_tls(server: ScriptedServer, host: str) -> UpstreamRequest:
    return UpstreamRequest(
        method="POST", url=f"https://{host}:{server.port}/", headers=(), network=Network.PRIVATE
    )


async def test_tls_keeps_the_name_in_sni_host_and_certificate_check(factory: Factory) -> None:
    names: list[str | None] = []
    transport = factory(resolve_to_loopback)
    async with scripted_server(answer_everything, tls=server_tls(names)) as server:
        response = await transport.send(to_tls(server, "provider.example"))
        assert await read_all(response) == b"echo:"
    await transport.aclose()

    assert names == ["provider.example"]
    assert f"provider.example:{server.port}" == server.requests[0].header("host")


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
async def test_certificate_of_another_name_is_a_refused_connect(
    factory: Factory, host: str
) -> None:
    transport = factory(resolve_to_loopback)
    progress = SendProgress()
    async with scripted_server(answer_everything, tls=server_tls([])) as server:
        with pytest.raises(TransportError) as caught:
            await transport.send(to_tls(server, host), progress=progress)
    await transport.aclose()

    assert (caught.value.failure, caught.value.was_refused) == (FailureClass.CONNECT, True)
    assert not progress.is_sent
    assert server.requests == []


async def test_plain_server_behind_an_https_url_is_a_refused_connect(factory: Factory) -> None:
    transport = factory(resolve_to_loopback)
    async with scripted_server(answer_everything) as server:
        with pytest.raises(TransportError) as caught:
            await transport.send(to_tls(server, "provider.example"), connect_timeout_s=0.5)
    await transport.aclose()

    assert (caught.value.failure, caught.value.was_refused) == (FailureClass.CONNECT, True)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nx-big: " + b"a" * 1_000_000,
        b"HTTP/1.1 200 OK\r\n" + b"x-many: y\r\n" * 200_000,
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx",
    ],
)
async def test_malformed_or_oversize_head_is_a_server_error(
    transport: Transport, sent: bytes
) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(sent)

    async with scripted_server(script) as server:
        with pytest.raises(TransportError) as caught:
            await transport.send(to(server))

    assert FailureClass.SERVER_ERROR is caught.value.failure
    assert not caught.value.was_refused


async def test_compression_bomb_is_an_error(transport: Transport) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        bomb = gzip.compress(bytes(32 * 1024 * 1024))
        await connection.send_answer(bomb, headers={"content-encoding": "gzip"})

    async with scripted_server(script) as server:
        response = await transport.send(to(server))
        num_bytes = 0

        async def count() -> None:
            nonlocal num_bytes
            async for part in response.stream():
                num_bytes += len(part)

        with pytest.raises(TransportError, match="bomb"):
            await count()
        await response.aclose()

    assert num_bytes < 1024 * 1024


async def test_unchecked_certificates_need_a_private_network(factory: Factory) -> None:
    transport = factory(resolve_to_loopback)
    async with scripted_server(answer_everything, tls=server_tls([])) as server:
        request = to_tls(server, "other.example")
        believing = dataclasses.replace(request, verify_tls=False)
        with pytest.raises(ValueError, match="private"):
            await transport.send(dataclasses.replace(believing, network=Network.PUBLIC))
        assert await read_all(await transport.send(believing)) == b"echo:"
        with pytest.raises(TransportError):
            await transport.send(request)  # the connection above is not lent to it
    await transport.aclose()
