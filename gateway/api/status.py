"""What the status page shows, as plain values: every estimate with its n and its interval."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.core import Endpoint, FleetSnapshot, dollars, dollars_per_million
from gateway.ledger.report import report
from gateway.pipeline import Gateway
from gateway.store.requests import RequestRow

RECENT_ROWS = 15
SPEND_EVERY_S = 2.0
UNKNOWN = "?"

log = structlog.get_logger()


class EndpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    models: list[str]
    is_simulated: bool
    breaker: str
    share: float
    ttft_text: str
    rate_text: str
    success_text: str
    in_flight: int
    capacity: int
    price_text: str
    machine_text: str  # of a self-hosted one: what its hour costs and what it does now
    spend_usd: str
    measured: dict[str, Any]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    policy_version: str
    policy_error: str
    problem: str  # what an operator should see: that, and what the database does
    uptime_text: str
    is_simulated: bool
    requests_total: int
    failed_total: int
    in_flight: int
    spend_usd: str
    endpoints: list[EndpointStatus]
    recent: list[dict[str, Any]]
    shadow: dict[str, Any] | None = None  # what a second policy would have done
    replicas: dict[str, Any] | None = None  # the other serving processes, as heard over Redis


class SpendCache:
    """Spend by endpoint from SQL, asked for at most every SPEND_EVERY_S however many watch."""

    def __init__(self) -> None:
        self.problem = ""  # why the figures are old, or missing
        self._at_s = float("-inf")
        self._spend: dict[str, str] | None = None

    async def by_endpoint(self, gateway: Gateway) -> Mapping[str, str] | None:
        """The last figures that could be read; None before there are any."""
        if time.monotonic() - self._at_s >= SPEND_EVERY_S:
            self._at_s = time.monotonic()
            try:
                rows = await report(gateway.store, by="endpoint")
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("spend not read", error=error)
                self.problem = "the database does not answer: spend is not up to date"
            else:
                self.problem = ""
                self._spend = {row["endpoint"]: row["cost_usd"] for row in rows}
        return self._spend


async def status_summary(gateway: Gateway, spend: SpendCache, version: str) -> Status:
    """The page's data now."""
    policy = gateway.policy()
    snapshot = gateway.fleet.snapshot()
    by_endpoint = await spend.by_endpoint(gateway)
    known = by_endpoint or {}
    none_yet = "0" if by_endpoint is not None else UNKNOWN
    endpoints = [
        endpoint_status(gateway, each, snapshot, known.get(each.id, none_yet))
        for each in policy.endpoints.values()
    ]
    total = dollars(sum(nanos_of(text) for text in known.values()))
    problems = (gateway.policy_error(), spend.problem)
    return Status(
        version=version,
        policy_version=policy.version,
        policy_error=gateway.policy_error(),
        problem="; ".join(problem for problem in problems if problem),
        uptime_text=span_text(gateway.clock() - gateway.started_at_s),
        is_simulated=any(each.is_simulated for each in policy.endpoints.values()),
        requests_total=gateway.recorder.num_requests,
        failed_total=gateway.recorder.num_failed,
        in_flight=gateway.admission.in_flight,
        spend_usd=total if by_endpoint is not None else UNKNOWN,
        endpoints=endpoints,
        recent=[recent_row(row) for row in gateway.recorder.newest(RECENT_ROWS)],
        shadow=gateway.shadow.summary() if gateway.shadow is not None else None,
        replicas=gateway.replicas.summary() if gateway.replicas is not None else None,
    )


def endpoint_status(
    gateway: Gateway, endpoint: Endpoint, snapshot: FleetSnapshot, spend_usd: str
) -> EndpointStatus:
    measured = gateway.fleet.metrics(endpoint.id)
    share = measured["share"]
    assert isinstance(share, dict)

    models = [name for name, ids in gateway.policy().models.items() if endpoint.id in ids]
    return EndpointStatus(
        id=endpoint.id,
        models=models,
        is_simulated=endpoint.is_simulated,
        breaker=str(measured["breaker"]),
        share=share["started"] / share["of"] if share["of"] else 0.0,
        ttft_text=estimate_text(measured["ttft_visible_p50_s"], 1000.0, " ms"),
        rate_text=estimate_text(measured["decode_tokens_per_s"], 1.0, ""),
        success_text=estimate_text(measured["success"], 100.0, " %"),
        in_flight=int(str(measured["in_flight"])),
        capacity=int(float(str(measured["capacity"]))),
        price_text=price_text(snapshot, endpoint),
        machine_text=machine_text(endpoint, measured["machine"]),
        spend_usd=spend_usd,
        measured=measured,
    )


def estimate_text(estimate: object, factor: float, unit: str) -> str:
    """`312 ms` and, on a second line, `280–350, n 41`; `–` before the first sample."""
    # n below one sample is the prior alone, which is no measurement.
    if not isinstance(estimate, dict) or estimate["n"] < 0.5:
        return "–"
    value = f"{estimate['value'] * factor:,.0f}{unit}"
    low, high = estimate.get("low"), estimate.get("high")
    bounds = ""
    if low is not None and high is not None:
        bounds = f"{low * factor:,.0f}–{high * factor:,.0f}, "
    return f"{value}\n{bounds}n {estimate['n']:.0f}"


def price_text(snapshot: FleetSnapshot, endpoint: Endpoint) -> str:
    rows = snapshot.prices.get(endpoint.id, ())
    if not rows or not rows[0].is_priced:
        return "unpriced"
    return f"{dollars_per_million(rows[0].input)} · {dollars_per_million(rows[0].output)}"


def machine_text(endpoint: Endpoint, told: object) -> str:
    """`own machine, $2.10 an hour (on demand) · 3 running, …`: what its last account said."""
    if endpoint.usd_per_hour_nanos is None:
        return ""
    what = "electricity" if endpoint.billing == "owned" else "on demand"
    text = f"own machine, ${dollars(endpoint.usd_per_hour_nanos)} an hour ({what})"
    if not isinstance(told, dict):
        return f"{text} · does not tell its load"
    state = ", full" if told["is_full"] else ""
    return (
        f"{text} · {told['num_running']} running, {told['num_waiting']} waiting, "
        f"cache {told['cache_use']:.0%}, {told['tokens_per_s']:,.0f} tok/s{state}"
    )


def recent_row(row: RequestRow) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(row.created_at).astimezone()
    ttft = row.ttft_visible_ms
    return {
        "at": at.strftime("%H:%M:%S"),
        "model": row.model,
        "endpoint": row.endpoint_id or "–",
        "lane": row.lane,
        "attempts": row.num_attempts,
        "ttft": "–" if ttft is None else f"{ttft:,.0f} ms",
        "duration": "–" if row.duration_ms is None else f"{row.duration_ms:,.0f} ms",
        "cost": f"${dollars(row.billed_nanos)}",
        "status": f"{row.status} {row.error}".strip(),
    }


def nanos_of(text: str) -> int:
    """The exact reverse of `dollars`."""
    whole, _, rest = text.partition(".")
    return int(whole) * 1_000_000_000 + int((rest + "0" * 9)[:9])


def span_text(seconds: float) -> str:
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"
