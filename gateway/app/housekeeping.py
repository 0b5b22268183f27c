"""What runs beside requests: following changes, keeping beliefs, purging, writing the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.app.load_polling import LoadPoller
from gateway.app.policy_source import PolicySource, StorePolicySource
from gateway.app.retention_job import RetentionJob
from gateway.fleet.events import FleetEvent
from gateway.fleet.exploration import ExplorationLimits
from gateway.pipeline import Gateway
from gateway.policy.load import Policy
from gateway.prices.book import PriceBook
from gateway.store import idempotency
from gateway.store.audit import AuditEvent, append_events
from gateway.store.changes import ENDPOINTS, KEYS, POLICIES, ChangeWatcher
from gateway.store.holds import list_holds
from gateway.store.policies import activate_policy
from gateway.store.state import load_endpoint_state, save_endpoint_state

log = structlog.get_logger()

STATE_EVERY_S = 30.0
EVENTS_EVERY_S = 1.0
PURGE_EVERY_S = 60.0
RETRY_S = 1.0
FLEET_STATE_KEY = "fleet"


class Housekeeping:
    """Owns the background tasks; each logs its failure and goes on."""

    def __init__(
        self, gateway: Gateway, source: PolicySource, book: PriceBook, poller: LoadPoller
    ) -> None:
        self._gateway = gateway
        self._poller = poller
        self._book = book
        self._source = source
        self._tasks: list[asyncio.Task[None]] = []
        self._reload_tasks: set[asyncio.Task[None]] = set()
        self.reload = asyncio.Event()  # set by SIGHUP

    async def restore(self) -> None:
        """Take over what was believed of the endpoints before the restart, and who is held."""
        try:
            async with self._gateway.store.read() as connection:
                states = await load_endpoint_state(connection)
            await self._reload_holds()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("beliefs not restored", error=error)
            return
        if FLEET_STATE_KEY in states:
            self._gateway.fleet.import_state(states[FLEET_STATE_KEY][1])

    def start(self) -> None:
        gateway = self._gateway
        watcher = ChangeWatcher(gateway.store, self._changed)
        retention = RetentionJob(
            gateway.store, gateway.settings.retention_days, wall_clock=gateway.wall_clock
        )
        self._tasks = [
            asyncio.create_task(watcher.run()),
            asyncio.create_task(gateway.recorder.run()),
            asyncio.create_task(gateway.limits.run()),
            asyncio.create_task(self._follow_policy()),
            asyncio.create_task(self._poller.run()),
            asyncio.create_task(self._every(STATE_EVERY_S, self._save_state)),
            asyncio.create_task(self._every(EVENTS_EVERY_S, self._note_events)),
            asyncio.create_task(self._every(PURGE_EVERY_S, retention.run)),
            asyncio.create_task(self._every(idempotency.RENEW_S, self._renew_claims)),
        ]

        for task in self._tasks:
            task.add_done_callback(tell_of_end)

    async def stop(self) -> None:
        """End the tasks and keep the beliefs once more."""
        for task in (*self._tasks, *self._reload_tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._reload_tasks, return_exceptions=True)
        self._tasks = []
        for last in (self._note_events, self._save_state):
            try:
                await last()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("not kept at the end", error=error)

    async def _every(self, period_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("housekeeping failed, will try again", error=error)

    async def _follow_policy(self) -> None:
        while True:
            try:
                await self._source.follow(self._new_policy, self.reload)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("policy not looked at, will try again", error=error)
                await asyncio.sleep(RETRY_S)

    def _changed(self, topics: frozenset[str]) -> None:
        if KEYS in topics:
            self._gateway.authenticator.invalidate()
            self._follow(self._gateway.ledger.reload_budgets(), "budgets not reloaded")
        if ENDPOINTS in topics:
            self._follow(self._reload_holds(), "pauses of endpoints not reloaded")
        if POLICIES in topics:
            self.reload.set()

    def _follow(self, work: Coroutine[Any, Any, None], what_failed: str) -> None:
        async def follow() -> None:
            try:
                await work
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning(what_failed, error=error)

        task = asyncio.create_task(follow())
        self._reload_tasks.add(task)
        task.add_done_callback(self._reload_tasks.discard)

    async def _reload_holds(self) -> None:
        gateway = self._gateway
        async with gateway.store.read() as connection:
            rows = await list_holds(connection)
        gateway.holds.obey(gateway.fleet, rows)

    async def _new_policy(self, policy: Policy) -> None:
        gateway = self._gateway
        gateway.fleet.replace_endpoints(policy.endpoints.values())
        gateway.holds.obey(gateway.fleet)
        gateway.fleet.limit_exploration(exploration_limits(policy))
        gateway.admission.in_flight_max = policy.limits.requests_in_flight_max
        self._book.set_unpriced_cap(policy.unpriced_cap_picos)
        await self.keep_policy(policy)

    async def keep_policy(self, policy: Policy) -> None:
        """Keep the text of every version that was in force: requests name the one they used."""
        gateway = self._gateway
        if isinstance(self._source, StorePolicySource):
            return  # it is there; and who follows must not put an older version back in force
        try:
            async with gateway.store.begin() as connection:
                await activate_policy(
                    connection,
                    version=policy.version,
                    text=self._source.text.decode(),
                    source=policy.source,
                    now=gateway.wall_clock(),
                    actor=f"file:{self._source.owner()}",
                )
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("policy version not kept", version=policy.version, error=error)

    async def _save_state(self) -> None:
        state = {FLEET_STATE_KEY: self._gateway.fleet.export_state()}
        async with self._gateway.store.begin() as connection:
            await save_endpoint_state(connection, state, now=self._gateway.wall_clock())

    async def _note_events(self) -> None:
        events = self._gateway.fleet.events()
        if not events:
            return
        for event in events:
            log.info(
                "endpoint event", endpoint=event.endpoint_id, what=event.kind, detail=event.message
            )
        async with self._gateway.store.begin() as connection:
            await append_events(connection, [as_audit(event) for event in events])

    async def _renew_claims(self) -> None:
        gateway = self._gateway
        if not gateway.claims:
            return
        async with gateway.store.begin() as connection:
            await idempotency.renew_claims(
                connection,
                holder_id=gateway.ledger.holder_id,
                claim_ids=tuple(gateway.claims),
                now=await gateway.store.database_now(connection),
            )


def tell_of_end(task: asyncio.Task[None]) -> None:
    """A background task runs until it is cancelled; any other end is our own bug."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a background task ended", error=error, exc_info=error)


def exploration_limits(policy: Policy) -> ExplorationLimits:
    """The policy's `exploration` as the fleet takes it."""
    stated = policy.exploration
    return ExplorationLimits(
        share=stated.share,
        credits_max=stated.credits_max,
        probe_after_s=stated.probe_after_s,
        probe_nanos_per_hour=stated.nanos_per_hour,
    )


def as_audit(event: FleetEvent) -> AuditEvent:
    """A fleet's event as the audit table keeps it; it belongs to no tenant."""
    return AuditEvent(
        tenant_id="",
        at=event.at_unix_s,
        actor="gateway",
        action=f"endpoint.{event.kind}",
        subject=event.endpoint_id,
        detail=msgspec.to_builtins(event),
    )
