"""What the translators share: their results, their refusal, and raw JSON members.

Values that mean the same in both dialects are spliced as the caller's own bytes; only what has
to change is decoded. So text, schemas and tool arguments keep every byte and every digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

Object = dict[str, msgspec.Raw]
T = TypeVar("T")

_OBJECT = msgspec.json.Decoder(Object)
_OBJECTS = msgspec.json.Decoder(list[Object])
_STRING = msgspec.json.Decoder(str)
_STRINGS = msgspec.json.Decoder(list[str])
encode = msgspec.json.Encoder().encode

QUOTE, BRACKET, BRACE = b'"', b"[", b"{"
NULL = msgspec.Raw(b"null")
# How Anthropic's guide asks to carry tool arguments that are no JSON object.
INVALID_JSON = "INVALID_JSON"
TOOL_ID_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class CannotTranslate(ValueError):
    """A request or answer holds a shape that the other dialect has no counterpart for.

    `param` names the place in the caller's own body; the message says how to mend it.
    """

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Translated:
    """A body for the upstream and the names of what it could not carry, each once, in order."""

    body: bytes
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What the chosen endpoint takes beyond, or short of, its dialect. The default is the dialect.

    `extensions`: fields outside the official types that it understands. Any unknown top-level
    field named here is carried as it is. Names with a meaning of their own: `cache_control`,
    `reasoning_content`, `reasoning_details`, `is_error`, `tool_images` (images inside tool
    messages), `top_k`, `system_messages` (system turns in the middle of a messages request).
    `refuses`: fields of the dialect that it rejects; they are left out and reported.
    """

    extensions: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    thinking: Literal["adaptive", "budget", "effort"] = "adaptive"  # adaptive: takes both
    text_parts: bool = True  # False: text-only content goes out as one string
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


DIALECT_ONLY = Target()


def target_of(quirks: frozenset[str], parameters: frozenset[str] | None = None) -> Target:
    """The Target that an endpoint's quirks and known parameters amount to.

    Quirks read: `max_completion_tokens`, `no_stream_options`, `thinking_budget` (takes a token
    budget, not an effort), `thinking_effort` (the reverse), `string_content` (takes no list of
    text parts).
    """
    return Target(
        extensions=parameters or frozenset(),
        refuses=frozenset({"stream_options"} if "no_stream_options" in quirks else ()),
        thinking="budget"
        if "thinking_budget" in quirks
        else ("effort" if "thinking_effort" in quirks else "adaptive"),
        text_parts="string_content" not in quirks,
        max_tokens_field=(
            "max_completion_tokens" if "max_completion_tokens" in quirks else "max_tokens"
        ),
    )


class Notes:
    """The names of what was not carried, in the order found, each once."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def drop(self, name: str) -> None:
        self._names[name] = None

    def drop_unknown(self, found: Iterable[str], known: frozenset[str], prefix: str) -> None:
        for name in found:
            if name not in known:
                self._names[f"{prefix}.{name}"] = None

    def names(self) -> tuple[str, ...]:
        return tuple(self._names)


def starts(raw: msgspec.Raw, mark: bytes) -> bool:
    """Whether the raw value is a string, list, object… by its first byte."""
    return memoryview(raw)[: len(mark)] == mark


def is_null(raw: msgspec.Raw) -> bool:
    return len(raw) == 4 and raw == NULL


def is_true(raw: msgspec.Raw | None) -> bool:
    return raw is not None and starts(raw, b"true")


def as_object(raw: msgspec.Raw, param: str) -> Object:
    """The members of an object; members that are null are left out."""
    try:
        members = _OBJECT.decode(raw)
    except msgspec.DecodeError as error:
        raise CannotTranslate(f"{param} must be an object", param=param) from error
    return _without_nulls(members)


def as_objects(raw: msgspec.Raw, param: str) -> list[Object]:
    """A list of objects; members that are null are left out."""
    try:
        found = _OBJECTS.decode(raw)
    except msgspec.DecodeError as error:
        raise CannotTranslate(f"{param} must be a list of objects", param=param) from error
    return [_without_nulls(members) for members in found]


def _without_nulls(members: Object) -> Object:
    """The members themselves where none is null, as nearly always."""
    for value in members.values():
        if len(value) == 4 and value == NULL:
            return {name: value for name, value in members.items() if not is_null(value)}
    return members


def as_string(raw: msgspec.Raw | None, param: str) -> str:
    """The decoded string; a missing or other value is the caller's fault at `param`."""
    if raw is None:
        raise CannotTranslate(f"{param} is missing; give it as a string", param=param)
    try:
        return _STRING.decode(raw)
    except msgspec.DecodeError as error:
        raise CannotTranslate(f"{param} must be a string", param=param) from error


