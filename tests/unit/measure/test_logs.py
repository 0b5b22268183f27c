"""Nothing that looks like a credential leaves through a log."""

from __future__ import annotations

import io
import json

import pytest
import structlog

from gateway.measure.logs import VALUE_CHARS_MAX, configure_logs, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key lr-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789 was used", "IjKlMnOpQrStUvWxYz"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("sk-proj-abcdefghijklmnop", "abcdefghijklmnop"),
        ("postgresql://user:hunter2@db/x", "hunter2"),
    ],
)
def test_redaction_removes_what_looks_like_a_credential(text: str, secret: str) -> None:
    assert secret not in redact(text)


def test_redaction_keeps_the_public_part_of_a_virtual_key() -> None:
    assert redact("lr-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789") == "lr-AbCdEfGh[redacted]"


def test_a_long_value_is_cut() -> None:
    assert len(redact("a" * (VALUE_CHARS_MAX + 1))) == VALUE_CHARS_MAX


def test_logged_values_and_exceptions_are_redacted() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    try:
        structlog.get_logger().warning(
            "refused", header="Bearer abcdefgh12345678", error=ValueError("sk-abcdefghijklmnop")
        )
    finally:
        structlog.reset_defaults()

    logged = json.loads(stream.getvalue())

    assert logged["header"] == "Bearer [redacted]"
    assert logged["error"] == "ValueError: [redacted]"
