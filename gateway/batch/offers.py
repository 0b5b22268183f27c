"""The lanes there are now, as the planner takes them: prices, room and turnarounds of endpoints."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import msgspec
from msgspec import structs

from gateway.core import (
    PICOS_PER_NANO,
    Endpoint,
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    MachineLoad,
    PriceRow,
)
from gateway.fleet.fleet import Fleet
from gateway.fleet.slowdown import PROVEN_FACTOR, PROVEN_START
from gateway.fleet.whole_times import whole_slow_line
from gateway.policy.marginal import SECONDS_PER_HOUR, step_seconds
from gateway.policy.placement import NATIVE, LaneOffer, PriceWindow
from gateway.policy.policy import Indexed, Policy
from gateway.policy.score import batch_limit
from gateway.prices.book import PriceBook
from gateway.prices.rows import BATCH, STANDARD, complete_row
from gateway.wire.pieces import Dialect, Surface

FLEX = "flex"
AHEAD_S = 86_400.0  # prices by the hour come again each day
LINES_AT_ONCE_MAX = 64  # of one endpoint, however large its learned capacity
# Nobody knows how long an operator holds an endpoint: lines wait only where there is no other.
HELD_S, HELD_BESIDE_OTHERS_S = 600.0, 7 * 86_400.0
LINE_TOKENS = 200.0  # a line's answer, for seconds a line where lengths were not learned
PLACES_UNLEARNED = PROVEN_FACTOR * PROVEN_START
FILL_SHARE = 0.7  # of an own machine's places: the rest is for who waits for an answer


class Turnaround(msgspec.Struct, frozen=True):
    """Seconds from a native batch's submission to its end, learned from those that ended."""

    p50_s: float
    p95_s: float
    opens_at_s: float = -math.inf  # in the future: it rests after failures


def lane_offers(
    policy: Policy,
    fleet: Fleet,
    models: Collection[str],
    surface: Surface,
    *,
    turnarounds: Mapping[str, Turnaround],
    native_endpoints: Collection[str],
    book: PriceBook,
    now: float,
) -> list[LaneOffer]:
    """
    Every lane of these public models that serves `surface`.

    An endpoint that is shut opens later, so nothing new goes there now; what runs there may stay.
    `native_endpoints`: those whose provider has a batch API that we speak, with a key at hand.
    """
    snapshot = fleet.snapshot()
    offers: list[LaneOffer] = []
    for model in models:
        held: list[LaneOffer] = []
        num_before = len(offers)
        for one in policy.pools.get(model, ()):
            live = fleet.live(one.id)
            if surface.value not in one.serves or not one.has_key or live is None:
                continue
            rows = snapshot.prices.get(one.id, ())
            if policy.unpriced == "block" and not any(row.is_priced for row in rows):
                continue
            windows = price_windows(one.endpoint, rows, book, now)
            known = fleet.estimator(one.id)
            slow = whole_slow_line(known) if known is not None else None
            base_s, token_s = slow or (0.0, 0.0)
            found = [
                structs.replace(each, base_p95_s=base_s, token_p95_s=token_s)
                for each in _of_endpoint(one, live, snapshot, model, windows=windows, now=now)
            ]
            if one.id in native_endpoints:
                found.append(_native(one.endpoint, model, windows, turnarounds.get(one.id)))
            (held if live.held else offers).extend(found)
        after_s = HELD_BESIDE_OTHERS_S if len(offers) > num_before else HELD_S
        offers.extend(structs.replace(each, opens_at_s=now + after_s) for each in held)
    return offers


def price_windows(
    endpoint: Endpoint, rows: tuple[PriceRow, ...], book: PriceBook, now: float
) -> tuple[PriceWindow, ...]:
    """
    The hours of the next day by their prices; the last holds on.

    `rows` are the fleet's of this moment, and stand where no list tells of hours.
    """
    ahead = book.windows(endpoint, now, now + AHEAD_S)
    if len(ahead) < 2:
        return (PriceWindow(rows=tuple(rows)),)
    untils = [*(window.until_s for window in ahead[:-1]), math.inf]
    return tuple(
        PriceWindow(rows=window.rows, from_s=window.from_s, until_s=until_s)
        for window, until_s in zip(ahead, untils, strict=True)
    )


