"""Error bodies: written in the shape each SDK expects, read in every shape seen."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import msgspec

from gateway.wire.pieces import SURFACE_DIALECT, Dialect, Surface, WireError
from gateway.wire.sse import encode_event

MESSAGE_CHARS_MAX = 2_000
_PAGE_CHARS_MAX = 200
_PAGE_BYTES_MAX = 2_048
# An error body larger than this is not read for its message.
BODY_BYTES_MAX = 256 * 1024

_TAG = re.compile(r"<[^>]*>")
_HTML_STARTS = (b"<!doctype", b"<html", b"<head", b"<body", b"<?xml", b"<!--", b"<center", b"<h1")

_OPENAI_TYPES = {
    "api_error": "server_error",
    "overloaded_error": "server_error",
    "timeout_error": "server_error",
    "request_too_large": "invalid_request_error",
    "billing_error": "insufficient_quota",
}
_ANTHROPIC_TYPES = {
    "server_error": "api_error",
    "insufficient_quota": "rate_limit_error",
}
# A status that both sides have a type of their own for wins over the type we were given.
_ANTHROPIC_BY_STATUS = {413: "request_too_large", 504: "timeout_error", 529: "overloaded_error"}
_TYPE_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_STATUS_BY_WORD = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "INVALID_ARGUMENT": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "UNAUTHENTICATED": 401,
    "billing_error": 402,
    "permission_error": 403,
    "PERMISSION_DENIED": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "NOT_FOUND": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "RESOURCE_EXHAUSTED": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
    "UNAVAILABLE": 503,
}
_RESPONSE_TEMPLATE: dict[str, object] = {
    "object": "response",
    "created_at": 0,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "model": "",
    "output": [],
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "usage": None,
}


def error_body(
    dialect: Dialect,
    *,
    status: int,
    type: str,
    message: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    detail: object | None = None,
) -> bytes:
    """The body of an error answer. `detail` (JSON-able) goes into the error object."""
    kind = type or type_of_status(status)
    if dialect is Dialect.ANTHROPIC:
        return _anthropic(status, kind, message, code, request_id, detail)
    error: dict[str, object] = {
        "message": message,
        "type": _OPENAI_TYPES.get(kind, kind),
        "param": param,
        "code": code or None,
    }
    if detail is not None:
        error["detail"] = detail
    return msgspec.json.encode({"error": error})


def sse_error(
    surface: Surface,
    error: WireError,
    request_id: str,
    *,
    sequence_number: int = 0,
    response: dict[str, msgspec.Raw] | None = None,
) -> bytes:
    """The in-band error of a stream that has begun. No end mark may follow it.

    A responses stream gets `error` and `response.failed`; `response` is the object its
    `response.created` carried, so that id and model stay the same.
    """
    if SURFACE_DIALECT[surface] is Dialect.ANTHROPIC:
        # Anthropic's SDKs do not see data without the event's name.
        kind = error.type or type_of_status(error.status)
        body = _anthropic(error.status, kind, error.message, error.code, request_id, None)
        return encode_event(body, "error")
    if surface is Surface.RESPONSES:
        return _response_failed(error, sequence_number, response)
    body = error_body(
        Dialect.OPENAI,
        status=error.status,
        type=error.type,
        message=error.message,
        code=error.code,
    )
    return encode_event(body)


def type_of_status(status: int) -> str:
    if status in _TYPE_BY_STATUS:
        return _TYPE_BY_STATUS[status]
    return "invalid_request_error" if 400 <= status < 500 else "server_error"


def status_of(error: WireError) -> int:
    """The HTTP status an error has or would have had: in-band ones tell only type and code."""
    if error.status:
        return error.status
    if len(error.code) == 3 and error.code.isdecimal() and error.code[0] in "45":
        return int(error.code)
    return _STATUS_BY_WORD.get(error.code) or _STATUS_BY_WORD.get(error.type) or 500


def read_error(body: bytes, status: int) -> WireError:
    """What an upstream's error body says, in whichever dialect; never longer than the limit."""
    text = body.strip()
    if not text:
        return WireError(message=f"the upstream answered {status} with no body", status=status)
    if is_html(text):
        page = _page_title(text[:BODY_BYTES_MAX])
        message = f"the upstream sent a web page instead of an answer: {page}"
        return WireError(message=message, code="html_body", status=status)
    value: object = None
    if len(text) <= BODY_BYTES_MAX:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
    error = error_of(value, status)
    if error is not None:
        return error
    plain = text[: MESSAGE_CHARS_MAX * 4].decode("utf-8", "replace")
    return WireError(message=_short(plain), status=status)


