"""What a policy that is not in force yet would do with a request; nothing is sent or kept."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.core import Caller
from gateway.dashboard.page import Desk
from gateway.errors import ApiError, InvalidRequest
from gateway.pipeline import candidate_ids
from gateway.policy.backtest import moved_between, priced_by, seen_by
from gateway.policy.decide import decide
from gateway.policy.explain import explain
from gateway.policy.facts import describe
from gateway.policy.policy import Policy
from gateway.prices.book import PriceBook
from gateway.stats.seeded import Seeded
from gateway.wire.pieces import Surface
from gateway.wire.rawjson import WireFormatError
from gateway.wire.requests import FieldError, ParsedRequest, parse_request

REQUEST_BYTES_MAX = 64 * 1024
NOBODY = "explain"  # the tenant, team and key that ask
SURFACES = tuple(sorted(surface.value for surface in Surface))


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, as `looprouter policy explain --json` shows it, and that of the live policy."""

    decision: dict[str, Any] | None  # null = refused
    refusal: str
    live_choice: str  # the endpoint that the policy in force tries first; "" = it refuses


def explain_with(desk: Desk, policy: Policy, body: bytes, surface: str, *, seed: int) -> Explained:
    """
    Decide a request's JSON under `policy`, with what the gateway believes of its endpoints now.

    InvalidRequest for a request that no gateway would take.
    """
    if len(body) > REQUEST_BYTES_MAX:
        raise InvalidRequest(
            f"request: {len(body):,} bytes; a sample has at most {REQUEST_BYTES_MAX:,}",
            param="request",
        )
    if surface not in SURFACES:
        raise InvalidRequest(f"surface: {surface[:40]!r} is unknown; use {', '.join(SURFACES)}")
    try:
        parsed = parse_request(Surface(surface), body)
    except (WireFormatError, FieldError) as error:
        raise InvalidRequest(f"request: {error}", param="request") from error
    decision, refusal = _decided(desk, policy, parsed, seed)
    live, _ = _decided(desk, desk.gateway.policy(), parsed, seed)
    return Explained(
        decision=decision,
        refusal=refusal,
        live_choice=str(live["order"][0]) if live is not None else "",
    )


def _decided(
    desk: Desk, policy: Policy, parsed: ParsedRequest, seed: int
) -> tuple[dict[str, Any] | None, str]:
    gateway, live = desk.gateway, desk.gateway.policy()
    try:
        facts = describe(
            parsed,
            Caller(tenant_id=NOBODY, team_id=NOBODY, key_id=NOBODY),
            {},
            request_id=NOBODY,
            tenant_secret=gateway.tenant_secret(NOBODY),
            policy=policy,
        )
        view = gateway.fleet.view(facts, candidate_ids(policy, facts))
        if policy.version != live.version:
            # Endpoints it shares keep their beliefs; prices and addresses may be others.
            moved = moved_between(live, policy)
            rows = PriceBook(unpriced_cap_picos=policy.unpriced_cap_picos).rows
            view = seen_by(view, priced_by(view.snapshot, policy, rows, moved), moved)
        plan = decide(facts, view, policy, Seeded(seed), seed=seed)
    except ApiError as error:
        return None, error.message
    calibrated = gateway.fleet.calibrated(facts)
    return explain(plan, facts, view, policy, calibrated=calibrated), ""
