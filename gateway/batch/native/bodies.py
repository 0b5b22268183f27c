"""A client's line → the body the endpoint takes, by the adapters that also send single requests."""

from __future__ import annotations

import msgspec

from gateway.core import Endpoint, Lane
from gateway.providers.adapter import Call
from gateway.providers.registry import ADAPTERS
from gateway.wire.pieces import Surface
from gateway.wire.rawjson import parse_members
from gateway.wire.requests import EMBEDDINGS_NODES_MAX, ParsedRequest

# A batch decides these for all its lines: no stream, and its own tier.
_TAKEN_OUT = ("stream", "stream_options", "service_tier")


class LineBody(msgspec.Struct, frozen=True):
    """`surface` is the endpoint's; another than the line's means that it was translated."""

    surface: Surface
    body: bytes  # on one line
    dropped: tuple[str, ...]


def line_body(endpoint: Endpoint, parsed: ParsedRequest, max_tokens: int | None) -> LineBody:
    """Raises CannotTranslate when the endpoint's dialect cannot carry the line."""
    call = Call(
        endpoint=endpoint, parsed=_for_batch(parsed), max_tokens=max_tokens, lane=Lane.BATCH
    )
    built = ADAPTERS[endpoint.api].build(call)
    body = built.request.body
    if b"\n" in body or b"\r" in body:  # in JSON they can only stand between values
        body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    return LineBody(built.surface, body, built.dropped)


def _for_batch(parsed: ParsedRequest) -> ParsedRequest:
    members = parsed.members
    changes: dict[str, bytes | None] = {name: None for name in _TAKEN_OUT if name in members}
    if not changes:
        return parsed
    return msgspec.structs.replace(
        parsed,
        members=parse_members(members.rewrite(changes), nodes_max=EMBEDDINGS_NODES_MAX),
        stream=False,
        include_usage=False,
        service_tier="",
    )
