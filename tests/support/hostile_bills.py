"""The hostile provider's prices, and what an answer of it must cost to the nano-dollar."""

from __future__ import annotations

import math
from decimal import Decimal

from tests.support.voices import Tokens

# Dollars per million tokens; a and c are tried first, b and d stand by. Odd on purpose: their
# sums fall between two nano-dollars, so the rounding shows.
PRICES: dict[str, dict[str, str]] = {
    "a": {"input": "0.1375", "cached_read": "0.0275", "output": "0.4125", "reasoning": "0.5503"},
    "b": {"input": "0.3001", "cached_read": "0.0301", "output": "0.7507", "reasoning": "0.9001"},
    "c": {"input": "0.2753", "cached_read": "0.0277", "output": "1.3751", "reasoning": "1.3757",
          "cache_write_5m": "0.3441", "cache_write_1h": "0.5506"},
    "d": {"input": "0.6007", "cached_read": "0.0601", "output": "2.7503", "reasoning": "2.7509"},
    "t": {"input": "0.1375", "output": "0.4125"},
}  # fmt: skip


def bill(provider: str, **tokens: int) -> int:
    """Nano-dollars, rounded up once: worked out here from the prices as they are written."""
    prices = PRICES[provider]
    dollars_per_million = sum(Decimal(prices[name]) * count for name, count in tokens.items())
    return math.ceil(dollars_per_million * 1000)


def bill_of(provider: str, usage: Tokens) -> int:
    return bill(
        provider,
        input=usage.prompt - usage.cached,
        cached_read=usage.cached,
        output=usage.completion - usage.reasoning,
        reasoning=usage.reasoning,
    )


def nanos(dollars: str) -> int:
    exact = Decimal(dollars) * 1_000_000_000
    assert exact == int(exact), f"{dollars} is no whole number of nano-dollars"
    return int(exact)
