"""Why a request of the log went where it went, worked out again from what its row refers to."""

from __future__ import annotations

import asyncio

from gateway.core import Candidate, FleetSnapshot
from gateway.errors import ApiError, PolicyError
from gateway.pipeline import Gateway
from gateway.policy.decide import decide
from gateway.policy.explain import candidates_of
from gateway.policy.load import Policy, load_policy
from gateway.stats.seeded import Seeded
from gateway.store.policies import find_policy
from gateway.store.requests import RequestRow, find_snapshot, view_of


async def candidates_of_row(gateway: Gateway, row: RequestRow) -> tuple[Candidate, ...]:
    """
    Every endpoint of the models wanted, with its terms.

    Where that cannot be had, what the row itself says: the snapshot is older than a week, or this
    version of the gateway would decide otherwise.
    """
    kept = row.candidates
    if row.facts is None or not kept or any(each.terms is not None for each in kept):
        return kept  # not decided, or a row of the time when terms were written down
    snapshot = await _snapshot_of(gateway, row)
    policy = await _policy_of(gateway, row.policy_version)
    if snapshot is None or policy is None:
        return kept
    view = view_of(row, snapshot)
    try:
        plan = decide(row.facts, view, policy, Seeded(row.seed), seed=row.seed)
    except ApiError:
        return kept
    if (plan.order, plan.why) != (tuple(each.endpoint_id for each in kept), kept[0].reason):
        return kept
    return candidates_of(plan, row.facts, view, policy)


async def _snapshot_of(gateway: Gateway, row: RequestRow) -> FleetSnapshot | None:
    snapshot = gateway.recorder.unwritten_snapshot(row.snapshot_id)
    if snapshot is None:
        async with gateway.store.read() as connection:
            snapshot = await find_snapshot(connection, row.snapshot_id)
    return snapshot


async def _policy_of(gateway: Gateway, version: str) -> Policy | None:
    current = gateway.policy()
    if current.version == version:
        return current
    async with gateway.store.read() as connection:
        kept = await find_policy(connection, version)
    if kept is None:
        return None
    try:
        return await asyncio.to_thread(
            load_policy, kept.text.encode(), environ=gateway.settings.environ
        )
    except PolicyError:
        return None
