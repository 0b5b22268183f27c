"""From an upstream's error to a failure class: by status, then by what the body says."""

from __future__ import annotations

import re

from gateway.errors import FailureClass
from gateway.providers.adapter import Fault
from gateway.providers.transport import Headers
from gateway.wire.errors import read_error
from gateway.wire.limits_headers import parse_retry_after
from gateway.wire.pieces import WireError

# Exact codes and types, as OpenAI, Anthropic, Azure, Groq, DeepSeek, Moonshot, Zhipu, DashScope,
# OpenRouter and vLLM use them. Data: extend it when a provider teaches us a new one.
_QUOTA = frozenset(
    [
        "insufficient_quota",
        "billing_error",
        "billing_hard_limit_reached",
        "enforced_spend_limit_reached",
        "exceeded_current_quota_error",
        "insufficient_balance",
        "arrearage",
        "credit_balance_too_low",
        "quota_exceeded",
        "payment_required",
        "usage_limit_reached",
        "1113",
    ]
)
_RATE_LIMITED = frozenset(
    [
        "rate_limit_error",
        "rate_limit_exceeded",
        "rate_limit_reached_error",
        "requests",
        "tokens",
        "throttling",
        "too_many_requests",
        "concurrency_limit_exceeded",
        "1302",
        "1303",
        "1305",
        "429",
    ]
)
_OVERLOADED = frozenset(
    [
        "overloaded_error",
        "overloaded",
        "engine_overloaded",
        "engine_overloaded_error",
        "capacity_exceeded",
        "service_unavailable",
        "serviceunavailable",
        "server_overloaded",
        "slow_down",
        "model_overloaded",
        "no_capacity",
        "503",
        "529",
    ]
)
_AUTH = frozenset(
    [
        "authentication_error",
        "invalid_api_key",
        "invalid_authentication_error",
        "permission_error",
        "permission_denied",
        "unauthorized",
        "account_deactivated",
        "key_expired",
        "invalidapikey",
        "access_denied",
        "incorrect_api_key_error",
        "401",
        "403",
    ]
)
_MISCONFIGURED = frozenset(
    [
        "model_not_found",
        "not_found_error",
        "not_found",
        "deploymentnotfound",
        "model_not_supported",
        "model_decommissioned",
        "unknown_model",
        "resource_not_found_error",
        "unsupported_country_region_territory",
        "1211",
        "404",
    ]
)
_CONTEXT = frozenset(
    [
        "context_length_exceeded",
        "string_above_max_length",
        "request_too_large",
        "prompt_too_long",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
        "413",
    ]
)
_CONTENT = frozenset(
    [
        "content_filter",
        "content_policy_violation",
        "data_inspection_failed",
        "datainspectionfailed",
        "responsibleaipolicyviolation",
        "moderation_blocked",
        "content_moderation",
        "content_blocked",
        "safety_error",
        "refusal",
        "1301",
    ]
)
_INVALID = frozenset({"invalid_request_error", "invalid_request", "unprocessable_entity", "400"})

_EXACT: tuple[tuple[frozenset[str], FailureClass], ...] = (
    (_QUOTA, FailureClass.QUOTA),
    (_CONTEXT, FailureClass.CONTEXT_TOO_LONG),
    (_CONTENT, FailureClass.CONTENT_REFUSED),
    (_MISCONFIGURED, FailureClass.MISCONFIGURED),
    (_OVERLOADED, FailureClass.OVERLOADED),
    (_RATE_LIMITED, FailureClass.RATE_LIMITED),
    (_AUTH, FailureClass.AUTH),
    (_INVALID, FailureClass.INVALID_REQUEST),
)

_CONTEXT_PHRASES = (
    "maximum context length",
    "context length",
    "context window",
    "context size",
    "context limit",
    "prompt is too long",
    "input is too long",
    "input length should be",
    "max_model_len",
    "reduce the length of",
    "too many input tokens",
)
_QUOTA_PHRASES = (
    "current quota",
    "credit balance",
    "insufficient balance",
    "insufficient credit",
    "insufficient_quota",
    "more credits",
    "spend limit",
    "spending limit",
    "usage limits",
    "key limit exceeded",
    "in arrears",
    "overdue-payment",
)
_CONTENT_PHRASES = (
    "content management policy",
    "content policy",
    "content filter",
    "inappropriate content",
    "requires moderation",
    "was flagged",
)
_MODEL_PHRASES = ("model not exist", "does not exist", "model not found", "unknown model")
_KEY_PHRASES = ("api key not valid", "invalid api key", "incorrect api key")