def _of_endpoint(
    one: Indexed,
    live: EndpointLive,
    snapshot: FleetSnapshot,
    model: str,
    *,
    windows: tuple[PriceWindow, ...],
    now: float,
) -> Iterator[LaneOffer]:
    """Its lanes at once: standard, and flex where its price list has that."""
    endpoint, stats = one.endpoint, snapshot.stats.get(one.id)
    rows = snapshot.prices.get(one.id, ())
    machine = live.machine
    is_own = endpoint.usd_per_hour_nanos is not None
    if is_own and machine is not None and machine.decode_step_s:
        windows = (PriceWindow(rows=(marginal_row(endpoint, machine),)),)
    tiers = [STANDARD if endpoint.tier in ("", BATCH) else endpoint.tier]
    if tiers == [STANDARD] and endpoint.api is Dialect.OPENAI and not is_own:
        tiers += [FLEX] if any(row.tier == FLEX for row in rows) else []
    for tier in tiers:
        yield LaneOffer(
            id=f"{endpoint.id}#{tier}",
            endpoint_id=endpoint.id,
            model=model,
            kind="own" if is_own else "sync",
            tier=tier,
            windows=windows,
            lines_per_s=lines_per_s(live, stats, is_own=is_own),
            line_tokens=LINE_TOKENS,
            opens_at_s=now + live.reopens_in_s if live.breaker == "open" else -math.inf,
        )


def _native(
    endpoint: Endpoint,
    model: str,
    windows: tuple[PriceWindow, ...],
    turnaround: Turnaround | None,
) -> LaneOffer:
    offer = LaneOffer(
        id=f"{endpoint.id}#{NATIVE}",
        endpoint_id=endpoint.id,
        model=model,
        kind="native",
        tier=BATCH,
        windows=windows,
    )
    if turnaround is None:
        return offer
    return structs.replace(
        offer,
        turnaround_p50_s=turnaround.p50_s,
        turnaround_p95_s=turnaround.p95_s,
        opens_at_s=turnaround.opens_at_s,
    )


def places_for_batch(live: EndpointLive, *, is_own: bool) -> float:
    """
    Lines that may be under way at an endpoint at once, the interactive ones left their room.

    No more than it carries without slowing down. But an own machine that tells its load runs who
    waits before lines, and a first token beside them is a step of theirs later by design: what that
    teaches does not empty it below what an endpoint is trusted with before anything was learned.
    """
    has_lanes = is_own and live.machine is not None
    places = max(live.places, PLACES_UNLEARNED) if has_lanes else live.places
    capacity = min(live.capacity, places)
    limit = FILL_SHARE * capacity if is_own else batch_limit(capacity)
    return max(1.0, min(limit, LINES_AT_ONCE_MAX))


def lines_per_s(live: EndpointLive, stats: EndpointStats | None, *, is_own: bool) -> float:
    """
    Answers of LINE_TOKENS a second at the places that batch may fill.

    Beyond its learned places all become slower in proportion: more at once bring no more answers.
    """
    seconds = 10.0
    if stats is not None:
        seconds = math.exp(stats.ttft_mu) + LINE_TOKENS / math.exp(stats.rate_mu)
    at_once = min(places_for_batch(live, is_own=is_own), max(1.0, live.places))
    return at_once / max(seconds, 0.05)


def marginal_row(endpoint: Endpoint, machine: MachineLoad) -> PriceRow:
    """What a token costs on a machine that batch fills to its share: its part of the seconds."""
    assert endpoint.usd_per_hour_nanos is not None

    second_picos = endpoint.usd_per_hour_nanos * PICOS_PER_NANO / SECONDS_PER_HOUR
    filled = max(1, int(FILL_SHARE * machine.decode_step_s[-1][0]))
    output = second_picos * step_seconds(machine, filled) / filled
    prompt = second_picos * machine.prefill_token_s
    return complete_row(
        PriceRow(
            source="self_hosted",
            price_id="marginal",
            input=max(1, math.ceil(prompt)),
            output=max(1, math.ceil(output)),
        )
    )
