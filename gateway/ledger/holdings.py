"""The leases one holder has: what is free in memory, and the trips to SQL that change it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import ApiError, LedgerUnavailable
from gateway.ledger.grants import give_back, grant_slices, read_budgets, renew
from gateway.ledger.leases import Grant, Lease, Want, exhausted
from gateway.ledger.options import LedgerOptions
from gateway.ledger.recovery import DatabaseNow
from gateway.ledger.refill import Demands, Grants, Refiller
from gateway.store.engine import Store

REFILL_ROUNDS_MAX = 16
LEASES_PER_TRANSACTION = 200
NEVER_S = float("-inf")


class Holdings:
    """
    Leases by budget. Memory changes only between awaits, so a check and its hold are one step.

    `sql_turn` lets one transaction of this holder run at a time: amounts read from SQL are then
    never older than those in memory.
    """

    def __init__(
        self,
        store: Store,
        *,
        holder_id: str,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        options: LedgerOptions,
        database_now: DatabaseNow,
        sql_turn: asyncio.Lock,
        journal_file: Callable[[], str],
    ) -> None:
        self.unix_offset_s = 0.0  # database time minus our monotonic clock
        self._store = store
        self._holder_id = holder_id
        self._clock = clock
        self._new_id = new_id
        self._options = options
        self._database_now = database_now
        self._sql_turn = sql_turn
        self._journal_file = journal_file
        self._current: dict[str, Lease] = {}  # by budget: where new holds go
        self._leases: dict[str, Lease] = {}  # by lease: those with holds of earlier windows too
        self._answers: dict[str, tuple[Grant, float]] = {}  # by budget: SQL's last word, and when
        self._not_in_force: set[str] = set()
        self._refiller = Refiller(self._lease)

    @property
    def leases(self) -> Iterable[Lease]:
        return self._leases.values()

    def covering(self, budget_ids: Iterable[str], nanos: int) -> tuple[Lease, ...] | None:
        """A lease of every budget with `nanos` free; None when one is missing or too small."""
        now = self._clock()
        found: list[Lease] = []
        for budget_id in budget_ids:
            lease = self._current.get(budget_id)
            if lease is None:
                if budget_id in self._not_in_force:
                    continue
                return None
            # `headroom_nanos`, written out: this is the hot path of every budgeted request.
            free = lease.granted_nanos - lease.spent_nanos - lease.held_nanos
            if free < nanos or lease.is_revoked or now >= lease.ends_at_s:
                return None
            found.append(lease)
        return tuple(found)

    def hold(self, leases: tuple[Lease, ...], nanos: int) -> None:
        """Hold `nanos` in every lease, which `covering` just returned; top up what runs low."""
        now = self._clock()
        for lease in leases:
            lease.hold(nanos, now)
            if lease.is_low and now >= lease.refuses_until_s:
                lease.refuses_until_s = now + self._options.refusal_s
                self._refiller.ask([lease.budget_id])

    async def refilled(self, budget_ids: tuple[str, ...], nanos: int) -> tuple[Lease, ...]:
        """
        Leases that cover `nanos`, after asking SQL for more.

        Raises BudgetExhausted, or LedgerUnavailable when SQL does not answer in time.
        """
        short = self._short(budget_ids, nanos)
        self._refuse_if_known_exhausted(short, nanos)
        try:
            async with asyncio.timeout(self._options.sql_wait_s):
                for _ in range(REFILL_ROUNDS_MAX):
                    grants = await asyncio.shield(self._refiller.ask(short, nanos))
                    leases = self.covering(budget_ids, nanos)
                    if leases is not None:
                        return leases
                    for budget_id in short:
                        if budget_id in grants:
                            self._refuse_if_short(grants[budget_id], nanos)
                    short = self._short(budget_ids, nanos)
        except ApiError:
            raise
        except Exception as e:
            # TimeoutError, or whatever the driver says of a database that is away.
            raise LedgerUnavailable(
                "the database does not answer and the money leased from this key's budget is "
                "used up; try again shortly",
                retry_after_s=1.0,
            ) from e
        raise LedgerUnavailable("this key's budget is contended; try again", retry_after_s=1.0)

    def _short(self, budget_ids: Iterable[str], nanos: int) -> list[str]:
        return [each for each in budget_ids if self.covering((each,), nanos) is None]

    def _refuse_if_known_exhausted(self, budget_ids: Iterable[str], nanos: int) -> None:
        # An exhausted key that is hammered must not hammer SQL.
        for budget_id in budget_ids:
            answer = self._answers.get(budget_id)
            if answer is not None and self._clock() - answer[1] < self._options.refusal_s:
                self._refuse_if_short(answer[0], nanos)

    def _refuse_if_short(self, grant: Grant, nanos: int) -> None:
        now = self._clock()
        if now + self.unix_offset_s >= grant.window.end:
            return  # the answer was about a window that is over
        lease = self._leases.get(grant.lease_id)
        headroom = lease.headroom_nanos if lease is not None else 0
        if headroom + grant.remaining_nanos < nanos:
            held = lease.held_nanos if lease is not None else 0
            spent = lease.spent_nanos - grant.lease_spent_nanos if lease is not None else 0
            raise exhausted(grant, needed_nanos=nanos, unwritten_nanos=spent, own_held_nanos=held)

    # --- trips to SQL, one at a time ---

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[tuple[AsyncConnection, float]]:
        async with self._store.begin() as connection:
            now = await self._database_now(connection)
            self.unix_offset_s = now - self._clock()
            yield connection, now

    async def _lease(self, demands: Demands) -> Grants:
        """One round of the refiller."""
        async with self._sql_turn:
            if len(self._leases) + len(demands) > self._options.leases_max:
                raise LedgerUnavailable("too many budgets are in use; try again shortly")
            wants = {each: self._want(each, nanos) for each, nanos in demands.items()}
            async with self._transaction() as (connection, now):
                grants = await grant_slices(
                    connection,
                    wants,
                    holder_id=self._holder_id,
                    journal_file=self._journal_file(),
                    now=now,
                    expires_at=now + self._options.lease_ttl_s,
                    new_id=self._new_id,
                )
            for budget_id in wants:
                self._take_over(budget_id, grants.get(budget_id))
        return grants

    def _want(self, budget_id: str, demands: list[int]) -> Want:
        lease = self._current.get(budget_id)
        if lease is None or lease.is_revoked:
            return Want(tuple(demands))
        return Want(tuple(demands), lease.headroom_nanos, lease.window_start)

    def _take_over(self, budget_id: str, grant: Grant | None) -> None:
        """Make memory say what SQL said."""
        now = self._clock()
        current = self._current.get(budget_id)
        if current is not None and (grant is None or grant.lease_id != current.id):
            current.is_revoked = True  # its window is over, it expired, or its budget ended
            del self._current[budget_id]
        if grant is None:
            self._answers.pop(budget_id, None)
            self._not_in_force.add(budget_id)
            return
        self._not_in_force.discard(budget_id)
        self._answers[budget_id] = (grant, now)
        if not grant.lease_id:
            return
        lease = self._leases.get(grant.lease_id)
        if lease is None:
            ends_at_s = grant.window.end - self.unix_offset_s
            lease = Lease(grant.lease_id, budget_id, grant.window.start, ends_at_s)
            lease.spent_nanos = grant.lease_spent_nanos
            lease.used_at_s = now
            self._leases[lease.id] = lease
        lease.granted_nanos = grant.granted_nanos
        lease.is_revoked = grant.is_over
        if grant.slice_nanos:
            lease.slice_nanos = grant.slice_nanos
            lease.refuses_until_s = 0.0
        else:
            lease.refuses_until_s = now + self._options.refusal_s
        self._current[budget_id] = lease

    async def tend(self) -> None:
        """Renew our leases, learn which expired, give back what lies idle."""
        async with self._sql_turn:
            async with self._transaction() as (connection, now):
                open_ids = await renew(
                    connection,
                    holder_id=self._holder_id,
                    now=now,
                    ttl_s=self._options.lease_ttl_s,
                )
            for lease in self._leases.values():
                if lease.id not in open_ids:
                    self._revoke(lease)
            idle_since = self._clock() - self._options.idle_s
            idle = [
                lease
                for lease in self._leases.values()
                if lease.is_revoked
                or lease.used_at_s < idle_since
                or self._clock() >= lease.ends_at_s
            ]
            await self._give_back(idle)
        self._forget_old_answers(idle_since)

    async def reload(self) -> None:
        """Read the limits again: a raised budget refuses no more, a lowered one is obeyed now."""
        async with self._sql_turn:
            known = dict(self._answers)
            async with self._store.read() as connection:
                found = await read_budgets(connection, {*known, *self._not_in_force})
            self._not_in_force = {each for each in self._not_in_force if each not in found}
            to_return = [lease for lease in self._leases.values() if lease.is_revoked]
            for budget_id, (grant, _) in known.items():
                budget = found.get(budget_id)
                if budget is not None and budget.limit_nanos == grant.budget.limit_nanos:
                    continue
                lease = self._current.get(budget_id)
                if budget is None:
                    self._answers.pop(budget_id, None)
                    self._not_in_force.add(budget_id)
                    if lease is not None:
                        self._revoke(lease)
                else:
                    self._answers[budget_id] = (replace(grant, budget=budget), NEVER_S)
                if lease is not None:
                    lease.refuses_until_s = 0.0
                    if lease not in to_return:
                        to_return.append(lease)
            await self._give_back(to_return)

    async def return_all(self) -> None:
        """Give back everything that holds nothing, at the end."""
        await self._refiller.stop()
        async with self._sql_turn:
            await self._give_back(list(self._leases.values()))

    async def _give_back(self, leases: list[Lease]) -> None:
        for start in range(0, len(leases), LEASES_PER_TRANSACTION):
            some = leases[start : start + LEASES_PER_TRANSACTION]
            keeps = {lease.id: lease.spent_nanos + lease.held_nanos for lease in some}
            for lease in some:  # first here, so that nobody can hold what is on its way back
                lease.granted_nanos = keeps[lease.id]
            async with self._transaction() as (connection, _):
                gone = await give_back(connection, keeps, holder_id=self._holder_id)
            for lease in some:  # SQL would answer otherwise now
                if lease.budget_id in self._answers:
                    self._answers[lease.budget_id] = (self._answers[lease.budget_id][0], NEVER_S)
            for lease_id in gone:
                if self._leases[lease_id].held_nanos == 0:
                    self._forget(self._leases[lease_id])

    def _revoke(self, lease: Lease) -> None:
        lease.is_revoked = True
        if self._current.get(lease.budget_id) is lease:
            del self._current[lease.budget_id]

    def _forget(self, lease: Lease) -> None:
        self._revoke(lease)
        del self._leases[lease.id]

    def _forget_old_answers(self, before_s: float) -> None:
        stale = [
            budget_id
            for budget_id, (_, at_s) in self._answers.items()
            if at_s < before_s and budget_id not in self._current
        ]
        for budget_id in stale:
            del self._answers[budget_id]
        if len(self._not_in_force) > self._options.leases_max:
            self._not_in_force.clear()
