"""The two calls of the plain path: a request before it goes out, an answer before it goes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from gateway.wire.pieces import Surface
from gateway.wire.translate.answers import chat_answer, messages_answer
from gateway.wire.translate.shapes import (
    DIALECT_ONLY,
    CannotTranslate,
    Notes,
    Target,
    Translated,
    encode,
    is_null,
)
from gateway.wire.translate.to_chat import chat_request
from gateway.wire.translate.to_messages import messages_request
from gateway.wire.usage import Usage


class RawMembers(Protocol):
    def names(self) -> tuple[str, ...]: ...
    def raw(self, name: str) -> bytes | None: ...


class Readable(Protocol):
    """What translation needs of a ParsedRequest."""

    @property
    def surface(self) -> Surface: ...
    @property
    def members(self) -> RawMembers: ...


def translate_request(
    parsed: Readable,
    to: Surface,
    *,
    model: str,
    max_tokens_default: int,
    target: Target = DIALECT_ONLY,
) -> Translated:
    """The request for an endpoint of the other dialect, under that endpoint's name of the model.

    `max_tokens_default` is sent where the messages dialect demands a limit and chat gave none.
    Raises CannotTranslate when the request asks for something the other dialect cannot do.
    """
    notes = Notes()
    members = parsed.members
    fields = {}
    for name in members.names():
        raw = msgspec.Raw(members.raw(name) or b"null")
        if not is_null(raw):
            fields[name] = raw
    if parsed.surface is Surface.CHAT and to is Surface.MESSAGES:
        body = messages_request(
            fields, target, notes, model=model, max_tokens_default=max_tokens_default
        )
    elif parsed.surface is Surface.MESSAGES and to is Surface.CHAT:
        body = chat_request(fields, target, notes, model=model)
    else:
        raise _no_bridge(parsed.surface, to)
    return Translated(body, notes.names())


def translate_answer(
    body: bytes,
    upstream: Surface,
    client: Surface,
    *,
    model: str,
    extra_usage: Mapping[str, object] | None = None,
    created: int = 0,
    request_id: str = "",
    estimate: Usage | None = None,
) -> bytes:
    """The answer in the client's dialect; `extra_usage` goes into its usage object.

    `estimate` is told, and marked as one, where the upstream counted nothing (which is not zero).

    `model` and `request_id` stand in where the upstream names none; `created` is Unix seconds,
    which chat answers carry and messages do not. Raises CannotTranslate for a body that is no
    answer of the upstream's dialect.
    """
    if (upstream, client) not in BRIDGES:
        raise _no_bridge(upstream, client)
    if client is Surface.CHAT:
        return chat_answer(
            body,
            model=model,
            created=created,
            request_id=request_id,
            extra_usage=extra_usage,
            estimate=estimate,
        )
    return messages_answer(
        body, model=model, request_id=request_id, extra_usage=extra_usage, estimate=estimate
    )


BRIDGES = frozenset({(Surface.CHAT, Surface.MESSAGES), (Surface.MESSAGES, Surface.CHAT)})


def count_tokens_answer(input_tokens: int) -> bytes:
    """The answer to `/v1/messages/count_tokens` where we estimate: chat has no such call."""
    return encode({"input_tokens": input_tokens})


def _no_bridge(source: Surface, to: Surface) -> CannotTranslate:
    return CannotTranslate(
        f"A {source} request cannot be served by a {to} endpoint; only chat and messages are "
        "translated into each other",
        param="model",
    )
