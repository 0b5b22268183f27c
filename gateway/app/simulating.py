"""A changed policy over the request log: what each request would have met with, and its sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.app.policy_source import read_policy_file
from gateway.core import FleetSnapshot
from gateway.errors import PolicyError, SetupError
from gateway.policy.backtest import (
    Judged,
    Outcome,
    Record,
    judge,
    moved_between,
    predict_record,
    priced_by,
    seen_by,
)
from gateway.policy.backtest_summary import Comparison, Sent, compare
from gateway.policy.load import Policy, load_policy
from gateway.prices.book import PriceBook
from gateway.settings import Settings
from gateway.store.engine import open_store
from gateway.store.policies import find_policy
from gateway.store.requests import PAGE_ROWS_MAX, RequestRow, find_snapshot, list_decided, view_of

SEED = 5  # of the bootstrap: the same log gives the same intervals
SNAPSHOTS_MAX = 64  # kept at once; rows come in the order of time
HAPPENED = "what happened"


@dataclass(slots=True)
class Simulated:
    """The comparison, and what of the log could not be used."""

    comparison: Comparison | None
    num_read: int
    num_without_snapshot: int  # its beliefs are kept for a week
    num_not_sent: int  # refused for a budget or a limit, or only explained
    is_cut: bool  # there are older rows than `limit`
    keyless: tuple[str, ...]  # endpoints of the new policy without a key here, so never chosen


class _Seen:
    """One policy's view of the past, a snapshot worked out once for the rows that share it."""

    def __init__(self, policy: Policy, moved: Callable[[str, Policy], frozenset[str]]) -> None:
        self.policy = policy
        self._book = PriceBook(unpriced_cap_picos=policy.unpriced_cap_picos)
        self._moved = moved
        self._kept: dict[tuple[str, str], FleetSnapshot] = {}

    def judge(self, record: Record, version: str) -> Judged:
        moved = self._moved(version, self.policy)
        snapshot = record.view.snapshot
        key = (snapshot.id, version)
        mine = self._kept.get(key)
        if mine is None:
            if len(self._kept) >= SNAPSHOTS_MAX:
                self._kept.clear()
            mine = priced_by(snapshot, self.policy, self._book.rows, moved)
            self._kept[key] = mine
        return judge(record, self.policy, seen_by(record.view, mine, moved), moved)


@dataclass(slots=True)
class _Past:
    """What rows refer to, read when first met."""

    connection: AsyncConnection
    policies: dict[str, Policy | None] = field(default_factory=dict)
    snapshots: dict[str, FleetSnapshot | None] = field(default_factory=dict)
    _moved: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    async def policy(self, version: str) -> Policy | None:
        if version not in self.policies:
            kept = await find_policy(self.connection, version)
            try:
                found = load_policy(kept.text.encode(), environ=None) if kept is not None else None
            except PolicyError:
                found = None  # of an older LoopRouter
            self.policies[version] = found
        return self.policies[version]

    async def snapshot(self, snapshot_id: str) -> FleetSnapshot | None:
        if snapshot_id not in self.snapshots:
            if len(self.snapshots) >= SNAPSHOTS_MAX:
                self.snapshots.clear()
            self.snapshots[snapshot_id] = await find_snapshot(self.connection, snapshot_id)
        return self.snapshots[snapshot_id]

    def moved(self, version: str, policy: Policy) -> frozenset[str]:
        """Endpoints of `policy` whose id led to another address or model then."""
        key = (version, policy.version)
        if key not in self._moved:
            then = self.policies.get(version)
            self._moved[key] = moved_between(then, policy) if then is not None else frozenset()
        return self._moved[key]


