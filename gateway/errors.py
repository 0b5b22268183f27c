"""One error tree and one failure-class table.

LoopRouterError
├── RequestError            the caller's; maps to 4xx, nothing sent upstream, nothing charged
│   ├── InvalidRequest 400 · BodyTooLarge 413 · Unauthenticated 401 · PermissionDenied 403
│   ├── NotFound 404 (UnknownModel) · MethodNotAllowed 405 · RequestTimeout 408 · Conflict 409
│   ├── IdempotencyMismatch 422 · RateLimited 429 · BudgetExhausted 429 (code insufficient_quota)
│   └── NoEligibleEndpoint 503  which rule excluded each
├── ServiceError            ours or the endpoints'; 5xx
│   ├── UpstreamFailed 502 · UpstreamTimeout 504 · Overloaded 503 · LedgerUnavailable 503
│   └── Draining 503
├── PolicyError             the policy file: says path and fix
└── SetupError              start-up: says what is missing and the line that mends it
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LoopRouterError(Exception):
    """Root of all errors that we raise on purpose."""


class ApiError(LoopRouterError):
    """An error with a place on the wire. Subclasses fix status, type and code."""

    status = 500
    type = "server_error"
    code: str | None = None
    should_retry: bool | None = None  # sent as x-should-retry when not None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        detail: object | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else type(self).code
        self.retry_after_s = retry_after_s
        self.detail = detail  # JSON-able; e.g. the rules that excluded each endpoint
        self.summary = message  # what may be kept and logged: no words of a provider's


class RequestError(ApiError):
    status = 400
    type = "invalid_request_error"


class InvalidRequest(RequestError):
    pass


class BodyTooLarge(RequestError):
    status = 413
    code = "request_too_large"


class Unauthenticated(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(RequestError):
    status = 404
    type = "not_found_error"
    code = "not_found"


class UnknownModel(NotFound):
    code = "model_not_found"


class MethodNotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, path: str, method: str, *, allow: str) -> None:
        super().__init__(f"{path} takes {allow}, not {method}")
        self.allow = allow  # sent as the header of that name


class RequestTimeout(RequestError):
    status = 408
    code = "request_timeout"


class Conflict(RequestError):
    status = 409
    code = "idempotency_conflict"


class IdempotencyMismatch(RequestError):
    status = 422
    code = "idempotency_mismatch"


class RateLimited(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    limit_state: object | None = None  # a wire RateLimitState: what the headers say


class BudgetExhausted(RequestError):
    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"
    should_retry = False


class NoEligibleEndpoint(RequestError):
    """`detail` lists, per endpoint, the rule that excluded it. A 400 where the API is the rule."""

    status = 503
    type = "server_error"
    code = "no_eligible_endpoint"
    should_retry = False
    is_capacity = False  # set where learned capacity alone stands in the way: worth a short wait
    free_in_s = 0.0  # with it: when the first endpoint ends the pause it asked for


class ServiceError(ApiError):
    status = 500
    type = "server_error"


class UpstreamFailed(ServiceError):
    status = 502
    code = "upstream_error"
    should_retry = False


class UpstreamTimeout(ServiceError):
    status = 504
    code = "upstream_timeout"
    should_retry = False


class Overloaded(ServiceError):
    status = 503
    type = "overloaded_error"
    code = "overloaded"


class LedgerUnavailable(ServiceError):
    status = 503
    code = "ledger_unavailable"


class Draining(ServiceError):
    status = 503
    code = "shutting_down"


@dataclass(frozen=True, slots=True)
class Place:
    """One thing wrong with a policy, and where: lines and columns begin at 1."""

    message: str  # without the path
    path: str = ""  # routes[0].prefer.by; "" = the text as a whole
    line: int | None = None
    column: int | None = None


class PolicyError(LoopRouterError):
    """The policy file is wrong. The message names path and fix, one line a problem."""

    def __init__(
        self, message: str, problems: tuple[str, ...] = (), places: tuple[Place, ...] = ()
    ) -> None:
        super().__init__(message)
        self.problems = problems or (message,)
        self.places = places or tuple(Place(problem) for problem in self.problems)


class SetupError(LoopRouterError):
    """The process cannot start. The message says what to do."""


class FailureClass(enum.StrEnum):
    """Why an attempt failed."""

    CONNECT = "connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"  # noqa: S105 - a failure, no secret
    TIMEOUT_IDLE = "timeout_idle"
    OVERLOADED = "overloaded"  # 503, 529
    SERVER_ERROR = "server_error"  # other 5xx, malformed or empty 200, HTML
    RATE_LIMITED = "rate_limited"  # 429
    QUOTA = "quota"  # 402, 429 insufficient_quota, spend limit
    AUTH = "auth"  # 401, 403: our key with them is wrong
    MISCONFIGURED = "misconfigured"  # 404 for the model or path
    INVALID_REQUEST = "invalid_request"  # other 4xx: the caller's
    CONTENT_REFUSED = "content_refused"
    CONTEXT_TOO_LONG = "context_too_long"
    STREAM_BROKEN = "stream_broken"  # after the first generated token
    UNTRANSLATABLE = "untranslatable"  # no words for it in the caller's dialect
    TOO_SLOW = "too_slow"  # below the policy's decode floor, and replaced
    OUTPACED = "outpaced"  # another attempt of the same request was faster
    CLIENT_GONE = "client_gone"


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What follows from a failure class."""

    falls_over: bool  # another endpoint may be tried
    counts_for_breaker: bool
    counts_as_capacity: bool  # a capacity signal, not a success sample
    is_alert: bool = False
    passes_answer: bool = False  # the upstream's own 4xx goes to the caller


FAILURES: dict[FailureClass, FailurePolicy] = {
    FailureClass.CONNECT: FailurePolicy(True, True, False),
    FailureClass.TIMEOUT_FIRST_TOKEN: FailurePolicy(True, True, False),
    FailureClass.TIMEOUT_IDLE: FailurePolicy(True, True, False),
    FailureClass.OVERLOADED: FailurePolicy(True, True, True),
    FailureClass.SERVER_ERROR: FailurePolicy(True, True, False),
    FailureClass.RATE_LIMITED: FailurePolicy(True, False, True),
    FailureClass.QUOTA: FailurePolicy(True, True, False, is_alert=True),
    FailureClass.AUTH: FailurePolicy(True, True, False, is_alert=True),
    FailureClass.MISCONFIGURED: FailurePolicy(True, True, False, is_alert=True),
    FailureClass.INVALID_REQUEST: FailurePolicy(False, False, False, passes_answer=True),
    FailureClass.CONTENT_REFUSED: FailurePolicy(False, False, False, passes_answer=True),
    FailureClass.CONTEXT_TOO_LONG: FailurePolicy(True, False, False, passes_answer=True),
    FailureClass.STREAM_BROKEN: FailurePolicy(False, True, False),
    FailureClass.UNTRANSLATABLE: FailurePolicy(False, False, False),
    FailureClass.TOO_SLOW: FailurePolicy(True, False, False),  # the belief of its rate learns
    FailureClass.OUTPACED: FailurePolicy(False, False, False),
    FailureClass.CLIENT_GONE: FailurePolicy(False, False, False),
}
