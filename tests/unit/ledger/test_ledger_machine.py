"""
The ledger as a state machine on a real SQLite file: whatever happens in whatever order, debits
equal credits, nothing held is negative, and spend + held never pass the budget.

LOOPROUTER_LEDGER_SEEDS and LOOPROUTER_LEDGER_STEPS make it run longer.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.errors import BudgetExhausted
from gateway.ledger.journal import encode
from gateway.ledger.ledger import Ledger
from gateway.ledger.options import LedgerOptions
from gateway.ledger.records import CRASHED, Dropped, Hold, LedgerAlert
from gateway.ledger.verify import verify
from gateway.store.engine import open_store
from gateway.wire.usage import Usage
from tests.support.ledgers import (
    CENT,
    Bench,
    TurnedClock,
    add_budget,
    cost_of,
    die,
    empty_database,
    request_of,
    set_limit,
)

# Longer than `make check` may take; `make test` runs it.
pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("LOOPROUTER_LEDGER_SEEDS", "5"))
STEPS = int(os.environ.get("LOOPROUTER_LEDGER_STEPS", "40"))
BUDGETS = {"t": ("tenant", "month"), "m": ("team", "day"), "k": ("key", "total")}
# "one" and "two" share a machine, "far" has a disk of its own.
HOLDERS = {"one": "here", "two": "here", "far": "there"}
LIMITS = st.integers(0, 40).map(lambda cents: cents * CENT)

T = TypeVar("T")


class Cut(Exception):
    """The connection broke before COMMIT was answered."""


@dataclass(slots=True)
class Attempt:
    """What the test knows of an attempt."""

    hold: Hold
    holder: str
    billed: int | None = None  # None = not ended by us
    was_told: bool = True  # the ledger lived when it ended


class LedgerMachine(RuleBasedStateMachine):
    @initialize(limits=st.tuples(LIMITS, LIMITS, LIMITS))
    def begin(self, limits: tuple[int, int, int]) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory(prefix="ledger-")
        self.home = Path(self.directory.name)
        path = self.home / "looprouter.db"
        path.write_bytes(empty_database())
        self.store = self.run(open_store(f"sqlite:///{path}"))
        self.look = sqlite3.connect(path)
        self.alerts: list[LedgerAlert] = []
        self.bench = Bench(self.store, self.home, TurnedClock(), self.alerts)
        self.limit_max: dict[str, int] = {}
        for (name, (kind, period)), limit in zip(BUDGETS.items(), limits, strict=True):
            self.run(add_budget(self.store, name, limit, kind=kind, period=period))
            self.limit_max[name] = limit
        self.attempts: dict[str, Attempt] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.refusals: list[BudgetExhausted] = []
        self.cut_at_commit = False
        for holder in HOLDERS:
            self.start(holder)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def start(self, holder: str) -> None:
        ledger = self.bench.ledger(
            holder,
            home=self.home / HOLDERS[holder],
            at_point=self.at_point,
            options=LedgerOptions(
                records_per_commit=3, journal_file_bytes_max=2_000, sql_wait_s=30.0
            ),
        )
        self.run(ledger.start())
        self.ledgers[holder] = ledger

    def at_point(self, name: str) -> None:
        if name == "before_settle_commit" and self.cut_at_commit:
            raise Cut

    def living(self, pick: int) -> str | None:
        names = sorted(self.ledgers)
        return names[pick % len(names)] if names else None

    def open_attempts(self) -> list[str]:
        return [
            name
            for name, each in self.attempts.items()
            if each.hold.is_open and self.ledgers.get(each.holder) is not None
            and each.was_told
        ]  # fmt: skip

    # --- what may happen ---

    @rule(pick=st.integers(0, 9), cents=st.integers(1, 12), names=st.sets(st.sampled_from("tmk")))
    def reserve_some(self, pick: int, cents: int, names: set[str]) -> None:
        self.reserve(pick, cents, names)

    def reserve(self, pick: int, cents: int, names: set[str]) -> None:
        holder = self.living(pick)
        if holder is None:
            return
        attempt_id = f"a{len(self.attempts)}"
        request = request_of(attempt_id, cents * CENT, *sorted(names))
        try:
            hold = self.run(self.ledgers[holder].reserve(request))
        except BudgetExhausted as refusal:
            self.refusals.append(refusal)
        else:
            self.attempts[attempt_id] = Attempt(hold, holder)

    @rule(cents=st.integers(5, 40), name=st.sampled_from("tmk"))
    def rush(self, cents: int, name: str) -> None:
        """Everybody wants the same budget."""
        for pick in range(len(self.ledgers)):
            self.reserve(pick, cents, {name})

    @rule(pick=st.integers(0, 99), share=st.integers(0, 150), is_waste=st.booleans())
    def settle(self, pick: int, share: int, is_waste: bool) -> None:
        names = self.open_attempts()
        if not names:
            return
        attempt = self.attempts[names[pick % len(names)]]
        cost = attempt.hold.hold_nanos * share // 100
        settlement = cost_of(cost, billable_to="operator" if is_waste else "client")
        settled = self.ledgers[attempt.holder].settle(attempt.hold, settlement)
        attempt.billed = 0 if is_waste else min(cost, attempt.hold.hold_nanos)
        assert settled.billed_nanos == attempt.billed
        assert settled.cost_nanos == cost

    @rule(pick=st.integers(0, 99))
    def release(self, pick: int) -> None:
        names = self.open_attempts()
        if names:
            attempt = self.attempts[names[pick % len(names)]]
            self.ledgers[attempt.holder].release(attempt.hold, "refused")
            attempt.billed = 0

    @rule(pick=st.integers(0, 99), does_settle=st.booleans())
    def end_again(self, pick: int, does_settle: bool) -> None:
        """Duplicates and reordered ends: the first won."""
        ended = [a for a in self.attempts.values() if a.billed is not None]
        if not ended:
            return
        attempt = ended[pick % len(ended)]
        ledger = self.ledgers.get(attempt.holder)
        if ledger is None:
            return
        if does_settle:
            settled = ledger.settle(attempt.hold, cost_of(attempt.hold.hold_nanos))
        else:
            settled = ledger.release(attempt.hold, "late")
        assert settled.billed_nanos == attempt.billed

    @rule(pick=st.integers(0, 99), tokens=st.integers(0, 20_000))
    def progress(self, pick: int, tokens: int) -> None:
        names = self.open_attempts()
        if names:
            attempt = self.attempts[names[pick % len(names)]]
            self.ledgers[attempt.holder].progress(attempt.hold, Usage(output=tokens))

    @rule(pick=st.integers(0, 9))
    def commit(self, pick: int) -> None:
        holder = self.living(pick)
        if holder is not None:
            committer = self.ledgers[holder]._committer
            assert committer is not None
            self.run(committer.commit_batch())

    @rule(pick=st.integers(0, 9), was_booked=st.booleans())
    def commit_without_answer(self, pick: int, was_booked: bool) -> None:
        holder = self.living(pick)
        if holder is None:
            return
        committer = self.ledgers[holder]._committer
        assert committer is not None
        before = committer.applied
        if was_booked:
            self.run(committer.commit_batch())
            committer.applied = before
            return
        self.cut_at_commit = True
        try:
            self.run(committer.commit_batch())
        except Cut:
            assert committer.applied == before
        finally:
            self.cut_at_commit = False

    @rule(pick=st.integers(0, 9))
    def tend(self, pick: int) -> None:
        holder = self.living(pick)
        if holder is not None:
            self.run(self.ledgers[holder].tend())

    @rule(seconds=st.sampled_from([0.3, 5.0, 31.0, 61.0, 90_000.0]))
    def turn(self, seconds: float) -> None:
        self.bench.clock.turn(seconds)

    @rule(name=st.sampled_from(sorted(BUDGETS)), limit=LIMITS)
    def change_limit(self, name: str, limit: int) -> None:
        self.run(set_limit(self.store, name, limit))
        self.limit_max[name] = max(limit, self.limit_max[name])
        for ledger in self.ledgers.values():
            self.run(ledger.reload_budgets())

    @rule(pick=st.integers(0, 9), torn=st.integers(0, 30))
    def crash(self, pick: int, torn: int) -> None:
        holder = self.living(pick)
        if holder is None:
            return
        ledger = self.ledgers.pop(holder)
        assert ledger._committer is not None
        path = ledger._committer.writer.path
        self.run(ledger._holdings._refiller.stop())
        die(ledger)
        with path.open("ab") as file:  # the record that was being written
            file.write(encode(Dropped("a0", "torn", 1.0))[:torn])
        for attempt in self.attempts.values():
            if attempt.holder == holder and attempt.billed is None:
                attempt.was_told = False

    @precondition(lambda self: len(self.ledgers) < len(HOLDERS))
    @rule(pick=st.integers(0, 9))
    def come_back(self, pick: int) -> None:
        dead = sorted(set(HOLDERS) - set(self.ledgers))
        self.start(dead[pick % len(dead)])

    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        holder = self.living(pick)
        if holder is None:
            return
        self.run(self.ledgers.pop(holder).close())
        for attempt in self.attempts.values():
            if attempt.holder == holder and attempt.billed is None:
                attempt.was_told = False

    # --- what must hold after every step ---

    @invariant()
    def debits_equal_credits(self) -> None:
        query = "SELECT txn_id, sum(amount_nanos) AS s FROM entries GROUP BY 1 HAVING s != 0"
        assert self.look.execute(query).fetchall() == []

    @invariant()
    def nothing_held_is_negative_or_over_its_lease(self) -> None:
        for ledger in self.ledgers.values():
            for lease in ledger._holdings.leases:
                assert lease.held_nanos >= 0
                assert lease.unused_nanos >= 0

    @invariant()
    def spend_and_held_stay_within_the_budget(self) -> None:
        own: dict[str, int] = {}
        for ledger in self.ledgers.values():
            for lease in ledger._holdings.leases:
                own[lease.id] = lease.spent_nanos + lease.held_nanos
        use: dict[tuple[str, int], int] = {}
        booked: dict[tuple[str, int], list[int]] = {}
        for row in self.look.execute(
            "SELECT id, budget_id, window_start, granted_nanos, spent_nanos, state FROM leases"
        ):
            lease_id, budget_id, start, granted, spent, state = row
            window = (budget_id, start)
            # An expired lease counts whole; so does an open one whose holder is dead.
            mine = granted if state == "expired" or lease_id not in own else own[lease_id]
            use[window] = use.get(window, 0) + max(mine, spent)
            sums = booked.setdefault(window, [0, 0, 0])
            sums[0] += granted if state == "expired" else spent
            sums[1] += granted - spent if state == "open" else 0
            sums[2] += granted - spent if state == "expired" else 0
        for (budget_id, _), nanos in use.items():
            assert nanos <= self.limit_max[budget_id]
        for budget_id, start, *found in self.look.execute(
            "SELECT budget_id, window_start, spent_nanos, leased_nanos, unattributed_nanos "
            "FROM budget_windows"
        ):
            assert found == booked.get((budget_id, start), [0, 0, 0])
            assert found[0] + found[1] <= self.limit_max[budget_id]

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.end()
        finally:
            self.look.close()
            self.run(self.store.close())
            self.loop.close()
            self.directory.cleanup()

    def end(self) -> None:
        """Everybody comes back and closes: no attempt is lost, none is billed twice."""
        for holder in HOLDERS:
            if holder not in self.ledgers:
                self.start(holder)
        for attempt in self.attempts.values():
            if attempt.billed is None and attempt.was_told:
                self.ledgers[attempt.holder].release(attempt.hold, "end")
                attempt.billed = 0
        for holder in HOLDERS:
            self.run(self.ledgers.pop(holder).close())
        rows = {
            row[0]: row[1:]
            for row in self.look.execute(
                "SELECT attempt_id, state, billed_nanos, is_estimated, failure FROM attempts"
            )
        }
        assert set(rows) == set(self.attempts)
        for name, attempt in self.attempts.items():
            state, billed, is_estimated, failure = rows[name]
            assert state != "sent"
            if (bool(is_estimated), failure) == (True, CRASHED):
                continue  # nobody told the ledger in time
            assert billed == attempt.billed
        leased = self.look.execute("SELECT coalesce(sum(leased_nanos), 0) FROM budget_windows")
        assert leased.fetchone() == (0,)
        kinds = {alert.kind for alert in self.alerts}
        assert kinds <= {"overrun", "unattributed"}
        assert self.run(verify(self.store, self.home / "here" / "journal")) == []


LedgerMachine.TestCase.settings = settings(
    max_examples=SEEDS,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLedgerMachine = LedgerMachine.TestCase
