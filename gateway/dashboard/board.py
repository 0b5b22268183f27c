"""What the page Now shows, as plain values: each estimate with its n and interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.core import Endpoint, FleetSnapshot, PriceRow, dollars_per_million
from gateway.dashboard.holding import Standing, standing_of
from gateway.dashboard.winners import Win, wins_of
from gateway.measure.recorder import RECENT_ROWS_MAX
from gateway.pipeline import Gateway
from gateway.prices.rows import BATCH, STANDARD, bucket_picos
from gateway.store.requests import RequestRow

RATE_OVER_S = 10.0
SPEEDS_MAX = 40  # streams in a sparkline
ARRIVALS = 30  # bins of the sparkline of arrivals
ARRIVALS_BIN_S = 2.0
# As in the estimator: less than this says nothing of speed.
TOKENS_MIN = 16
SPAN_MIN_S = 0.25
N_MIN = 0.5  # fewer samples are the prior alone, which is no measurement


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A value, its 90 % interval (an end that the samples cannot bound is null), samples."""

    value: float
    low: float | None
    high: float | None
    n: float


class PriceNow(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per million tokens as decimal strings, at this hour; "" = no such price."""

    source: str
    input: str
    output: str
    cached: str
    batch_input: str = ""
    batch_output: str = ""


class EndpointNow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the board."""

    id: str
    models: list[str]
    is_simulated: bool
    is_own: bool  # a machine of one's own
    breaker: str  # "closed" | "half_open" | "open"
    reopens_in_s: float
    standing: Standing
    tokens_per_s: Estimate | None
    ttft_p50_s: Estimate | None
    ttft_p95_s: Estimate | None
    success: Estimate | None
    in_flight: int
    capacity: float  # learned
    price: PriceNow | None  # null = unpriced
    share: float  # of the requests of the last five minutes
    started: int  # in the last five minutes
    speeds: list[float]  # tokens/s of its last streams, the oldest first
    machine: dict[str, Any] | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How often real times lay within the 90 % interval predicted for them."""

    coverage_90: float
    n: float


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """The whole page."""

    at_unix_s: float
    policy_version: str
    requests_per_s: float
    arrivals: list[float]  # requests/s of the last minute, the oldest first
    in_flight: int
    num_requests: int  # since the start
    num_failed: int
    held: Held | None
    endpoints: list[EndpointNow]
    wins: list[Win]


class BoardMaker:
    """Makes the board anew at most once `every_s`, however many watch."""

    def __init__(self, gateway: Gateway, *, every_s: float = 1.0) -> None:
        self._gateway = gateway
        self._every_s = every_s
        self._made_at_s = float("-inf")
        self._board: Board | None = None

    def now(self) -> Board:
        at_s = self._gateway.clock()
        if self._board is None or at_s - self._made_at_s >= self._every_s:
            self._board = board_of(self._gateway)
            self._made_at_s = at_s
        return self._board


def board_of(gateway: Gateway) -> Board:
    policy, now_s = gateway.policy(), gateway.wall_clock()
    rows = gateway.recorder.newest(RECENT_ROWS_MAX)
    snapshot = gateway.fleet.snapshot()
    endpoints = [
        endpoint_now(gateway, endpoint, snapshot, rows) for endpoint in policy.endpoints.values()
    ]
    return Board(
        at_unix_s=now_s,
        policy_version=policy.version,
        requests_per_s=requests_per_s(rows, now_s),
        arrivals=arrivals_of(rows, now_s),
        in_flight=gateway.admission.in_flight,
        num_requests=gateway.recorder.num_requests,
        num_failed=gateway.recorder.num_failed,
        held=held_of([gateway.fleet.calibration(each.id) for each in endpoints]),
        endpoints=endpoints,
        wins=wins_of(gateway, rows),
    )


def endpoint_now(
    gateway: Gateway, endpoint: Endpoint, snapshot: FleetSnapshot, rows: Sequence[RequestRow]
) -> EndpointNow:
    measured: dict[str, Any] = gateway.fleet.metrics(endpoint.id)
    share = measured["share"]
    return EndpointNow(
        id=endpoint.id,
        models=[name for name, ids in gateway.policy().models.items() if endpoint.id in ids],
        is_simulated=endpoint.is_simulated,
        is_own=endpoint.usd_per_hour_nanos is not None,
        breaker=measured["breaker"],
        reopens_in_s=measured["reopens_in_s"],
        standing=standing_of(gateway, endpoint.id, measured),
        tokens_per_s=estimate_of(measured["decode_tokens_per_s"]),
        ttft_p50_s=estimate_of(measured["ttft_visible_p50_s"]),
        ttft_p95_s=estimate_of(measured["ttft_visible_p95_s"]),
        success=estimate_of(measured["success"]),
        in_flight=measured["in_flight"],
        capacity=float(measured["capacity"]),
        price=price_now(snapshot.prices.get(endpoint.id, ())),
        share=share["started"] / share["of"] if share["of"] else 0.0,
        started=share["started"],
        speeds=speeds_of(endpoint.id, rows),
        machine=measured["machine"],
    )


def estimate_of(measured: dict[str, float] | None) -> Estimate | None:
    """What `fleet.metrics` says of a figure; None before the first sample."""
    if measured is None or measured["n"] < N_MIN:
        return None
    return Estimate(
        value=measured["value"],
        low=measured.get("low"),
        high=measured.get("high"),
        n=measured["n"],
    )


def price_now(rows: Sequence[PriceRow]) -> PriceNow | None:
    """Of short prompts: the first context step of the standard and of the batch tier."""
    first = _first_step(rows, STANDARD) or _first_step(rows, "")
    if first is None or not first.is_priced:
        return None
    batch = _first_step(rows, BATCH)
    return PriceNow(
        source=first.source,
        input=dollars_per_million(first.input),
        output=dollars_per_million(first.output),
        cached=dollars_per_million(bucket_picos(first, "cached_read")),
        batch_input=dollars_per_million(batch.input) if batch is not None else "",
        batch_output=dollars_per_million(batch.output) if batch is not None else "",
    )


def _first_step(rows: Sequence[PriceRow], tier: str) -> PriceRow | None:
    """`tier` "" = any."""
    found = [row for row in rows if not tier or row.tier == tier]
    return min(found, key=lambda row: row.context_tokens_min, default=None)


def speeds_of(endpoint_id: str, rows: Sequence[RequestRow]) -> list[float]:
    """Tokens per second of the endpoint's last streams; `rows` are the newest first."""
    found: list[float] = []
    for row in rows:
        speed = speed_of(row) if row.endpoint_id == endpoint_id else None
        if speed is not None:
            found.append(speed)
        if len(found) == SPEEDS_MAX:
            break
    return found[::-1]


def speed_of(row: RequestRow) -> float | None:
    """Tokens per second after the first one; None where there were too few to tell."""
    usage, ttft_ms, duration_ms = row.usage, row.ttft_any_ms, row.duration_ms
    if usage is None or ttft_ms is None or duration_ms is None or row.error:
        return None
    span_s = (duration_ms - ttft_ms) / 1000.0
    if usage.output_total < TOKENS_MIN or span_s < SPAN_MIN_S:
        return None
    return usage.output_total / span_s


def requests_per_s(rows: Sequence[RequestRow], now_s: float) -> float:
    """Over the last ten seconds, or over less where the rows kept do not reach so far."""
    num = sum(row.created_at > now_s - RATE_OVER_S for row in rows)
    if num == RECENT_ROWS_MAX:
        return num / max(now_s - min(row.created_at for row in rows), 1e-3)
    return num / RATE_OVER_S


def arrivals_of(rows: Sequence[RequestRow], now_s: float) -> list[float]:
    """Requests per second in bins that are aligned to the clock, so that they do not flicker."""
    newest_bin = int(now_s / ARRIVALS_BIN_S)
    counts = [0] * ARRIVALS
    for row in rows:
        back = newest_bin - int(row.created_at / ARRIVALS_BIN_S)
        if 0 <= back < ARRIVALS:
            counts[ARRIVALS - 1 - back] += 1
    return [count / ARRIVALS_BIN_S for count in counts]


def held_of(calibrations: Sequence[dict[str, dict[str, dict[str, float]]]]) -> Held | None:
    """Completion times of all endpoints and classes together, weighted by their samples."""
    figures = [
        figure
        for classes in calibrations
        for by_figure in classes.values()
        if (figure := by_figure.get("completion")) is not None
    ]
    n = sum(figure["n"] for figure in figures)
    if n < N_MIN:
        return None
    return Held(coverage_90=sum(each["coverage_90"] * each["n"] for each in figures) / n, n=n)
