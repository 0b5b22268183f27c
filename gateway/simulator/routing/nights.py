"""Nights on which list prices really changed: midnight of a new price, the end of off-peak hours.

Two endpoints bill by the gateway's own price list (`gateway.prices.listed`, which is genai-prices
with its dates and daily windows), and the run's clock stands so that the change falls in its
middle. A run of several hours meets what else that night held: at 01:00 UTC DeepSeek's peak hours
begin. The others' prices are drawn, near those of the list, and stay.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec
import numpy as np

from gateway.prices.listed import ListPrices
from gateway.prices.rows import pick_row
from gateway.simulator.routing.places import PlaceSpec
from gateway.simulator.routing.world import PriceRows, World, steady_world

# Z.ai doubled GLM-5.3-Flash and DeepSeek cut V4-Flash from this day on, a Thursday.
NEW_DAY = datetime(2026, 9, 10, tzinfo=UTC)
# DeepSeek's old models cost half from 16:30 to 00:30 UTC.
OFF_PEAK_ENDS = datetime(2026, 9, 10, 0, 30, tzinfo=UTC)
AFTER_S = 3_600.0  # what may still run after the last arrival

Sold = tuple[str, str]  # (address, model) by which the price list knows it
_NEW_DAY_SOLD: tuple[Sold, ...] = (
    ("https://api.z.ai/api/paas/v4", "GLM-5.3-Flash"),
    ("https://api.deepseek.com", "deepseek-v4-flash"),
)
_OFF_PEAK_SOLD: tuple[Sold, ...] = (
    ("https://api.deepseek.com", "deepseek-chat"),
    ("https://api.deepseek.com", "deepseek-flash"),
)
_NEAR_FLASH = 0.4  # of the drawn prices, so that they lie among those of small models


def midnight(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """At midnight UTC, halfway, the cheapest doubles its price and another cuts its own."""
    del rng
    near = tuple(
        msgspec.structs.replace(
            spec, input_usd=spec.input_usd * _NEAR_FLASH, output_usd=spec.output_usd * _NEAR_FLASH
        )
        for spec in specs
    )
    return _night("midnight", near, duration_s, NEW_DAY, _NEW_DAY_SOLD)


def off_peak(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """At 00:30 UTC, halfway, the half-price hours of the cheapest end."""
    del rng
    return _night("off-peak", specs, duration_s, OFF_PEAK_ENDS, _OFF_PEAK_SOLD)


def _night(
    name: str,
    specs: tuple[PlaceSpec, ...],
    duration_s: float,
    event: datetime,
    sold: tuple[Sold, ...],
) -> World:
    half_s = duration_s / 2.0
    begin_s = event.timestamp() - half_s
    listed = {
        spec.id: listed_rows(*model, begin_s, duration_s + AFTER_S)
        for spec, model in zip(specs, sold, strict=False)
    }
    return msgspec.structs.replace(
        steady_world(name, specs, duration_s),
        listed=listed,
        epoch_s=begin_s,
        event_s=half_s,
        event_ids=(specs[0].id,),
    )


def listed_rows(base_url: str, model: str, begin_unix_s: float, duration_s: float) -> PriceRows:
    """
    The standard rows that the price list has for a model from `begin_unix_s` on, by run second.

    Raises ValueError where the list does not know the model.
    """
    rows = []
    at_s = begin_unix_s
    while at_s < begin_unix_s + duration_s:
        window = _list().window(base_url, model, at_s)
        if window is None:
            raise ValueError(
                f"the price list has no {model!r} at {base_url}: genai-prices has changed, and "
                "nights.py must name another model whose price changed that night"
            )
        rows.append((at_s - begin_unix_s, pick_row(window.rows)))
        at_s = window.until_s
    return tuple(rows)


@lru_cache(maxsize=1)
def _list() -> ListPrices:
    return ListPrices()