def error_of(value: object, status: int = 0) -> WireError | None:
    """The error that a decoded JSON value is or holds; None when it is no error."""
    if isinstance(value, list) and value:  # Gemini wraps it in a list
        value = value[0]
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if error is None and isinstance(value.get("errors"), list) and value["errors"]:
        error = value["errors"][0]
    if isinstance(error, str) and error:
        return WireError(message=_short(error), code=_text(value.get("code")), status=status)
    if isinstance(error, dict):
        return _from_object(error, status)
    if error is not None and error is not False:
        return WireError(message=_short(str(error)), status=status)
    # FastAPI, older vLLM, and the Chinese platforms put it at the top level.
    if any(isinstance(value.get(name), str | list) for name in ("detail", "message", "msg")):
        return _from_object(value, status)
    return None


class _Said(msgspec.Struct):
    message: str


class _Shaped(msgspec.Struct):
    error: _Said
    type: Any = None


def is_error_of(dialect: Dialect, body: bytes) -> bool:
    """Whether an SDK of this dialect finds type and message where it looks for them."""
    try:
        shaped = msgspec.json.decode(body, type=_Shaped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return dialect is Dialect.OPENAI or shaped.type == "error"


def is_html(body: bytes) -> bool:
    return body.lstrip()[:16].lower().startswith(_HTML_STARTS)


def _from_object(error: dict[str, object], status: int) -> WireError:
    details = error.get("details")
    code = _text(details.get("error_code")) if isinstance(details, dict) else ""
    code = code or _text(error.get("code"))
    kind = _text(error.get("type")) or _text(error.get("status"))
    message = ""
    for name in ("message", "detail", "msg"):
        said = error.get(name)
        if isinstance(said, str) and said:
            message = said
        elif isinstance(said, list | dict) and said:
            message = msgspec.json.encode(said).decode()
        if message:
            break
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):
        message = f"{message}: {metadata['raw']}"  # OpenRouter: what its own upstream said
    message = message or kind or code or "the upstream gave no reason"
    return WireError(message=_short(message), type=kind, code=code, status=status)


def _anthropic(
    status: int, kind: str, message: str, code: str | None, request_id: str, detail: object | None
) -> bytes:
    error: dict[str, object] = {
        "type": _ANTHROPIC_BY_STATUS.get(status) or _ANTHROPIC_TYPES.get(kind, kind),
        "message": message,
    }
    if kind == "insufficient_quota":
        # The SDKs' sign for "your limit is spent, do not retry".
        error["details"] = {"error_code": "enforced_spend_limit_reached"}
    elif code:
        error["details"] = {"error_code": code}
    if detail is not None:
        error["detail"] = detail
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id or None})


def _response_failed(
    error: WireError, sequence_number: int, response: dict[str, msgspec.Raw] | None
) -> bytes:
    kind = error.type or type_of_status(error.status)
    code = error.code or "server_error"
    said = {
        "type": "error",
        "code": code,
        "message": error.message,
        "param": None,
        "sequence_number": sequence_number,
        # OpenAI itself nests it as well, and its SDKs raise only on this form.
        "error": {
            "type": _OPENAI_TYPES.get(kind, kind),
            "code": code,
            "message": error.message,
            "param": None,
        },
    }
    failed: dict[str, object] = {"id": "resp_failed", **_RESPONSE_TEMPLATE, **(response or {})}
    failed["status"] = "failed"
    failed["error"] = {"code": code, "message": error.message}
    event = {
        "type": "response.failed",
        "sequence_number": sequence_number + 1,
        "response": failed,
    }
    return encode_event(msgspec.json.encode(said), "error") + encode_event(
        msgspec.json.encode(event), "response.failed"
    )


def _page_title(page: bytes) -> str:
    lower = page.lower()
    start = lower.find(b">", lower.find(b"<title")) + 1 if b"<title" in lower else 0
    end = lower.find(b"</title", start)
    # Few bytes only: a page is not ours, and tags that never close cost the square of them.
    part = page[start : min(end if end > start else len(page), start + _PAGE_BYTES_MAX)]
    words = unescape(_TAG.sub(" ", part.decode("utf-8", "replace")))
    return " ".join(words.split())[:_PAGE_CHARS_MAX]


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


def _text(value: object) -> str:
    """A code as text: OpenRouter and Zhipu send integers."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
