"""`Idempotency-Key`: a request sent again is answered from what the first one came to."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.api.exchange import Exchange, Headers
from gateway.api.problems import as_api_error, error_answer
from gateway.errors import ApiError, Overloaded, ServiceError, UpstreamFailed, UpstreamTimeout
from gateway.pipeline import Gateway, Inbound, serve
from gateway.store.idempotency import (
    BODY_BYTES_MAX,
    Claim,
    StoredAnswer,
    claim,
    drop,
    finish,
)
from gateway.wire.pieces import SURFACE_DIALECT
from gateway.wire.usage import Usage

log = structlog.get_logger()

DATABASE_AWAY = (SQLAlchemyError, OSError, TimeoutError)
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# Stored with the answer; ids and costs of the first request stay true for its replay.
_KEPT_HEADERS = ("content-type", "x-looprouter-endpoint", "x-looprouter-cost", "x-should-retry")
# Errors that are what the request came to: attempts were made, or our own bug cut it short.
_OUTCOMES = frozenset({UpstreamFailed, UpstreamTimeout, ServiceError})


class CapturingClient:
    """Passes everything to the exchange and keeps the body while it is short and not a stream."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.gone = exchange.gone
        self.extra_headers = exchange.extra_headers
        self.is_started = False
        self.status = 0
        self.headers: Headers = []
        self.body: bytearray | None = bytearray()

    def _keep_head(self, status: int, headers: Headers) -> None:
        self.is_started = True
        self.status, self.headers = status, headers
        if any(value.startswith(b"text/event-stream") for _, value in headers):
            self.body = None

    def keep_error(self, error: ApiError, inbound: Inbound) -> None:
        """What the client is about to be told; attempts were made, so it is the outcome."""
        status, headers, body, _ = error_answer(
            error, SURFACE_DIALECT[inbound.surface], inbound.request_id, is_kept=True
        )
        self._keep_head(status, headers)
        self.body = bytearray(body)

    async def start(self, status: int, headers: Headers) -> None:
        self._keep_head(status, headers)
        await self._exchange.start(status, headers)

    async def send(self, data: bytes) -> None:
        if self.body is not None:
            self.body += data
            if len(self.body) > BODY_BYTES_MAX:
                self.body = None
        await self._exchange.send(data)

    async def finish(self) -> None:
        await self._exchange.finish()

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._keep_head(status, headers)
        self.body = bytearray(body) if len(body) <= BODY_BYTES_MAX else None
        await self._exchange.answer(status, headers, body)


async def serve_once(gateway: Gateway, exchange: Exchange, inbound: Inbound, key: str) -> None:
    """Serve, or replay. Raises Conflict while the first request runs, IdempotencyMismatch (422)."""
    try:
        found = await _claimed(gateway, inbound, key)
    except DATABASE_AWAY as error:
        raise Overloaded(
            "the database that remembers Idempotency-Keys does not answer, and without it the "
            "request might be done twice; send it again shortly",
            code="idempotency_unavailable",
            retry_after_s=1.0,
        ) from error
    if isinstance(found, StoredAnswer):
        await _replay(exchange, found)
        return
    gateway.claims.add(inbound.request_id)
    try:
        await _serve_claimed(gateway, exchange, inbound, key)
    finally:
        gateway.claims.discard(inbound.request_id)


async def _serve_claimed(gateway: Gateway, exchange: Exchange, inbound: Inbound, key: str) -> None:
    tenant_id = inbound.caller.tenant_id
    client = CapturingClient(exchange)
    try:
        await serve(gateway, dataclasses.replace(inbound, client=client))
    except Exception as error:
        told = as_api_error(error)
        if type(told) in _OUTCOMES:
            client.keep_error(told, inbound)
            await asyncio.shield(_finish(gateway, inbound, key, client, None))
        else:
            # Refused before anything ran: the key may be used again once that is mended.
            await asyncio.shield(_drop(gateway, tenant_id, key, inbound.request_id))
        if told is error:
            raise
        raise told from error
    except BaseException:
        await asyncio.shield(_finish(gateway, inbound, key, client, None))
        raise
    if 400 <= client.status < 500:
        # The upstream's own refusal, passed on: nothing was done, and its words are not kept.
        await asyncio.shield(_drop(gateway, tenant_id, key, inbound.request_id))
        return
    row = gateway.recorder.recent(inbound.request_id)
    usage = row.usage if row is not None else None
    await asyncio.shield(_finish(gateway, inbound, key, client, usage))


async def _claimed(gateway: Gateway, inbound: Inbound, key: str) -> Claim | StoredAnswer:
    digest = hashlib.sha256(inbound.surface.value.encode() + b"\0" + inbound.body).digest()
    async with gateway.store.begin() as connection:
        return await claim(
            connection,
            inbound.caller.tenant_id,
            key,
            request_hash=digest,
            claim_id=inbound.request_id,
            holder_id=gateway.ledger.holder_id,
            now=await gateway.store.database_now(connection),
        )


async def _persistently(work: Callable[[], Awaitable[None]], request_id: str) -> None:
    """Do it though the database is away for a moment; else the claim lapses in its time."""
    for pause_s in RETRY_PAUSES_S:
        try:
            await work()
        except DATABASE_AWAY as error:
            log.warning(
                "outcome of an Idempotency-Key not kept yet", request_id=request_id, error=error
            )
            await asyncio.sleep(pause_s)
        else:
            return


async def _finish(
    gateway: Gateway, inbound: Inbound, key: str, client: CapturingClient, usage: Usage | None
) -> None:
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in client.headers
        if name.decode("latin-1").lower() in _KEPT_HEADERS
    ]
    answer = StoredAnswer(
        status=client.status or 499,
        headers=kept,
        body=bytes(client.body) if client.body is not None and client.status else None,
        usage=usage,
    )

    async def keep() -> None:
        async with gateway.store.begin() as connection:
            await finish(
                connection,
                inbound.caller.tenant_id,
                key,
                claim_id=inbound.request_id,
                answer=answer,
                now=await gateway.store.database_now(connection),
            )

    await _persistently(keep, inbound.request_id)


async def _drop(gateway: Gateway, tenant_id: str, key: str, claim_id: str) -> None:
    async def give_back() -> None:
        async with gateway.store.begin() as connection:
            await drop(connection, tenant_id, key, claim_id=claim_id)

    await _persistently(give_back, claim_id)


async def _replay(exchange: Exchange, stored: StoredAnswer) -> None:
    headers: Headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in stored.headers
    ]
    headers.append((b"x-looprouter-idempotent-replay", b"true"))
    if stored.body is not None:
        await exchange.answer(stored.status, headers, stored.body)
        return
    # Not kept: a stream, a long answer, one that its client left. Doing the work again is what
    # the key is there to prevent.
    headers = [(name, value) for name, value in headers if name != b"content-type"]
    headers.append((b"content-type", b"application/json"))
    body = {
        "error": {
            "message": "the request of this Idempotency-Key is done; its answer was not kept",
            "type": "invalid_request_error",
            "code": "idempotent_request_done",
            "param": None,
            "usage": msgspec.to_builtins(stored.usage) if stored.usage is not None else None,
        }
    }
    headers.append((b"x-should-retry", b"false"))
    await exchange.answer(409, headers, msgspec.json.encode(body))