# What stands in quotes may be the caller's own words: they must not shut an endpoint for others.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")

# A gateway answered for a provider that may have been at work.
_UNCERTAIN_STATUSES = frozenset({408, 502, 504, *range(520, 528)})
_CERTAIN_IN_BAND = frozenset(
    {
        FailureClass.RATE_LIMITED,
        FailureClass.QUOTA,
        FailureClass.OVERLOADED,
        FailureClass.AUTH,
        FailureClass.MISCONFIGURED,
        FailureClass.INVALID_REQUEST,
        FailureClass.CONTEXT_TOO_LONG,
        FailureClass.CONTENT_REFUSED,
    }
)


def classify_answer(status: int, headers: Headers, body: bytes, *, now_unix_s: float) -> Fault:
    """The fault behind an error status. A body the provider sent with it is never billed."""
    error = read_error(body, status)
    failure = _by_status(status, error)
    return Fault(
        failure=failure,
        error=error,
        was_refused=status not in _UNCERTAIN_STATUSES,
        retry_after_s=parse_retry_after(headers, now_unix_s),
    )


def classify_in_band(error: WireError) -> Fault:
    """The fault behind an error in a 200. A stream cut short is of no certain cost."""
    failure = _by_words(error)
    if failure is None and error.code.isdigit() and 400 <= int(error.code) < 600:
        failure = _by_status(int(error.code), error)
    failure = failure or FailureClass.SERVER_ERROR
    return Fault(failure, error, was_refused=failure in _CERTAIN_IN_BAND)


def _by_status(status: int, error: WireError) -> FailureClass:
    said = _by_words(error)
    if status == 402:
        return FailureClass.QUOTA
    if status == 429:
        return FailureClass.QUOTA if said is FailureClass.QUOTA else FailureClass.RATE_LIMITED
    if status in (498, 503, 529):
        return FailureClass.OVERLOADED
    if status >= 500:
        return said if said is FailureClass.OVERLOADED else FailureClass.SERVER_ERROR
    if status in (401, 403):
        is_other = said in (FailureClass.QUOTA, FailureClass.CONTENT_REFUSED)
        return said if is_other and said is not None else FailureClass.AUTH
    if status == 413:
        is_rate = said is FailureClass.RATE_LIMITED  # Groq: larger than the minute's tokens
        return FailureClass.RATE_LIMITED if is_rate else FailureClass.CONTEXT_TOO_LONG
    if status == 408:
        return FailureClass.SERVER_ERROR
    if status in (404, 405, 410) or status < 400:
        return FailureClass.MISCONFIGURED  # redirects too: the base URL is wrong
    return said or FailureClass.INVALID_REQUEST


def _by_words(error: WireError) -> FailureClass | None:
    code, kind = error.code.lower(), error.type.lower()
    message = error.message.lower()
    said = _exact(code)
    if said is not None and said is not FailureClass.INVALID_REQUEST:
        if said is FailureClass.RATE_LIMITED and _has(message, _QUOTA_PHRASES):
            return FailureClass.QUOTA
        return said
    # Many providers say only "invalid request" and put the reason into the message.
    if _has(message, _CONTEXT_PHRASES):
        return FailureClass.CONTEXT_TOO_LONG
    if _has(message, _CONTENT_PHRASES):
        return FailureClass.CONTENT_REFUSED
    own_words = _QUOTED.sub("", message)
    if _has(own_words, _QUOTA_PHRASES):
        return FailureClass.QUOTA
    if _has(own_words, _KEY_PHRASES):
        return FailureClass.AUTH
    if "model" in own_words and _has(own_words, _MODEL_PHRASES):
        return FailureClass.MISCONFIGURED
    return _exact(kind) or said


def _exact(word: str) -> FailureClass | None:
    if not word:
        return None
    for words, failure in _EXACT:
        if word in words:
            return failure
    return None


def _has(message: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in message for phrase in phrases)
