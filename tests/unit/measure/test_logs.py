"""Nothing that looks like a credential leaves through a log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from gateway.measure.logs import LINES_MAX, VALUE_CHARS_MAX, configure_logs, redact


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


def test_logged_values_and_exceptions_are_redacted(said: io.StringIO) -> None:
    structlog.get_logger().warning(
        "refused", header="Bearer abcdefgh12345678", error=ValueError("sk-abcdefghijklmnop")
    )

    logged = json.loads(said.getvalue())

    assert logged["header"] == "Bearer [redacted]"
    assert logged["error"] == "ValueError: [redacted]"


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Logs as a serving process has them, in memory."""
    root = logging.getLogger()
    handlers, level, stream = list(root.handlers), root.level, io.StringIO()
    configure_logs(stream=stream)
    try:
        yield stream
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)


def test_the_standard_loggers_speak_in_the_same_form(said: io.StringIO) -> None:
    logging.getLogger("looprouter.ledger").warning("no room for %s", "sk-abcdefghijklmnop")
    logging.getLogger("looprouter.ledger").debug("unheard")

    logged = json.loads(said.getvalue())

    assert logged["event"] == "no room for [redacted]"
    assert (logged["level"], logged["logger"]) == ("warning", "looprouter.ledger")


def test_a_traceback_is_one_field_with_its_end_and_without_secrets(said: io.StringIO) -> None:
    def deep(number: int) -> None:
        if number == 0:
            raise ValueError("Bearer abcdefgh12345678 at the bottom")
        deep(number - 1)

    try:
        deep(100)
    except ValueError:
        logging.getLogger("looprouter.relay").exception("failed")

    (line,) = said.getvalue().splitlines()
    logged = json.loads(line)
    assert logged["exception"].endswith("ValueError: Bearer [redacted] at the bottom")
    assert len(logged["exception"].splitlines()) <= LINES_MAX
    assert "abcdefgh12345678" not in line
