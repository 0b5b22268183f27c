"""A JSON body as a typed struct: what is wrong is a 400 that names the field."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from backend.errors import BadRequest
from gateway.wire.rawjson import WireFormatError, parse_members

T = TypeVar("T")

_WHERE = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"required field `([^`]*)`")
_INT64 = 2**63

Int64 = Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Unknown fields are skipped. Raises BadRequest: no JSON object, a duplicate, a wrong type."""
    try:
        parse_members(body)  # depth, duplicates and UTF-8, as the gateway reads them
    except WireFormatError as error:
        raise BadRequest(f"the body is not acceptable JSON: {error}") from None
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None


def wrong(param: str, message: str) -> BadRequest:
    """A value that has the right type and still cannot be taken."""
    return BadRequest(f"`{param}` {message}", param=param)


def plain(value: Any) -> Any:
    """A struct as the dict that a template reads, without what was not sent."""
    built = msgspec.to_builtins(value)
    return _without_none(built)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_none(each) for each in value]
    return value


def _field_error(message: str) -> BadRequest:
    where = _WHERE.search(message)
    path = where[1] if where is not None else ""
    reason = message[: where.start()] if where is not None else message
    missing = _MISSING.search(message)
    if missing is not None:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return BadRequest(f"`{path}` is missing; it is required", param=path)
    return BadRequest(
        f"`{path or 'body'}` is wrong: {reason[:1].lower()}{reason[1:]}", param=path or None
    )
