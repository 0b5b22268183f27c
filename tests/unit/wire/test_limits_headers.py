"""Rate-limit and retry headers in every form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.limits_headers import (
    RateLimitState,
    duration,
    parse_retry_after,
    rate_limit_headers,
    retry_headers,
)
from gateway.wire.pieces import Dialect

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
STATE = RateLimitState(
    now_unix_s=NOW,
    limit_requests=100,
    remaining_requests=99,
    reset_requests_s=0.6,
    limit_tokens=40_000,
    remaining_tokens=0,
    reset_tokens_s=360.0,
)


def test_openai_headers_carry_durations() -> None:
    assert dict(rate_limit_headers(Dialect.OPENAI, STATE)) == {
        b"x-ratelimit-limit-requests": b"100",
        b"x-ratelimit-remaining-requests": b"99",
        b"x-ratelimit-reset-requests": b"600ms",
        b"x-ratelimit-limit-tokens": b"40000",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"6m0s",
    }


def test_anthropic_headers_carry_instants() -> None:
    assert dict(rate_limit_headers(Dialect.ANTHROPIC, STATE)) == {
        b"anthropic-ratelimit-requests-limit": b"100",
        b"anthropic-ratelimit-requests-remaining": b"99",
        b"anthropic-ratelimit-requests-reset": b"2026-01-01T00:00:01Z",
        b"anthropic-ratelimit-tokens-limit": b"40000",
        b"anthropic-ratelimit-tokens-remaining": b"0",
        b"anthropic-ratelimit-tokens-reset": b"2026-01-01T00:06:00Z",
    }


def test_a_limit_that_does_not_exist_has_no_header() -> None:
    assert rate_limit_headers(Dialect.OPENAI, RateLimitState(now_unix_s=NOW)) == []


def test_a_refusal_says_when_to_come_back() -> None:
    state = RateLimitState(now_unix_s=NOW, limit_requests=1, retry_after_s=1.2)

    assert rate_limit_headers(Dialect.ANTHROPIC, state)[-2:] == [
        (b"retry-after", b"2"),
        (b"retry-after-ms", b"1200"),
    ]


def test_should_retry_is_said_only_when_decided() -> None:
    assert retry_headers(None) == []
    assert retry_headers(None, should_retry=False) == [(b"x-should-retry", b"false")]
    assert retry_headers(0.0, should_retry=True) == [
        (b"retry-after", b"0"),
        (b"retry-after-ms", b"0"),
        (b"x-should-retry", b"true"),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.02, "20ms"), (0.0001, "1ms"), (1.0, "1s"), (1.001, "2s"), (59.2, "1m0s"),
     (360.0, "6m0s"), (3600.0, "1h0m0s"), (3661.0, "1h1m1s")],
)  # fmt: skip
def test_durations_are_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 100_000))
def test_durations_read_back_and_are_never_too_short(seconds: float) -> None:
    read = parse_retry_after({"x-ratelimit-reset-tokens": duration(seconds)}, NOW)

    assert read is not None
    assert seconds - 1e-6 <= read <= seconds + 1.001
    assert re.fullmatch(r"(\d+h)?(\d+m)?\d+m?s", duration(seconds))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"Retry-After": "2.5"}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "30"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "30"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:10 GMT"}, 10.0),
        ({"retry-after": "Thu, 01 Jan 2015 00:00:10 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "0"}, 0.0),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-reset-tokens": "1m26.4s"}, 86.4),
        ({"x-ratelimit-reset": "1767225630000"}, 30.0),  # OpenRouter: epoch in milliseconds
        ({"x-ratelimit-reset": "1767225630"}, 30.0),
        ({"x-ratelimit-reset-requests": "7"}, 7.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:20Z"}, 20.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-01-01T01:00:20+01:00"}, 20.0),
        # Only the window with nothing left counts.
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "2s",
                "x-ratelimit-remaining-tokens": "900",
                "x-ratelimit-reset-tokens": "50s",
            },
            2.0,
        ),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-01-01T00:00:05Z",
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:09Z",
            },
            9.0,
        ),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "2s"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "99999999"}, None),
        ({"x-ratelimit-reset-tokens": "5 parsecs"}, None),
        ({}, None),
    ],
)
def test_every_form_of_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    read = parse_retry_after(headers, NOW)

    assert read == (pytest.approx(seconds, abs=1e-3) if seconds is not None else None)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert parse_retry_after(raw, NOW) == read


@given(st.text(max_size=30))
def test_no_header_value_raises(value: str) -> None:
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-reset-tokens"):
        seconds = parse_retry_after({name: value}, NOW)
        assert seconds is None or 0 <= seconds <= 31 * 86_400
