"""Exception → status, headers and body in OpenAI's shape: one table for every route."""

from __future__ import annotations

import structlog

from backend.api.exchange import JSON_HEADERS, Headers, HttpProblem
from backend.errors import BadRequest, Overloaded, RequestFailed, RequestTimedOut, Unavailable
from gateway.wire.errors import error_body, type_of_status
from gateway.wire.limits_headers import retry_headers
from gateway.wire.pieces import Dialect

log = structlog.get_logger()


class NoSuchModel(BadRequest):
    """Answered 404, as OpenAI does."""

    def __init__(self, name: str, served: str) -> None:
        super().__init__(
            f"there is no model {name[:100]!r} here; this server has {served!r}",
            param="model",
            code="model_not_found",
        )


class WrongKey(Exception):
    """Answered 401."""


class NotLocal(Exception):
    """Answered 403."""


def describe(error: Exception) -> tuple[int, str, str, str | None]:
    """Status, message, code and the field to blame of whatever was raised."""
    if isinstance(error, HttpProblem):
        return error.status, error.message, error.code, None
    if isinstance(error, WrongKey):
        return 401, str(error), "invalid_api_key", None
    if isinstance(error, NotLocal):
        return 403, str(error), "not_local", None
    if isinstance(error, NoSuchModel):
        return 404, error.message, error.code or "", error.param
    if isinstance(error, BadRequest):
        return 400, error.message, error.code or "", error.param
    if isinstance(error, Overloaded):
        return 429, str(error), "overloaded", None
    if isinstance(error, Unavailable):
        return 503, str(error), "unavailable", None
    if isinstance(error, RequestTimedOut):
        return 504, str(error), "timed_out", None
    if isinstance(error, RequestFailed):
        return 500, str(error), "request_failed", None
    log.error("unexpected error", exc_info=error)
    # The text of an unknown exception may hold a prompt: it stays in the log.
    return 500, "the server met an unexpected error; its log has the cause", "internal", None


def problem_body(error: Exception) -> tuple[int, bytes]:
    """The status, and the body as an answer or as the last event of a stream."""
    status, message, code, param = describe(error)
    body = error_body(
        Dialect.OPENAI,
        status=status,
        type=type_of_status(status),
        message=message,
        param=param,
        code=code or None,
    )
    return status, body


def problem_answer(error: Exception) -> tuple[int, Headers, bytes]:
    """A whole answer for anything that was raised."""
    status, body = problem_body(error)
    headers: Headers = list(JSON_HEADERS)
    if isinstance(error, HttpProblem):
        headers.extend(error.headers)
    if isinstance(error, Overloaded):
        headers.extend(retry_headers(error.retry_after_s, True))
    if isinstance(error, Unavailable):
        # The SDKs would repeat a 503 at once otherwise, also where no answer will ever come.
        headers.extend(retry_headers(error.retry_after_s, error.retry_after_s is not None))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return status, headers, body
