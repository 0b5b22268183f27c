"""The gateway's own answers under `/v1`: models, one request's record, token counts."""

from __future__ import annotations

import contextlib
import datetime
import re
from typing import Any
from urllib.parse import unquote

import msgspec

from gateway.api.exchange import Exchange, Headers
from gateway.api.reasons import candidates_of_row
from gateway.core import Endpoint, PriceRow, dollars_per_million
from gateway.errors import LedgerUnavailable, NoEligibleEndpoint, NotFound, UnknownModel
from gateway.ledger.report import attempts_of
from gateway.measure.recorder import row_json
from gateway.pipeline import Gateway, Inbound, serve
from gateway.policy.load import Policy
from gateway.store.requests import RequestRow, find_request
from gateway.wire.requests import parse_request

JSON_HEADERS: Headers = [(b"content-type", b"application/json")]
# Tokens per byte of English text, for an estimate where no endpoint counts.
TOKENS_PER_BYTE = 0.27
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


async def list_models(gateway: Gateway, exchange: Exchange, _rest: str) -> None:
    """Every public model that the key may use, in the dialect of the asking SDK."""
    caller = await gateway.authenticate(exchange.headers)
    policy = gateway.policy()
    names = [name for name in policy.models if not caller.models or name in caller.models]
    models = [model_json(gateway, policy, name, exchange) for name in names]
    body: dict[str, Any] = {"object": "list", "data": models}
    if "anthropic-version" in exchange.headers:
        first, last = (names[0], names[-1]) if names else (None, None)
        body = {"data": models, "has_more": False, "first_id": first, "last_id": last}
    await exchange.answer(200, JSON_HEADERS, msgspec.json.encode(body))


async def show_model(gateway: Gateway, exchange: Exchange, name: str) -> None:
    caller = await gateway.authenticate(exchange.headers)
    policy = gateway.policy()
    name = unquote(name)
    if name not in policy.models or (caller.models and name not in caller.models):
        raise UnknownModel(f"there is no model {name[:100]!r}; GET /v1/models lists them")
    shown = model_json(gateway, policy, name, exchange)
    await exchange.answer(200, JSON_HEADERS, msgspec.json.encode(shown))


def model_json(
    gateway: Gateway, policy: Policy, name: str, exchange: Exchange
) -> dict[str, object]:
    """One model as its SDK reads it, with ours under `looprouter`."""
    snapshot = gateway.fleet.snapshot()
    endpoints = [policy.endpoints[each] for each in policy.models[name]]
    details = {
        "endpoints": [
            endpoint_json(gateway, each, snapshot.prices.get(each.id, ())) for each in endpoints
        ]
    }
    if "anthropic-version" in exchange.headers:
        created = datetime.datetime.fromtimestamp(0, datetime.UTC)
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": created.isoformat().replace("+00:00", "Z"),
            "looprouter": details,
        }
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "looprouter",
        "context_length": max((each.context_tokens_max or 0 for each in endpoints), default=0)
        or None,
        "looprouter": details,
    }


def endpoint_json(
    gateway: Gateway, endpoint: Endpoint, rows: tuple[PriceRow, ...]
) -> dict[str, object]:
    """Price, limits, capabilities and what was measured, each figure with n and interval."""
    measured = gateway.fleet.metrics(endpoint.id)
    return {
        "id": endpoint.id,
        "provider": endpoint.provider,
        "model": endpoint.model,
        "canonical_model": endpoint.canonical_model or None,
        "quantisation": endpoint.quantisation,
        "simulated": endpoint.is_simulated,
        "context_tokens_max": endpoint.context_tokens_max,
        "output_tokens_max": endpoint.output_tokens_max,
        "capabilities": sorted(endpoint.capabilities),
        "region": endpoint.region or None,
        "stores_data": endpoint.stores_data,
        "zero_retention": endpoint.zero_retention,
        "prices": [price_json(row) for row in rows],
        "measured": {
            key: measured[key]
            for key in ("n", "ttft_p50_s", "ttft_visible_p50_s", "decode_tokens_per_s", "success")
        },
        "breaker": measured["breaker"],
    }


def price_json(row: PriceRow) -> dict[str, object]:
    """Dollars per million tokens as exact decimal strings; unpriced rows say so."""
    shown: dict[str, object] = {
        "source": row.source,
        "tier": row.tier,
        "context_tokens_min": row.context_tokens_min,
    }
    if row.is_priced:
        for bucket in ("input", "cached_read", "cache_write_5m", "cache_write_1h", "output"):
            shown[bucket] = dollars_per_million(getattr(row, bucket))
    return shown


async def show_request(gateway: Gateway, exchange: Exchange, request_id: str) -> None:
    """One request of the caller's tenant: what was asked, decided, measured and paid."""
    caller = await gateway.authenticate(exchange.headers)
    if not _ID.fullmatch(request_id):
        raise NotFound("a request id has letters, digits, _ and - only")
    row = gateway.recorder.recent(request_id)
    if row is None:
        async with gateway.store.read() as connection:
            row = await find_request(connection, caller.tenant_id, request_id)
    # The memory holds every tenant's rows; another tenant's must look like no row at all.
    if row is None or row.tenant_id != caller.tenant_id:
        raise NotFound(f"there is no request {request_id!r} of yours")
    shown = row_json(row)
    shown["candidates"] = msgspec.to_builtins(await candidates_of_row(gateway, row))
    shown["attempts"] = await _booked_attempts(gateway, row)
    await exchange.answer(200, JSON_HEADERS, msgspec.json.encode(shown))


async def _booked_attempts(gateway: Gateway, row: RequestRow) -> list[dict[str, Any]]:
    """From SQL, which is a few milliseconds behind: asked right after its answer, wait for it."""
    found = await attempts_of(gateway.store, row.tenant_id, row.id)
    if len(found) < row.num_attempts or any(each["state"] == "sent" for each in found):
        with contextlib.suppress(LedgerUnavailable):
            await gateway.ledger.flush()
            found = await attempts_of(gateway.store, row.tenant_id, row.id)
    return found


async def count_tokens(gateway: Gateway, exchange: Exchange, inbound: Inbound) -> None:
    """Counted by an endpoint that can; where none can, estimated from the text and marked so."""
    try:
        await serve(gateway, inbound)
    except NoEligibleEndpoint:
        parsed = parse_request(inbound.surface, inbound.body)
        tokens = max(1, round(parsed.text_bytes * TOKENS_PER_BYTE))
        headers: Headers = [
            *JSON_HEADERS,
            (b"x-looprouter-warning", b"input_tokens is an estimate: no endpoint counts tokens"),
        ]
        await exchange.answer(200, headers, msgspec.json.encode({"input_tokens": tokens}))
