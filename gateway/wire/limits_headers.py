"""Rate-limit and retry headers: written in each dialect's form, read in every form seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from gateway.wire.pieces import Dialect

# A reset further away than this is a mistake of the sender, or an epoch we misread.
RETRY_AFTER_MAX_S = 31 * 86_400.0
# Bare numbers above this cannot be seconds to wait: they are epochs, in seconds or milliseconds.
_EPOCH_S_MIN = 1e9
_EPOCH_MS_MIN = 1e11

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_UNIT_S = {
    "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0,
    "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
}  # fmt: skip
_DIMENSIONS = ("requests", "tokens", "input-tokens", "output-tokens", "")


class RateLimitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key's windows at one instant. None = no such limit."""

    now_unix_s: float  # RFC 3339 resets are instants, so the instant of reading belongs here
    limit_requests: int | None = None
    remaining_requests: int = 0
    reset_requests_s: float = 0.0  # until the window is full again
    limit_tokens: int | None = None
    remaining_tokens: int = 0
    reset_tokens_s: float = 0.0
    retry_after_s: float | None = None  # set when the request was refused
    exceeded: str = ""  # "requests" | "tokens" | "concurrency" | ""


def rate_limit_headers(dialect: Dialect, state: RateLimitState) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-*` with durations for OpenAI, `anthropic-ratelimit-*` with instants."""
    headers: list[tuple[bytes, bytes]] = []
    for dimension, limit, remaining, reset_s in (
        ("requests", state.limit_requests, state.remaining_requests, state.reset_requests_s),
        ("tokens", state.limit_tokens, state.remaining_tokens, state.reset_tokens_s),
    ):
        if limit is None:
            continue
        reset_s = max(0.0, reset_s)
        if dialect is Dialect.ANTHROPIC:
            prefix = f"anthropic-ratelimit-{dimension}-"
            limit_name, remaining_name, reset_name = (
                prefix + part for part in ("limit", "remaining", "reset")
            )
            reset = rfc3339(state.now_unix_s + reset_s)
        else:
            limit_name = f"x-ratelimit-limit-{dimension}"
            remaining_name = f"x-ratelimit-remaining-{dimension}"
            reset_name = f"x-ratelimit-reset-{dimension}"
            reset = duration(reset_s)
        headers.append((limit_name.encode(), b"%d" % limit))
        headers.append((remaining_name.encode(), b"%d" % max(0, remaining)))
        headers.append((reset_name.encode(), reset.encode()))
    headers.extend(retry_headers(state.retry_after_s))
    return headers


def retry_headers(
    retry_after_s: float | None, should_retry: bool | None = None
) -> list[tuple[bytes, bytes]]:
    """`retry-after` in whole seconds, rounded up, and `retry-after-ms`, which the SDKs prefer."""
    headers: list[tuple[bytes, bytes]] = []
    if retry_after_s is not None:
        milliseconds = max(0, round(min(retry_after_s, RETRY_AFTER_MAX_S) * 1000))
        headers.append((b"retry-after", b"%d" % -(-milliseconds // 1000)))
        headers.append((b"retry-after-ms", b"%d" % milliseconds))
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    return headers


def duration(seconds: float) -> str:
    """OpenAI's form: `20ms`, `1s`, `6m0s`, `1h0m0s`; never shorter than the time itself."""
    milliseconds = -(-round(seconds * 1_000_000) // 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds > 0 else "0s"
    whole_s = -(-milliseconds // 1000)
    minutes, rest_s = divmod(whole_s, 60)
    if minutes == 0:
        return f"{rest_s}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest_s}s" if hours else f"{minutes}m{rest_s}s"


def rfc3339(unix_s: float) -> str:
    """Whole seconds, rounded up, UTC with `Z`."""
    at = datetime.fromtimestamp(-(-round(unix_s * 1000) // 1000), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_retry_after(
    headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]], now_unix_s: float
) -> float | None:
    """Seconds to wait by `retry-after-ms`, `retry-after`, else the reset of a spent window.

    None when the upstream said nothing usable. Never negative, at most RETRY_AFTER_MAX_S.
    """
    fields = _lower(headers)
    wait_s = _milliseconds(fields.get("retry-after-ms", ""))
    if wait_s is None:
        wait_s = _reset(fields.get("retry-after", ""), now_unix_s)
    if wait_s is None:
        wait_s = _spent_window(fields, now_unix_s)
    return wait_s


def _lower(headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    if isinstance(headers, Mapping):
        return {name.lower(): value for name, value in headers.items()}
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def _milliseconds(text: str) -> float | None:
    try:
        return _sane(float(text) / 1000)
    except ValueError:
        return None


def _spent_window(fields: dict[str, str], now_unix_s: float) -> float | None:
    """The latest reset among windows with nothing left; among all when none says what is left."""
    spent: list[float] = []
    unknown: list[float] = []
    for dimension in _DIMENSIONS:
        tail = f"-{dimension}" if dimension else ""
        openai = (f"x-ratelimit-remaining{tail}", f"x-ratelimit-reset{tail}")
        infix = f"{dimension}-" if dimension else ""
        prefix = f"anthropic-ratelimit-{infix}"
        for remaining_name, reset_name in (openai, (prefix + "remaining", prefix + "reset")):
            reset_s = _reset(fields.get(reset_name, ""), now_unix_s)
            if reset_s is None:
                continue
            remaining = fields.get(remaining_name)
            if remaining is None:
                unknown.append(reset_s)
            elif remaining.strip() in ("0", "0.0"):
                spent.append(reset_s)
    return max(spent, default=None) if spent else max(unknown, default=None)


def _reset(text: str, now_unix_s: float) -> float | None:
    """Seconds from now: a number, an epoch in s or ms, a duration, an HTTP date or RFC 3339."""
    text = text.strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        if number >= _EPOCH_MS_MIN:
            return _sane(number / 1000 - now_unix_s)
        return _sane(number - now_unix_s if number >= _EPOCH_S_MIN else number)
    matches = list(_DURATION.finditer(text))
    if matches and "".join(match[0] for match in matches) == text:
        return _sane(sum(float(match[1]) * _UNIT_S[match[2]] for match in matches))
    at = _instant(text)
    return None if at is None else _sane(at.timestamp() - now_unix_s)


def _instant(text: str) -> datetime | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = parse(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return None


def _sane(seconds: float) -> float | None:
    """Past instants mean now; NaN and far futures mean nothing."""
    if not seconds <= RETRY_AFTER_MAX_S:
        return None
    return max(0.0, seconds)
