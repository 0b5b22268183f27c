"""A world: endpoints, their weather and prices, and the event that it is about."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from gateway.core import PriceRow
from gateway.simulator.routing.arrivals import Arrival
from gateway.simulator.routing.places import Place, PlaceSpec, draw_noise
from gateway.simulator.routing.router import EPOCH_S, Listing
from gateway.simulator.routing.weather import Weather, steady

PICOS_OF_USD_PER_MTOK = 1_000_000
SEED_SALT = 0x10_07  # worlds draw from another stream than workloads
CLAIMED_TOKENS_PER_S = 400.0  # by a liar's listing
_LIARS = frozenset({"liar", "burst"})

PriceRows = tuple[tuple[float, PriceRow], ...]  # (from second, row), ascending; the first from 0


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A name, its endpoints' specs, their weather, and the times at which prices change."""

    name: str
    specs: tuple[PlaceSpec, ...]
    weather: tuple[Weather, ...]
    price_changes: tuple[tuple[float, str, float], ...] = ()  # (from second, endpoint, factor)
    listed: dict[str, PriceRows] = {}  # endpoint → its rows by the price list, instead of its spec
    epoch_s: float = EPOCH_S  # unix time at the start
    event_s: float | None = None  # when the thing happens that the world is about
    event_ids: tuple[str, ...] = ()  # to whom
    event_end_s: float | None = None
    restart_s: float | None = None  # when every replica begins anew, and forgets

    def places(self, arrivals: tuple[Arrival, ...], seed: int) -> list[Place]:
        """Endpoints as new, with this seed's noise: the same for every router."""
        rng = np.random.default_rng((seed, SEED_SALT, 1))
        return [
            Place(spec, weather, draw_noise(len(arrivals), rng), self._rows(spec))
            for spec, weather in zip(self.specs, self.weather, strict=True)
        ]

    def listings(self, now_s: float = 0.0) -> tuple[Listing, ...]:
        """What an operator could look up at that time; of a liar, what it claims."""
        return tuple(
            Listing(
                endpoint_id=spec.id,
                tokens_per_s=self._claimed(spec),
                ttft_s=spec.ttft_s,
                requests_per_minute=spec.requests_per_minute,
            )
            for spec in self.specs
            if spec.appears_at_s <= now_s
        )

    def _claimed(self, spec: PlaceSpec) -> float:
        is_liar = self.name in _LIARS and spec.id in self.event_ids
        return CLAIMED_TOKENS_PER_S if is_liar else spec.tokens_per_s

    def _rows(self, spec: PlaceSpec) -> PriceRows:
        if spec.id in self.listed:
            return self.listed[spec.id]
        changes = [
            (at_s, f) for at_s, endpoint_id, f in self.price_changes if endpoint_id == spec.id
        ]
        return tuple((at_s, _row(spec, factor)) for at_s, factor in [(0.0, 1.0), *changes])


Maker = Callable[[float, np.random.Generator, tuple[PlaceSpec, ...]], World]


def steady_world(name: str, specs: tuple[PlaceSpec, ...], duration_s: float) -> World:
    """One in which nothing happens."""
    return World(
        name=name, specs=specs, weather=tuple(Weather(steady(duration_s), ()) for _ in specs)
    )


def _row(spec: PlaceSpec, factor: float) -> PriceRow:
    def picos(usd: float) -> int:
        return round(usd * factor * PICOS_OF_USD_PER_MTOK)

    cached = spec.input_usd if spec.cached_usd is None else spec.cached_usd
    return PriceRow(
        source="policy",
        input=picos(spec.input_usd),
        output=picos(spec.output_usd),
        cached_read=picos(cached),
    )
