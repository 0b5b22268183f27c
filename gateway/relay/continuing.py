"""Going on with a chat answer at another endpoint, from the text that the client has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.core import Endpoint
from gateway.relay.job import RelayJob
from gateway.relay.money import CHARACTERS_PER_TOKEN_UNKNOWN
from gateway.wire.pieces import Dialect, Piece, PieceKind, Surface
from gateway.wire.rawjson import WireFormatError, parse_members
from gateway.wire.requests import ParsedRequest

_LIMITS = ("max_tokens", "max_completion_tokens")
_NAMES = ("id", "created", "model")  # what all frames of one answer share
_PLAIN_NEEDS = frozenset({"vision"})  # an answer to more than this is no mere text


class _Message(msgspec.Struct):
    role: Any = None


class _Delta(msgspec.Struct):
    content: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None


_MESSAGES = msgspec.json.Decoder(list[_Message])
_CHUNK = msgspec.json.Decoder(_Chunk)


def continues_at(job: RelayJob) -> frozenset[str]:
    """The endpoints of the plan that can go on with an answer to this request; empty where the
    policy does not ask for it or the answer is more than one text."""
    if not job.policy.rescue.continue_by_prefill or not _is_plain_text(job.parsed):
        return frozenset()
    endpoints = job.policy.endpoints
    return frozenset(each for each in job.plan.order if _can_continue(endpoints[each]))


def _can_continue(endpoint: Endpoint) -> bool:
    """Chat untranslated: the dialects' continuations differ."""
    has_chat = not endpoint.surfaces or Surface.CHAT.value in endpoint.surfaces
    return bool(endpoint.assistant_prefill) and endpoint.api is Dialect.OPENAI and has_chat


def _is_plain_text(parsed: ParsedRequest) -> bool:
    if parsed.surface is not Surface.CHAT or not parsed.stream or parsed.num_choices != 1:
        return False
    if not parsed.needs <= _PLAIN_NEEDS or "prediction" in parsed.members:
        return False
    messages = _MESSAGES.decode(parsed.members.raw("messages") or b"[]")
    # An answer that the client itself has begun would need two messages joined into one.
    return bool(messages) and messages[-1].role != "assistant"


class AnswerSoFar:
    """The text of one chat stream as forwarded, and what its frames call themselves."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._num_visible = 0
        self._names: dict[str, bytes | None] = {}

    @property
    def text(self) -> str | None:
        """None where something was forwarded that is not known word for word."""
        text = "".join(self._parts)
        return text if text and len(text) == self._num_visible else None

    def add(self, pieces: Sequence[Piece]) -> None:
        """Pieces that go to the client."""
        for piece in pieces:
            if not self._names and piece.payload:
                members = parse_members(piece.payload)
                self._names = {name: members.raw(name) for name in _NAMES}
            if piece.kind is PieceKind.GENERATED:
                self._num_visible += piece.visible_chars
                self._parts += _texts(piece.payload)

    def adapt(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Another stream's pieces under this one's names. Its usage is not that of the whole
        answer, which the writer adds at the end."""
        adapted = []
        for piece in pieces:
            if piece.kind is PieceKind.USAGE:
                continue
            if piece.payload:
                members = parse_members(piece.payload)
                changes = {name: raw for name, raw in self._names.items() if name in members}
                if "usage" in members:
                    changes["usage"] = b"null"
                payload = members.rewrite(changes)
                piece = msgspec.structs.replace(piece, payload=payload, usage=None)
            adapted.append(piece)
        return adapted


def _texts(payload: bytes) -> list[str]:
    try:
        chunk = _CHUNK.decode(payload)
    except msgspec.DecodeError:
        return []
    contents = [choice.delta.content for choice in chunk.choices or () if choice.delta is not None]
    return [content for content in contents if isinstance(content, str)]


def continued_job(job: RelayJob, endpoint: Endpoint, answer: AnswerSoFar) -> RelayJob | None:
    """The request to go on with `answer` at `endpoint`; None where that cannot be asked."""
    text = answer.text
    if text is None:
        return None
    parsed, facts = job.parsed, job.facts
    stats = job.snapshot.stats.get(endpoint.id)
    per_token = stats.characters_per_token if stats is not None else CHARACTERS_PER_TOKEN_UNKNOWN
    num_tokens = math.ceil(len(text) / per_token)
    left = None if parsed.max_tokens is None else parsed.max_tokens - num_tokens
    if left is not None and left < 1:
        return None
    try:
        members = parse_members(_continued_body(parsed, endpoint, text, num_tokens))
    except WireFormatError:
        return None  # longer than what may be asked
    num_bytes = len(text.encode())
    return replace(
        job,
        parsed=msgspec.structs.replace(
            parsed,
            members=members,
            text_bytes=parsed.text_bytes + num_bytes,
            max_tokens=left,
        ),
        facts=msgspec.structs.replace(
            facts,
            text_bytes=facts.text_bytes + num_bytes,
            prompt_tokens=facts.prompt_tokens + num_tokens,
            max_tokens=left,
        ),
        output_tokens_expected=max(1.0, job.output_tokens_expected - num_tokens),
    )


def _continued_body(parsed: ParsedRequest, endpoint: Endpoint, text: str, num_tokens: int) -> bytes:
    """The client's body with the answer begun, and less to generate."""
    members = parsed.members
    message: dict[str, object] = {"role": "assistant", "content": text}
    if endpoint.assistant_prefill == "prefix":
        message["prefix"] = True
    messages = (members.raw("messages") or b"[]").rstrip().removesuffix(b"]")
    changes: dict[str, bytes | None] = {
        "messages": messages + b"," + msgspec.json.encode(message) + b"]"
    }
    if endpoint.assistant_prefill == "continue_final_message":
        changes |= {"continue_final_message": b"true", "add_generation_prompt": b"false"}
    for name in _LIMITS:
        raw = members.raw(name)
        if raw is not None and raw != b"null":
            changes[name] = b"%d" % max(1, msgspec.json.decode(raw, type=int) - num_tokens)
    return members.rewrite(changes)