async def simulate(
    settings: Settings,
    new: Path,
    *,
    against: Path | None,
    since_unix_s: float,
    limit: int,
    has_every_key: bool = False,
) -> Simulated:
    """
    Decide the newest `limit` requests of the log again under `new`.

    The other side is the policy `against`, or what really happened. `has_every_key`: take the keys
    that a policy names as set; else those of this environment. Raises PolicyError for a file, and
    SetupError where there is no log.
    """
    environ = None if has_every_key else settings.environ
    policy = load_policy(read_policy_file(new), environ=environ, source=str(new))
    other = None
    if against is not None:
        other = load_policy(read_policy_file(against), environ=environ, source=str(against))
    store = await open_store(settings.database_url, home=settings.home)
    try:
        async with store.read() as connection:
            return await _over_log(connection, policy, other, since_unix_s, limit)
    except SQLAlchemyError as error:
        raise SetupError(
            "there is no request log here: serve requests first, or point LOOPROUTER_HOME or "
            "LOOPROUTER_DATABASE_URL to where they were served"
        ) from error
    finally:
        await store.close()


async def _over_log(
    connection: AsyncConnection,
    policy: Policy,
    other: Policy | None,
    since_unix_s: float,
    limit: int,
) -> Simulated:
    past = _Past(connection)
    after = _Seen(policy, past.moved)
    before = _Seen(other, past.moved) if other is not None else None
    sent: list[Sent] = []
    old: list[Judged] = []
    new: list[Judged] = []
    num_read = num_lost = num_not_sent = 0
    page: list[RequestRow] = []
    place: tuple[float, str] | None = None
    while num_read < limit:
        page = await list_decided(
            connection, since=since_unix_s, limit=min(limit - num_read, PAGE_ROWS_MAX), before=place
        )
        if not page:
            break
        place = (page[-1].created_at, page[-1].id)
        num_read += len(page)
        for row in page:
            if row.num_attempts == 0:
                num_not_sent += 1
                continue
            snapshot = await past.snapshot(row.snapshot_id)
            if snapshot is None or row.facts is None or not row.candidates:
                num_lost += 1
                continue
            record = record_of(row, snapshot)
            then = await past.policy(row.policy_version)
            sent.append(_sent(record, then))
            new.append(after.judge(record, row.policy_version))
            old.append(
                before.judge(record, row.policy_version) if before else happened(record, row)
            )
    rng = np.random.default_rng(SEED)
    names = (other.source if other is not None else HAPPENED, policy.source)
    return Simulated(
        comparison=compare(sent, old, new, rng, names=names) if sent else None,
        num_read=num_read,
        num_without_snapshot=num_lost,
        num_not_sent=num_not_sent,
        is_cut=len(page) > 0 and num_read >= limit,
        keyless=tuple(eid for eid in policy.endpoints if not policy.pools[eid][0].has_key),
    )


def record_of(row: RequestRow, snapshot: FleetSnapshot) -> Record:
    """A row of the log with the snapshot it names."""
    assert row.facts is not None
    assert row.candidates

    is_answered = row.status == 200 and not row.error and row.duration_ms is not None
    outcome = None
    if is_answered and row.endpoint_id:
        usage = row.usage
        tokens = usage.output_total if usage is not None else 0
        outcome = Outcome(
            time_s=(row.duration_ms or 0.0) / 1000.0,
            cost_nanos=row.cost_nanos,
            output_tokens=tokens / max(1, row.facts.num_choices),
            prompt_tokens=usage.input_total if usage and not row.is_estimated else None,
            wait_s=(row.overhead_us or 0.0) / 1e6,
            num_attempts=row.num_attempts,
        )
    return Record(
        facts=row.facts,
        view=view_of(row, snapshot),
        seed=row.seed,
        chosen=row.candidates[0].endpoint_id,
        outcome=outcome,
    )


def happened(record: Record, row: RequestRow) -> Judged:
    """The other side where no policy is named: nothing of it is predicted."""
    outcome = record.outcome
    return Judged(
        endpoint_id=record.chosen,
        route=row.route,
        time_s=outcome.time_s if outcome is not None else None,
        cost_nanos=outcome.cost_nanos if outcome is not None else None,
    )


def _sent(record: Record, then: Policy | None) -> Sent:
    """With the prediction that the policy of the time would have made of it."""
    if then is None or record.outcome is None or record.chosen not in then.pools:
        return Sent(record, None)
    return Sent(record, predict_record(record, then, record.view, record.chosen))
