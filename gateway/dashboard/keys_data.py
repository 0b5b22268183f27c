"""Keys and budgets as the page and the admin API show and take them: one home for both."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.core import dollars
from gateway.dashboard.page import Desk
from gateway.dashboard.queries_burn import BurnCurve, curves_above, spend_of_key
from gateway.errors import NotFound
from gateway.keys import changing, service
from gateway.keys.wanted import DEFAULT_NAME, Budget, NewKey, nanos_of_dollars
from gateway.ledger.burn import Burn, burn_down
from gateway.store import tenancy
from gateway.store.tenancy import KeyRow, TeamRow, TenantRow

KEYS_A_PAGE = 200


class KeyWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a key is to be. Empty lists and null mean: no such restriction."""

    name: str = ""
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency_max: int | None = None
    no_explore: bool = False
    expires_at: float | None = None  # unix seconds


class BudgetWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit of spending. `limit_usd` is a decimal string of dollars."""

    limit_usd: str
    period: str = "total"  # "day" | "month" | "total"


class NewKeyWanted(KeyWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to be made, with its team and its budgets."""

    team: str = DEFAULT_NAME
    budgets: tuple[BudgetWanted, ...] = ()


class BudgetShown(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in its present window. Dollars are decimal strings, instants unix seconds."""

    id: str
    scope_kind: str
    scope_id: str
    period: str
    limit_usd: str
    spent_usd: str
    leased_usd: str  # lent to serving processes and not spent yet
    left_usd: str
    share: float  # spent of the limit
    resets_at: float | None
    empty_at: float | None  # at the pace of this window; null = not before it resets


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    team: str
    state: str  # "active" | "expired" | "revoked"
    models: tuple[str, ...]
    routes: tuple[str, ...]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency_max: int | None
    no_explore: bool
    created_at: float
    rotated_at: float | None
    expires_at: float | None
    revoked_at: float | None
    budgets: list[BudgetShown]


class KeyOpened(KeyShown, frozen=True, kw_only=True):
    """One key with what it spent: `days` are (UTC day, dollars billed) of the last 30 days."""

    days: list[tuple[str, str]]
    curves: list[BurnCurve]  # one for each of `budgets`, in their order


class KeyIssued(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its whole text, which is shown this once."""

    key: str
    id: str

    def __repr__(self) -> str:
        return f"KeyIssued(id={self.id!r})"


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a tenant's keys, oldest first, and all budgets above single keys."""

    tenant: str
    keys: list[KeyShown]
    budgets: list[BudgetShown]  # of the tenant and its teams
    curves: list[BurnCurve]  # one for each of `budgets`, in their order
    teams: list[TeamRow]
    next: str | None  # give it as `after` for the next page; null = this is the last


async def tenants_of(desk: Desk) -> list[TenantRow]:
    """All tenants by name."""
    async with desk.gateway.store.read() as connection:
        return await tenancy.list_tenants(connection)


async def tenant_of(desk: Desk, name: str) -> TenantRow:
    """The tenant of a name; `default` is made on first use. NotFound for any other."""
    store = desk.gateway.store
    async with store.read() as connection:
        found = await tenancy.find_tenant_named(connection, name or DEFAULT_NAME)
    if found is not None:
        return found
    if name in ("", DEFAULT_NAME):
        return await service.ensure_default_tenant(store, now=desk.gateway.wall_clock())
    raise NotFound(f"there is no tenant {name[:60]!r}", param="tenant")


async def list_keys(desk: Desk, tenant: TenantRow, *, after: str = "") -> KeyList:
    """A page of keys with what is left of their budgets, in six statements however many."""
    store = desk.gateway.store
    async with store.read() as connection:
        place = _place_of(after)
        rows = await tenancy.list_keys(connection, tenant.id, limit=KEYS_A_PAGE, after=place)
        teams = await tenancy.list_teams(connection, tenant.id)
        budgets = await tenancy.list_budgets(connection, tenant.id)
        shown = {row.id for row in rows}
        wanted = [row for row in budgets if row.scope_kind != "key" or row.scope_id in shown]
        now = await store.database_now(connection)
        burns = await burn_down(connection, tenant.id, wanted, now=now)
        above = [burn for burn in burns if burn.budget.scope_kind != "key"]
        curves = await curves_above(connection, tenant.id, above, now=now)
    more = f"{rows[-1].created_at!r}:{rows[-1].id}" if len(rows) == KEYS_A_PAGE else None
    return KeyList(
        tenant=tenant.name,
        keys=[_key_shown(row, teams, burns, now) for row in rows],
        budgets=[_budget_shown(burn) for burn in above],
        curves=curves,
        teams=teams,
        next=more,
    )


async def find_key(desk: Desk, tenant: TenantRow, key_id: str) -> KeyOpened:
    """One key with its budgets and what it spent. NotFound when the tenant has none of that id."""
    store = desk.gateway.store
    async with store.read() as connection:
        row = await tenancy.find_key(connection, tenant.id, key_id)
        if row is None:
            raise NotFound(f"there is no key {key_id[:60]!r} in this tenant", param="key_id")
        teams = await tenancy.list_teams(connection, tenant.id)
        budgets = await tenancy.list_budgets(connection, tenant.id)
        own = [each for each in budgets if (each.scope_kind, each.scope_id) == ("key", row.id)]
        now = await store.database_now(connection)
        burns = await burn_down(connection, tenant.id, own, now=now)
        days, curves = await spend_of_key(connection, tenant.id, row.id, burns, now=now)
    shown = msgspec.structs.asdict(_key_shown(row, teams, burns, now))
    return KeyOpened(**shown, days=days, curves=curves)


async def create_key(
    desk: Desk, tenant: TenantRow, wanted: NewKeyWanted, *, actor: str
) -> KeyIssued:
    """Make a key; its text is in the result and nowhere else."""
    gateway = desk.gateway
    new = msgspec.structs.replace(
        _new_key(wanted),
        team=wanted.team,
        budgets=tuple(_budget(each) for each in wanted.budgets),
    )
    issued = await service.create_key(
        gateway.store,
        gateway.settings.pepper(),
        tenant.id,
        new,
        now=gateway.wall_clock(),
        actor=actor,
    )
    return KeyIssued(key=issued.key, id=issued.row.id)


async def change_key(
    desk: Desk, tenant: TenantRow, key_id: str, wanted: KeyWanted, *, actor: str
) -> None:
    """Other scopes, limits and expiry for a key."""
    gateway = desk.gateway
    now = gateway.wall_clock()
    await changing.change_key(
        gateway.store, tenant.id, key_id, _new_key(wanted), now=now, actor=actor
    )
    gateway.authenticator.invalidate()


async def rotate_key(
    desk: Desk, tenant: TenantRow, key_id: str, *, overlap_s: float, actor: str
) -> KeyIssued:
    """A new secret; the old one works for `overlap_s` more."""
    gateway = desk.gateway
    issued = await service.rotate_key(
        gateway.store,
        gateway.settings.pepper(),
        tenant.id,
        key_id,
        now=gateway.wall_clock(),
        overlap_s=overlap_s,
        actor=actor,
    )
    gateway.authenticator.invalidate()
    return KeyIssued(key=issued.key, id=issued.row.id)


async def revoke_key(desk: Desk, tenant: TenantRow, key_id: str, *, actor: str) -> None:
    """End a key: here at once, in other serving processes within a second."""
    gateway = desk.gateway
    now = gateway.wall_clock()
    await service.revoke_key(gateway.store, tenant.id, key_id, now=now, actor=actor)
    gateway.authenticator.invalidate()


async def set_budget(
    desk: Desk,
    tenant: TenantRow,
    wanted: BudgetWanted,
    *,
    scope_kind: str,
    scope_id: str,
    actor: str,
) -> None:
    """Create or change the budget of the tenant (`scope_id` may be ""), a team or a key."""
    gateway = desk.gateway
    await service.set_budget(
        gateway.store,
        tenant.id,
        _budget(wanted),
        scope_kind=scope_kind,
        scope_id=tenant.id if scope_kind == "tenant" and not scope_id else scope_id,
        now=gateway.wall_clock(),
        actor=actor,
    )
    gateway.authenticator.invalidate()


async def end_budget(desk: Desk, tenant: TenantRow, budget_id: str, *, actor: str) -> None:
    """Take a budget out of force; what was spent under it stays on record."""
    gateway = desk.gateway
    now = gateway.wall_clock()
    await service.end_budget(gateway.store, tenant.id, budget_id, now=now, actor=actor)
    gateway.authenticator.invalidate()


def _new_key(wanted: KeyWanted) -> NewKey:
    return NewKey(**{name: getattr(wanted, name) for name in KeyWanted.__struct_fields__})


def _budget(wanted: BudgetWanted) -> Budget:
    return Budget(limit_nanos=nanos_of_dollars(wanted.limit_usd), period=wanted.period)


def _place_of(after: str) -> tuple[float, str] | None:
    at, _, key_id = after.partition(":")
    try:
        return (float(at), key_id) if after else None
    except ValueError:
        raise NotFound("there is no such page of keys; start without `after`") from None


def _key_shown(
    row: KeyRow, teams: Sequence[TeamRow], burns: Sequence[Burn], now: float
) -> KeyShown:
    values = msgspec.structs.asdict(row)
    kept = {name: values[name] for name in KeyShown.__struct_fields__ if name in values}
    return KeyShown(
        **kept,
        team=next((team.name for team in teams if team.id == row.team_id), row.team_id),
        state=_state(row, now),
        budgets=[
            _budget_shown(burn)
            for burn in burns
            if (burn.budget.scope_kind, burn.budget.scope_id) == ("key", row.id)
        ],
    )


def _state(row: KeyRow, now: float) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "active"


def _budget_shown(burn: Burn) -> BudgetShown:
    row = burn.budget
    return BudgetShown(
        id=row.id,
        scope_kind=row.scope_kind,
        scope_id=row.scope_id,
        period=row.period,
        limit_usd=dollars(row.limit_nanos),
        spent_usd=dollars(burn.spent_nanos),
        leased_usd=dollars(burn.leased_nanos),
        left_usd=dollars(burn.left_nanos),
        share=burn.share,
        resets_at=burn.resets_at,
        empty_at=burn.empty_at,
    )
