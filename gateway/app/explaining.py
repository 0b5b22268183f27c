"""Decides a request offline, with the beliefs that the last serving process kept."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from gateway.app.compose import tenant_secrets
from gateway.app.housekeeping import FLEET_STATE_KEY
from gateway.app.policy_source import read_policy_file
from gateway.core import Caller, Rng
from gateway.errors import InvalidRequest, SetupError
from gateway.fleet.fleet import Fleet
from gateway.pipeline import candidate_ids
from gateway.policy.decide import decide
from gateway.policy.explain import explain
from gateway.policy.facts import describe
from gateway.policy.load import Policy, load_policy
from gateway.prices.book import PriceBook
from gateway.settings import Settings
from gateway.store.engine import open_store, sqlite_path
from gateway.store.state import load_endpoint_state
from gateway.wire.pieces import Surface
from gateway.wire.rawjson import WireFormatError
from gateway.wire.requests import FieldError, parse_request


async def explain_request(
    settings: Settings, policy_path: Path, body: bytes, *, surface: str, rng: Rng, seed: int
) -> dict[str, object]:
    """What `decide` would do. Raises ApiError as the gateway would, PolicyError for the file."""
    policy = load_policy(read_policy_file(policy_path), environ=None, source=str(policy_path))
    if surface not in {each.value for each in Surface}:
        known = ", ".join(each.value for each in Surface)
        raise InvalidRequest(f"{surface!r} is no surface; use one of {known}")
    try:
        parsed = parse_request(Surface(surface), body)
    except (WireFormatError, FieldError) as error:
        raise InvalidRequest(f"the request is not acceptable: {error}") from error
    fleet = await believed_fleet(settings, policy)
    facts = describe(
        parsed,
        Caller(tenant_id="explain", team_id="explain", key_id="explain"),
        {},
        request_id="explain",
        tenant_secret=tenant_secrets(settings.pepper())("explain"),
        policy=policy,
    )
    view = fleet.view(facts, candidate_ids(policy, facts))
    plan = decide(facts, view, policy, rng, seed=seed)
    return explain(plan, facts, view, policy, calibrated=fleet.calibrated(facts))


async def believed_fleet(settings: Settings, policy: Policy) -> Fleet:
    """A fleet with the beliefs kept in the database, or with the prior where there are none.

    A PostgreSQL that does not answer is a SetupError: beliefs that are there would be passed over.
    """
    book = PriceBook(unpriced_cap_picos=policy.unpriced_cap_picos)
    fleet = Fleet(
        policy.endpoints.values(),
        clock=time.monotonic,
        wall_clock=time.time,
        price_rows=book.rows,
        new_id=lambda: secrets.token_hex(8),
    )
    try:
        store = await open_store(settings.database_url, home=settings.home)
    except SetupError:
        if sqlite_path(settings.database_url, home=settings.home) is None:
            raise
        return fleet  # nothing was served on this machine yet
    try:
        async with store.read() as connection:
            states = await load_endpoint_state(connection)
        if FLEET_STATE_KEY in states:
            fleet.import_state(states[FLEET_STATE_KEY][1])
    except SQLAlchemyError:
        # A database without our tables yet: the prior serves as well.
        return fleet
    finally:
        await store.close()
    return fleet
