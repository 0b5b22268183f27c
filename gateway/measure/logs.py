"""Structured logs: an allow-list of fields, a redaction filter behind it, never prompt text."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

# A second net under the allow-list: anything that looks like a credential.
_SECRET = re.compile(
    r"(lr-[A-Za-z0-9]{8})[A-Za-z0-9]{8,}"
    r"|\b(sk|gsk|rk|pk|xai|AIza|key|tok)[-_][A-Za-z0-9_\-]{12,}"
    r"|((?i:bearer|basic)\s+)[A-Za-z0-9._~+/=\-]{8,}"
    r"|(://[^/\s:@]+:)[^@\s]+@"
)
VALUE_CHARS_MAX = 2_000
LINES_MAX = 60  # of a traceback


def redact(text: str) -> str:
    """`text` with everything that looks like a credential replaced."""

    def replace(match: re.Match[str]) -> str:
        kept = match.group(1) or match.group(3) or match.group(4) or ""
        return f"{kept}[redacted]" + ("@" if match.group(4) else "")

    # Cut after the redaction: half a secret would not look like one.
    return _SECRET.sub(replace, text[: 2 * VALUE_CHARS_MAX])[:VALUE_CHARS_MAX]


def _redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    for name, value in event.items():
        if name == "exception":
            # Of a traceback the end says most.
            event[name] = "\n".join(redact(line) for line in value.splitlines()[-LINES_MAX:])
        elif isinstance(value, str):
            event[name] = redact(value)
        elif isinstance(value, BaseException):
            event[name] = redact(f"{type(value).__name__}: {value}")
    return event


class _OneForm(logging.Handler):
    """Gives what is logged the standard way, by us or by libraries, the same form and redaction."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            structlog.get_logger().log(
                record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
            )
        except Exception:
            self.handleError(record)


def configure_logs(*, level: str = "info", json: bool = True, stream: TextIO | None = None) -> None:
    """Set structlog and the standard library's loggers up for this process."""
    numeric = getattr(logging, level.upper(), logging.INFO)
    renderer: Callable[..., Any] = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_OneForm()]
    root.setLevel(numeric)
    # Libraries log URLs and SQL with values at INFO: only their warnings are let through.
    for name in ("httpx", "httpcore", "sqlalchemy", "alembic", "uvicorn", "aiosqlite"):
        logging.getLogger(name).setLevel(logging.WARNING)
