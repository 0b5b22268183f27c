"""The list prices of genai-prices as integer rows. Compiled off the request path, never per call.

Only the data bundled with the package is read; its updater is never started, so nothing here
touches the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_CEILING, Decimal
from importlib.metadata import version
from typing import Any

from gateway.core import PriceRow
from gateway.prices.rows import STANDARD, complete_row

PICOS_PER_TOKEN_OF_USD_PER_MTOK = Decimal(1_000_000)
NANOS_PER_REQUEST_OF_USD_PER_1000 = Decimal(1_000_000)

# Price keys of genai-prices → our buckets. Others (web searches, audio hours) are not tokens.
_BUCKETS: dict[str, str] = {
    "input_mtok": "input",
    "cache_read_mtok": "cached_read",
    "cache_write_mtok": "cache_write_5m",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_mtok": "output",
    "output_reasoning_mtok": "reasoning",
    "input_audio_mtok": "audio_input",
    "output_audio_mtok": "audio_output",
    "input_image_mtok": "image_input",
}

# What selects a tier's prices in genai-prices.
_TIER_CONTEXT: dict[str, dict[str, str]] = {
    "flex": {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
    "batch": {"processing": "batch"},
}

# Facts that genai-prices cannot say about a provider's daily windows: (start, end, the first day
# they were billed at all, the first day from which weekends were left out), all in UTC. DeepSeek's
# page: "Peak hours are 01:00 - 04:00 and 06:00 - 10:00 UTC, Monday through Friday".
_WEEKDAY_WINDOWS: dict[str, tuple[tuple[time, time, date, date], ...]] = {
    "deepseek": (
        (time(1), time(4), date(2026, 8, 17), date(2026, 8, 23)),
        (time(6), time(10), date(2026, 8, 17), date(2026, 8, 23)),
    ),
}
_SATURDAY = 5


@dataclass(frozen=True, slots=True)
class Window:
    """Rows and the half-open interval of Unix seconds in which they hold."""

    rows: tuple[PriceRow, ...]
    from_s: float
    until_s: float


class ListPrices:
    """Finds a model in the bundled list and compiles its rows. Loads 1.6 MB once, on first use."""

    def __init__(self) -> None:
        # Imported here: it costs 0.4 s, which `looprouter --help` should not pay.
        from genai_prices.data import providers

        self._providers: list[Any] = providers
        self._version = version("genai-prices")

    def window(self, base_url: str, model: str, at_unix_s: float) -> Window | None:
        """The rows valid at that second; None when the list does not know provider or model."""
        provider = next((p for p in self._providers if re.match(p.api_pattern, base_url)), None)
        if provider is None:
            return None
        found = provider.find_model(model, all_providers=self._providers)
        if found is None:
            return None
        at = datetime.fromtimestamp(at_unix_s, UTC)
        begin, end = _window_around(provider.id, found, at)
        source = f"{self._version}:{provider.id}/{found.id}@{begin:%Y-%m-%dT%H:%MZ}"
        is_own = any(found is listed for listed in provider.models)
        tiers = [STANDARD, *_TIER_CONTEXT] if is_own else [STANDARD]
        rows: list[PriceRow] = []
        for tier in tiers:
            rows.extend(_tier_rows(provider.id, found, tier, at, source))
        if not rows:
            return None
        return Window(tuple(rows), begin.timestamp(), end.timestamp())


def _tier_rows(
    provider_id: str, model: Any, tier: str, at: datetime, source: str
) -> Iterator[PriceRow]:
    prices = _standard_prices(provider_id, model, at)
    if tier != STANDARD:
        variant = _variant_prices(model, _TIER_CONTEXT[tier], at)
        if not variant:
            return
        prices = {**prices, **variant}
    if not prices.keys() & {"input_mtok", "output_mtok"}:
        return  # priced by the hour or the page: nothing we can compute from tokens
    starts = sorted({0, *(tier_.start + 1 for p in prices.values() for tier_ in _steps(p))})
    for start in starts:
        buckets: dict[str, int] = {}
        free = []
        for key, bucket in _BUCKETS.items():
            if key in prices:
                buckets[bucket] = _picos(_at_context(prices[key], start))
                if buckets[bucket] == 0:
                    free.append(bucket)
        fee = _at_context(prices.get("requests_kcount", Decimal(0)), start)
        yield complete_row(
            PriceRow(
                source="genai-prices",
                price_id=source,
                tier=tier,
                context_tokens_min=start,
                request_nanos=int(
                    (fee * NANOS_PER_REQUEST_OF_USD_PER_1000).to_integral_value(ROUND_CEILING)
                ),
                free=tuple(free),
                **buckets,
            )
        )


def _standard_prices(provider_id: str, model: Any, at: datetime) -> dict[str, Any]:
    """The last entry whose condition holds, as genai-prices resolves it, weekends corrected."""
    if not isinstance(model.prices, list):
        return _stated(model.prices)
    for conditional in reversed(model.prices):
        if _is_active(provider_id, conditional.constraint, at):
            return _stated(conditional.prices)
    return _stated(model.prices[0].prices) if model.prices else {}


def _variant_prices(model: Any, context: dict[str, str], at: datetime) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variant in model.price_variants or ():
        is_active = variant.constraint is None or variant.constraint.active(at)
        if is_active and all(context.get(k) == v for k, v in variant.when.items()):
            for key, price in _stated(variant.prices).items():
                found.setdefault(key, price)
    return found


def _is_active(provider_id: str, constraint: Any, at: datetime) -> bool:
    if constraint is None:
        return True
    if hasattr(constraint, "start_time"):
        hours = (
            constraint.start_time.replace(tzinfo=None),
            constraint.end_time.replace(tzinfo=None),
        )
        for start, end, billed_from, weekdays_from in _WEEKDAY_WINDOWS.get(provider_id, ()):
            if hours != (start, end):
                continue
            day = at.date()
            if day < billed_from or (day >= weekdays_from and at.weekday() >= _SATURDAY):
                return False
    return bool(constraint.active(at))


def _stated(model_price: Any) -> dict[str, Any]:
    return {key: value for key, value in model_price.__dict__.items() if value is not None}


def _steps(price: Any) -> list[Any]:
    return list(getattr(price, "tiers", ()))


def _at_context(price: Any, context_tokens: int) -> Decimal:
    """The price of a prompt of so many tokens: a step holds for all tokens once it is passed."""
    if not hasattr(price, "tiers"):
        return Decimal(price)
    reached = [step.price for step in price.tiers if context_tokens > step.start]
    return Decimal(reached[-1] if reached else price.base)


def _picos(usd_per_mtok: Decimal) -> int:
    return int((usd_per_mtok * PICOS_PER_TOKEN_OF_USD_PER_MTOK).to_integral_value(ROUND_CEILING))


def _window_around(provider_id: str, model: Any, at: datetime) -> tuple[datetime, datetime]:
    """The longest interval around `at` in which no condition of this model changes, ≤ one day."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    edges = {midnight, midnight + timedelta(days=1)}
    for conditional in model.prices if isinstance(model.prices, list) else ():
        constraint = conditional.constraint
        if hasattr(constraint, "start_time"):
            for edge in (constraint.start_time, constraint.end_time):
                today = datetime.combine(midnight.date(), edge)
                today = today.replace(tzinfo=edge.tzinfo or UTC).astimezone(UTC)
                edges |= {today - timedelta(days=1), today, today + timedelta(days=1)}
    return max(e for e in edges if e <= at), min(e for e in edges if e > at)
