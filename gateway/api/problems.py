"""Exception → status, headers and body in the caller's dialect: one table for every route."""

from __future__ import annotations

import structlog

from gateway.api.exchange import Headers
from gateway.errors import ApiError, InvalidRequest, MethodNotAllowed, RateLimited, ServiceError
from gateway.wire.errors import error_body
from gateway.wire.limits_headers import RateLimitState, rate_limit_headers, retry_headers
from gateway.wire.pieces import Dialect
from gateway.wire.rawjson import WireFormatError
from gateway.wire.requests import FieldError

log = structlog.get_logger()


def as_api_error(error: Exception) -> ApiError:
    """Whatever was raised, as an error with a place on the wire. Unknown ones are logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FieldError):
        return InvalidRequest(str(error), param=error.param)
    if isinstance(error, WireFormatError):
        return InvalidRequest(f"the body is not acceptable JSON: {error}")
    log.error("unexpected error", error=error, exc_info=error)
    # The text of an unknown exception may hold secrets: it stays in the log.
    return ServiceError("the gateway met an unexpected error; its log has the cause")


def error_headers(error: ApiError, dialect: Dialect) -> Headers:
    """The headers an error answer carries, retry advice included; the edge adds the ids."""
    headers: Headers = [(b"content-type", b"application/json")]
    state = error.limit_state if isinstance(error, RateLimited) else None
    if isinstance(state, RateLimitState):
        headers.extend(rate_limit_headers(dialect, state))
        headers.extend(retry_headers(None, error.should_retry))
    else:
        headers.extend(retry_headers(error.retry_after_s, error.should_retry))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def id_headers(dialect: Dialect, request_id: str) -> Headers:
    """Our request id under the name the dialect's SDK reads, and under our own."""
    name = b"request-id" if dialect is Dialect.ANTHROPIC else b"x-request-id"
    value = request_id.encode()
    return [(name, value), (b"x-looprouter-request-id", value)]


def error_answer(
    error: Exception, dialect: Dialect, request_id: str, *, is_kept: bool = False
) -> tuple[int, Headers, bytes, ApiError]:
    """Status, headers and body for anything that was raised. `is_kept`: as it may be stored."""
    api_error = as_api_error(error)
    body = error_body(
        dialect,
        status=api_error.status,
        type=api_error.type,
        message=api_error.summary if is_kept else api_error.message,
        param=api_error.param,
        code=api_error.code,
        request_id=request_id,
        detail=api_error.detail,
    )
    return api_error.status, error_headers(api_error, dialect), body, api_error
