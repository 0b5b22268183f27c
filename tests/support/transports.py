"""Every Transport there is, and the small steps that their contract tests share."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from gateway.core import Network
from gateway.providers.guarded_backend import Resolver
from gateway.providers.httpx_transport import HttpxTransport
from gateway.providers.transport import Transport, UpstreamRequest, UpstreamResponse
from tests.support.scripted_server import Connection, ScriptedServer

TLS = Path(__file__).parent / "tls"
TRUSTING = ssl.create_default_context(cafile=str(TLS / "cert.pem"))  # for provider.example only

Factory = Callable[[Resolver | None], Transport]
FACTORIES: dict[str, Factory] = {
    "httpx": lambda resolve: HttpxTransport(resolve=resolve, ssl_context=TRUSTING),
}


def to(server: ScriptedServer, path: str = "/v1/x", body: bytes = b"{}") -> UpstreamRequest:
    return UpstreamRequest(
        method="POST",
        url=server.url + path,
        headers=((b"content-type", b"application/json"),),
        body=body,
        network=Network.PRIVATE,
    )


async def read_all(response: UpstreamResponse) -> bytes:
    try:
        return b"".join([part async for part in response.stream()])
    finally:
        await response.aclose()


async def answer_everything(connection: Connection) -> None:
    while (request := await connection.read_request()) is not None:
        await connection.send_answer(b"echo:" + request.body)
