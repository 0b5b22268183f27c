"""Durations and dollars as people write them in a policy: `150ms`, `3s`, `24h`; 0.59 a million."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

DURATION_PATTERN = r"^(\d+(\.\d+)?)(ms|s|m|h|d)$"
_DURATION = re.compile(DURATION_PATTERN)
_SECONDS: dict[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
DURATION_S_MAX = 31 * 86_400.0

PICOS_OF_USD_PER_MTOK = 1_000_000  # dollars per million tokens → pico-dollars per token
NANOS_OF_USD = 1_000_000_000


def parse_duration(text: str) -> float:
    """Seconds. ValueError names the forms that are understood."""
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration; write a number and a unit, like 150ms, 3s, 24h")
    seconds = float(match[1]) * _SECONDS[match[3]]
    if seconds > DURATION_S_MAX:
        raise ValueError(f"{text!r} is longer than 31 days")
    return seconds


def picos_of(usd_per_mtok: float) -> int:
    """Pico-dollars per token, exactly as the decimal was written, rounded up."""
    return _scaled(usd_per_mtok, PICOS_OF_USD_PER_MTOK)


def nanos_of(usd: float) -> int:
    """Nano-dollars, rounded up."""
    return _scaled(usd, NANOS_OF_USD)


def _scaled(amount: float, factor: int) -> int:
    # repr gives back the digits that were written: 0.59 is 59/100, not the nearest binary.
    return int((Decimal(repr(amount)) * factor).to_integral_value(ROUND_CEILING))
