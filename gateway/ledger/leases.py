"""Leased slices of budgets in memory: what may still be held, and the arithmetic of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core import NANOS_PER_DOLLAR, dollars
from gateway.errors import BudgetExhausted
from gateway.ledger.windows import Window, rfc3339

SLICE_SHARE_PERCENT = 5
SLICE_NANOS_MAX = NANOS_PER_DOLLAR


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on what one tenant, team or key may spend in a period."""

    id: str
    tenant_id: str
    scope_kind: str
    scope_id: str
    period: str
    limit_nanos: int


@dataclass(frozen=True, slots=True)
class Want:
    """What one refill is asked for: the holds that wait, and what is still free in the lease."""

    demands: tuple[int, ...]
    headroom_nanos: int = 0
    window_start: int = -1  # of the lease that has the headroom; -1 = none


@dataclass(frozen=True, slots=True)
class Grant:
    """What SQL says of one budget's window after a refill. Amounts are absolute, not changes."""

    budget: Budget
    window: Window
    lease_id: str  # "" = nothing is left to lease
    granted_nanos: int
    slice_nanos: int  # what this refill added
    lease_spent_nanos: int  # of this lease, as far as SQL knows
    spent_nanos: int  # of the window, by all holders
    leased_nanos: int  # granted to all holders and not yet spent

    @property
    def remaining_nanos(self) -> int:
        return max(0, self.budget.limit_nanos - self.spent_nanos - self.leased_nanos)

    @property
    def is_over(self) -> bool:
        """The limit was lowered below what is leased: nobody may hold more, only give back."""
        return self.spent_nanos + self.leased_nanos > self.budget.limit_nanos


class Lease:
    """
    One holder's slice of one budget's window. spent + held <= granted, always.

    `granted_nanos` follows SQL; `spent_nanos` runs ahead of SQL by what the journal still owes it.
    """

    __slots__ = (
        "budget_id",
        "ends_at_s",
        "granted_nanos",
        "held_nanos",
        "id",
        "is_revoked",
        "refuses_until_s",
        "slice_nanos",
        "spent_nanos",
        "used_at_s",
        "window_start",
    )

    def __init__(self, lease_id: str, budget_id: str, window_start: int, ends_at_s: float) -> None:
        self.id = lease_id
        self.budget_id = budget_id
        self.window_start = window_start
        self.ends_at_s = ends_at_s  # monotonic; infinite for a total
        self.granted_nanos = 0
        self.spent_nanos = 0
        self.held_nanos = 0
        self.slice_nanos = 0  # the last slice granted
        self.used_at_s = 0.0
        self.refuses_until_s = 0.0  # no slice was left; not asked again before
        self.is_revoked = False  # expired, ended, or over a lowered limit: takes no new hold

    @property
    def unused_nanos(self) -> int:
        return self.granted_nanos - self.spent_nanos - self.held_nanos

    @property
    def headroom_nanos(self) -> int:
        """What a new hold may take."""
        return 0 if self.is_revoked else self.unused_nanos

    @property
    def is_low(self) -> bool:
        return 2 * self.headroom_nanos < self.slice_nanos

    def hold(self, nanos: int, now_s: float) -> None:
        self.held_nanos += nanos
        self.used_at_s = now_s
        assert self.held_nanos + self.spent_nanos <= self.granted_nanos

    def unhold(self, nanos: int, spent_nanos: int = 0) -> None:
        assert 0 <= spent_nanos <= nanos <= self.held_nanos
        self.held_nanos -= nanos
        self.spent_nanos += spent_nanos


def slice_nanos(remaining_nanos: int, headroom_nanos: int, demands: Sequence[int]) -> int:
    """
    How much to lease: max(min(5 % of what remains, $1), what is needed), never over what remains.

    What is needed is the sum of the waiting holds that can be covered, in order. When none of
    them can, nothing is taken, so that one holder's hopeless request starves no other holder.
    """
    available = remaining_nanos + headroom_nanos
    needed = 0
    for demand in demands:
        if needed + demand <= available:
            needed += demand
    if demands and needed == 0:
        return 0
    usual = min(remaining_nanos * SLICE_SHARE_PERCENT // 100, SLICE_NANOS_MAX)
    return min(remaining_nanos, max(usual, needed - headroom_nanos))


def exhausted(
    grant: Grant, *, needed_nanos: int, unwritten_nanos: int, own_held_nanos: int
) -> BudgetExhausted:
    """
    The refusal that says which budget, and by how much.

    `unwritten_nanos` is spent but not yet in SQL; what other holders have leased counts as held.
    """
    budget = grant.budget
    spent = grant.spent_nanos + unwritten_nanos
    held = max(own_held_nanos, budget.limit_nanos - spent - grant.remaining_nanos)
    resets_at = rfc3339(grant.window.end)
    resets = f"it resets at {resets_at}" if resets_at else "it never resets"
    period = "total budget" if budget.period == "total" else f"budget per {budget.period}"
    return BudgetExhausted(
        f"the {budget.scope_kind}'s {period} of ${dollars(budget.limit_nanos)} is used up: "
        f"${dollars(spent)} spent, ${dollars(held)} held by requests in flight or servers, and "
        f"this request may cost ${dollars(needed_nanos)}; {resets}. Lower max_tokens, or raise "
        "the budget",
        detail={
            "budget_id": budget.id,
            "scope": budget.scope_kind,
            "period": budget.period,
            "limit_usd": dollars(budget.limit_nanos),
            "spent_usd": dollars(spent),
            "held_usd": dollars(held),
            "needed_usd": dollars(needed_nanos),
            "resets_at": resets_at,
        },
    )