def as_strings(raw: msgspec.Raw, param: str) -> list[str]:
    try:
        return _STRINGS.decode(raw)
    except msgspec.DecodeError as error:
        raise CannotTranslate(f"{param} must be a list of strings", param=param) from error


def as_number(raw: msgspec.Raw, param: str) -> int | float:
    try:
        value = msgspec.json.decode(raw, type=int | float)
    except msgspec.DecodeError as error:
        raise CannotTranslate(f"{param} must be a number", param=param) from error
    return value


def string_bytes(raw: msgspec.Raw | None, param: str) -> msgspec.Raw:
    """A string spliced through as its own bytes, checked to be one."""
    if raw is None or not starts(raw, QUOTE):
        raise CannotTranslate(f"{param} must be a string", param=param)
    return raw


def arguments_to_input(arguments: str) -> msgspec.Raw:
    """Tool arguments as the text of an object, kept byte for byte.

    A model may write no object (cut off by a length limit, say): then the text is wrapped under
    INVALID_JSON, so that nothing is lost and nothing invented.
    """
    text = arguments.strip(" \t\r\n")
    if not text:
        return msgspec.Raw(b"{}")
    raw = text.encode("utf-8", "replace")
    if is_json_object(raw):
        return msgspec.Raw(raw)
    return msgspec.Raw(encode_said({INVALID_JSON: arguments}))


def input_to_arguments(raw: msgspec.Raw) -> str:
    """The inverse: the input's own bytes as text, or the wrapped text."""
    text = bytes(raw)
    if INVALID_JSON.encode() in text[:24]:
        members = _OBJECT.decode(text)
        wrapped = members.get(INVALID_JSON)
        if wrapped is not None and len(members) == 1 and starts(wrapped, QUOTE):
            return _STRING.decode(wrapped)
    return text.decode()


def is_json_object(raw: bytes) -> bool:
    """Whether the bytes are one whole JSON object."""
    if not raw.startswith(BRACE):
        return False
    try:
        _OBJECT.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def safe_tool_id(tool_id: str) -> str:
    """A tool-call id in the characters that the messages dialect allows.

    Others become `_` and their code in hex: the same id always becomes the same, so that a call
    and its result still meet (Kimi writes `functions.search:0`).
    """
    if TOOL_ID_CHARS.issuperset(tool_id):
        return tool_id
    return "".join(c if c in TOOL_ID_CHARS else f"_{ord(c):x}" for c in tool_id)


def decode_said(decoder: msgspec.json.Decoder[T], payload: bytes) -> T:
    """An upstream's event or answer. Raises msgspec.DecodeError.

    An emoji cut in two over two events leaves half a surrogate pair in each. Strict parsers
    refuse that; the client is to have both halves all the same.
    """
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            raise msgspec.DecodeError("not JSON") from None
        try:
            said: T = msgspec.convert(value, decoder.type)
        except UnicodeEncodeError:  # half a pair where bytes are kept: a tool's input
            return decoder.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        return said


def encode_text(said: str) -> bytes:
    """A JSON string; halves of surrogate pairs stay what they are, as escapes."""
    try:
        return encode(said)
    except UnicodeEncodeError:
        return json.dumps(said).encode()


def encode_said(value: object) -> bytes:
    """Like encode_text, for an object that holds an upstream's words."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_raw_value).encode()


def _raw_value(raw: object) -> object:
    assert isinstance(raw, msgspec.Raw)
    return json.loads(bytes(raw))


def merged(usage: dict[str, object], extra: Mapping[str, object] | None) -> dict[str, object]:
    return {**usage, **extra} if extra else usage
