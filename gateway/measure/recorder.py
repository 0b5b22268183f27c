"""The request log: a record is filled as a request lives, queued, and written in batches."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.core import (
    AttemptOutcome,
    Caller,
    Candidate,
    FleetSnapshot,
    FleetView,
    Plan,
    RequestFacts,
    dollars,
)
from gateway.store.engine import Store
from gateway.store.requests import (
    RequestRow,
    has_failed,
    insert_requests,
    insert_snapshots,
    stored_view,
)
from gateway.wire.usage import Usage

log = structlog.get_logger()

QUEUE_ROWS_MAX = 20_000
RECENT_ROWS_MAX = 512
BATCH_ROWS_MAX = 500
FLUSH_S = 0.25


class Finished(Protocol):
    """What the record needs of a relay's result."""

    @property
    def outcomes(self) -> Sequence[AttemptOutcome]: ...
    @property
    def status(self) -> int: ...
    @property
    def endpoint_id(self) -> str: ...
    @property
    def cost_nanos(self) -> int: ...
    @property
    def billed_nanos(self) -> int: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def is_estimated(self) -> bool: ...
    @property
    def error_code(self) -> str: ...


class RequestRecord:
    """One request while it lives; `row()` is what is written of it."""

    def __init__(self, facts: RequestFacts, caller: Caller, created_unix_s: float) -> None:
        self.facts = facts
        self.caller = caller
        self.created_unix_s = created_unix_s
        self.plan: Plan | None = None
        self.view: FleetView | None = None
        self.result: Finished | None = None
        self.status = 0
        self.error = ""
        self.overhead_s: float | None = None
        self.duration_s = 0.0

    @classmethod
    def begin(cls, facts: RequestFacts, caller: Caller, created_unix_s: float) -> RequestRecord:
        return cls(facts, caller, created_unix_s)

    def decided(self, plan: Plan, view: FleetView) -> None:
        self.plan, self.view = plan, view

    def refuse(self, status: int, code: str) -> None:
        self.status, self.error = status, code

    def finished(self, result: Finished) -> None:
        self.result = result
        self.status, self.error = result.status, result.error_code

    @property
    def has_failed(self) -> bool:
        """Ours or the endpoints' fault, told as a status or inside a stream that had begun."""
        return has_failed(self.status, self.error)

    def row(self) -> RequestRow:
        facts, plan, result = self.facts, self.plan, self.result
        outcomes = result.outcomes if result is not None else ()
        last = next((one for one in outcomes if one.is_committed), None)  # a hedge may come after
        last = last or (outcomes[-1] if outcomes else None)
        return RequestRow(
            id=facts.request_id,
            tenant_id=self.caller.tenant_id,
            team_id=self.caller.team_id,
            key_id=self.caller.key_id,
            created_at=self.created_unix_s,
            surface=facts.surface.value,
            model=plan.model if plan is not None else facts.models[0],
            lane=facts.lane.value,
            stream=facts.stream,
            facts=facts,
            policy_version=plan.policy_version if plan is not None else "",
            route=plan.route if plan is not None else "",
            preference=plan.preference if plan is not None else "",
            candidates=in_brief(plan) if plan is not None else (),
            live=stored_view(self.view) if self.view is not None else None,
            seed=plan.seed if plan is not None else 0,
            snapshot_id=plan.snapshot_id if plan is not None else "",
            endpoint_id=result.endpoint_id if result is not None else "",
            num_attempts=len(outcomes),
            status=self.status,
            error=self.error,
            ttft_any_ms=_since_dispatch_ms(last, "first_generated_at_s"),
            ttft_visible_ms=_since_dispatch_ms(last, "first_visible_at_s"),
            duration_ms=self.duration_s * 1000,
            overhead_us=None if self.overhead_s is None else self.overhead_s * 1e6,
            usage=result.usage if result is not None else None,
            is_estimated=result.is_estimated if result is not None else False,
            cost_nanos=result.cost_nanos if result is not None else 0,
            billed_nanos=result.billed_nanos if result is not None else 0,
        )


def in_brief(plan: Plan) -> tuple[Candidate, ...]:
    """
    The order and why its first is first. Terms and other reasons are worked out when asked for:
    facts, live state, seed, snapshot and policy of a row give them again.
    """
    first, *others = plan.order
    fallbacks = [Candidate(endpoint_id=each, outcome="fallback", reason="") for each in others]
    return (Candidate(endpoint_id=first, outcome="chosen", reason=plan.why), *fallbacks)


def _since_dispatch_ms(outcome: AttemptOutcome | None, stamp: str) -> float | None:
    if outcome is None or not outcome.stream:
        return None
    at_s: float | None = getattr(outcome, stamp)
    return None if at_s is None else (at_s - outcome.dispatched_at_s) * 1000


class Recorder:
    """Queues rows and snapshots; `run` writes them. The newest rows can be read at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: deque[RequestRow] = deque()
        self._snapshots: dict[str, FleetSnapshot] = {}
        self._written_snapshots: OrderedDict[str, None] = OrderedDict()
        self._recent: OrderedDict[str, RequestRow] = OrderedDict()
        self.num_requests = 0
        self.num_failed = 0
        self.num_dropped = 0

    def record(self, record: RequestRecord) -> None:
        """Queue one finished request. Never raises: losing a log row must not fail a request."""
        row = record.row()
        self.num_requests += 1
        self.num_failed += record.has_failed
        self._recent[row.id] = row
        if len(self._recent) > RECENT_ROWS_MAX:
            self._recent.popitem(last=False)
        if len(self._rows) >= QUEUE_ROWS_MAX:
            # The database has been away for long. The ledger keeps the money; rows are droppable.
            self._rows.popleft()
            self.num_dropped += 1
        self._rows.append(row)
        if record.view is not None:
            snapshot = record.view.snapshot
            if snapshot.id not in self._written_snapshots:
                self._snapshots[snapshot.id] = snapshot

    def recent(self, request_id: str) -> RequestRow | None:
        return self._recent.get(request_id)

    def unwritten_snapshot(self, snapshot_id: str) -> FleetSnapshot | None:
        """A snapshot that the database does not have yet."""
        return self._snapshots.get(snapshot_id)

    def newest(self, num_rows: int) -> list[RequestRow]:
        rows = list(self._recent.values())[-num_rows:]
        return rows[::-1]

    async def flush(self) -> None:
        """Write what is queued; on a database error it stays queued."""
        while self._rows or self._snapshots:
            rows = [self._rows[idx] for idx in range(min(len(self._rows), BATCH_ROWS_MAX))]
            snapshots = list(self._snapshots.values())
            try:
                async with self._store.begin() as connection:
                    await insert_snapshots(connection, snapshots)
                    await insert_requests(connection, rows)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("request log not written", error=error, num_rows=len(self._rows))
                return
            for _ in rows:
                self._rows.popleft()
            for snapshot in snapshots:
                self._snapshots.pop(snapshot.id, None)
                self._written_snapshots[snapshot.id] = None
                if len(self._written_snapshots) > RECENT_ROWS_MAX:
                    self._written_snapshots.popitem(last=False)

    async def run(self) -> None:
        """Write every FLUSH_S until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()


def row_json(row: RequestRow) -> dict[str, object]:
    """A row as `GET /v1/requests/{id}` shows it: money as decimal strings, no internals hidden."""
    shown = msgspec.to_builtins(row)
    assert isinstance(shown, dict)

    shown["object"] = "request"
    shown["cost"] = dollars(row.billed_nanos)
    shown["provider_cost"] = dollars(row.cost_nanos)
    shown["seed"] = str(row.seed)
    return shown
