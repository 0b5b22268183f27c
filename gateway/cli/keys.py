"""`looprouter keys …`: virtual keys. A running server obeys changes within a second."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from gateway.cli.support import open_current_store, print_json, print_table, run
from gateway.core import BUDGET_PERIODS, dollars
from gateway.keys.wanted import Budget, NewKey, nanos_of_dollars
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.store.tenancy import KeyRow

DAYS_MAX = 3_650


@click.group()
def keys() -> None:
    """Virtual keys: who may call, with which scopes, limits and budgets."""


@keys.command()
@click.option("--name", default="", help="A label for reports.")
@click.option("--tenant", default="default", show_default=True, help="Whose keys.")
@click.option("--team", default="default", show_default=True, help="Made if it is not there.")
@click.option("--model", "models", multiple=True, help="A public model it may use; repeatable.")
@click.option("--route", "routes", multiple=True, help="An API it may use (chat, messages, …).")
@click.option("--rpm", type=int, help="Requests a minute.")
@click.option("--tpm", type=int, help="Tokens a minute.")
@click.option("--concurrency", type=int, help="Requests at once.")
@click.option("--budget-usd", help="Dollars it may spend in each period.")
@click.option(
    "--budget-period",
    type=click.Choice(BUDGET_PERIODS),
    default="total",
    show_default=True,
    help="By UTC day, by month, or once and for all.",
)
@click.option("--expires-days", type=click.IntRange(1, DAYS_MAX), help="Days until it ends.")
@click.option("--no-explore", is_flag=True, help="Never spend its requests on exploration.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(
    *,
    name: str,
    tenant: str,
    team: str,
    models: tuple[str, ...],
    routes: tuple[str, ...],
    rpm: int | None,
    tpm: int | None,
    concurrency: int | None,
    budget_usd: str | None,
    budget_period: str,
    expires_days: int | None,
    no_explore: bool,
    as_json: bool,
) -> None:
    """Make a key. Its text is printed now and never again."""
    from gateway.keys import service
    from gateway.keys.tenants import ensure_tenant

    now = time.time()
    budgets: tuple[Budget, ...] = ()
    if budget_usd is not None:
        budgets = (Budget(limit_nanos=nanos_of_dollars(budget_usd), period=budget_period),)
    wanted = NewKey(
        name=name,
        team=team,
        models=models,
        routes=routes,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        concurrency_max=concurrency,
        no_explore=no_explore,
        expires_at=None if expires_days is None else now + expires_days * 86_400,
        budgets=budgets,
    )
    settings = Settings.from_environment()

    async def main() -> service.IssuedKey:
        async with open_current_store(settings) as store:
            tenant_id = await ensure_tenant(store, tenant, team, now=now)
            return await service.create_key(store, settings.pepper(), tenant_id, wanted, now=now)

    issued = run(main())
    if as_json:
        print_json({"key": issued.key, "id": issued.row.id, "team_id": issued.row.team_id})
    else:
        click.echo(issued.key)
        click.echo("Keep it now: it is not shown again.", err=True)


@keys.command("list")
@click.option("--tenant", default="default", show_default=True, help="Whose keys.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(tenant: str, as_json: bool) -> None:
    """Show keys without their secrets."""
    from gateway.keys import service
    from gateway.keys.tenants import tenant_id_of

    settings = Settings.from_environment()

    async def main() -> tuple[list[KeyRow], dict[str, list[str]]]:
        async with open_current_store(settings) as store:
            tenant_id = await tenant_id_of(store, tenant)
            budgets: dict[str, list[str]] = {}
            for row in await service.list_budgets(store, tenant_id):
                shown = f"${dollars(row.limit_nanos)}/{row.period}"
                budgets.setdefault(row.scope_id, []).append(shown)
            return await service.list_all_keys(store, tenant_id), budgets

    rows, budgets = run(main())
    shown = [msgspec.to_builtins(row) for row in rows]
    if as_json:
        print_json([{**row, "budgets": budgets.get(row["id"], [])} for row in shown])
        return
    now = time.time()
    print_table(
        [
            [
                row["id"],
                row["name"] or "–",
                _state(row, now),
                _day(row["created_at"]),
                ", ".join(budgets.get(row["id"], [])) or "–",
                ", ".join(row["models"]) or "all models",
            ]
            for row in shown
        ],
        ("ID", "NAME", "STATE", "CREATED", "BUDGETS", "MODELS"),
    )


def _state(row: dict[str, object], now: float) -> str:
    expires_at = row["expires_at"]
    if row["revoked_at"] is not None:
        return "revoked"
    if isinstance(expires_at, float | int) and expires_at <= now:
        return "expired"
    return "active"


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d")


@keys.command()
@click.argument("key_id")
@click.option("--tenant", default="default", show_default=True, help="Whose keys.")
@click.option("--overlap", default="0s", show_default=True, help="How long the old secret works.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rotate(key_id: str, tenant: str, overlap: str, as_json: bool) -> None:
    """Give a key a new secret; id, budgets and limits stay. The overlap is at most 24h."""
    from gateway.keys import service
    from gateway.keys.tenants import tenant_id_of
    from gateway.policy.units import parse_duration

    settings = Settings.from_environment()

    async def main() -> service.IssuedKey:
        async with open_current_store(settings) as store:
            return await service.rotate_key(
                store,
                settings.pepper(),
                await tenant_id_of(store, tenant),
                key_id,
                now=time.time(),
                overlap_s=parse_duration(overlap),
            )

    issued = run(main())
    if as_json:
        print_json({"key": issued.key, "id": issued.row.id})
    else:
        click.echo(issued.key)


@keys.command()
@click.argument("key_id")
@click.option("--tenant", default="default", show_default=True, help="Whose keys.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def revoke(key_id: str, tenant: str, as_json: bool) -> None:
    """End a key for good."""
    from gateway.keys import service
    from gateway.keys.tenants import tenant_id_of

    settings = Settings.from_environment()

    async def main() -> object:
        async with open_current_store(settings) as store:
            tenant_id = await tenant_id_of(store, tenant)
            return await service.revoke_key(store, tenant_id, key_id, now=time.time())

    row = msgspec.to_builtins(run(main()))
    if as_json:
        print_json(row)
    else:
        click.echo(f"Revoked {row['id']}")


@keys.command()
@click.argument("usd")
@click.option("--key", "key_id", help="Of this key; default: of the whole tenant.")
@click.option("--team", help="Of this team, by id or name.")
@click.option(
    "--period",
    type=click.Choice(BUDGET_PERIODS),
    default="total",
    show_default=True,
    help="By UTC day, by month, or once and for all.",
)
@click.option("--tenant", default="default", show_default=True, help="Whose keys.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def budget(
    usd: str, key_id: str | None, team: str | None, period: str, tenant: str, *, as_json: bool
) -> None:
    """Set what a key, a team or the tenant may spend in each period; `none` lifts the limit.

    A request must fit all three. A running server obeys within a second.
    """
    from gateway.keys import service
    from gateway.keys.tenants import scope_of, tenant_id_of

    if key_id is not None and team is not None:
        raise click.UsageError("give --key or --team, not both; or neither, for the tenant")
    settings = Settings.from_environment()
    wanted = None
    if usd != "none":
        wanted = Budget(limit_nanos=nanos_of_dollars(usd), period=period)

    async def main() -> tuple[str, str]:
        async with open_current_store(settings) as store:
            tenant_id = await tenant_id_of(store, tenant)
            kind, scope_id = await scope_of(store, tenant_id, key=key_id, team=team)
            if wanted is None:
                await service.end_budget_of(
                    store, tenant_id, kind, scope_id, period, now=time.time()
                )
            else:
                await service.set_budget(
                    store, tenant_id, wanted, scope_kind=kind, scope_id=scope_id, now=time.time()
                )
            return kind, scope_id

    kind, scope_id = run(main())
    limit_nanos = None if wanted is None else wanted.limit_nanos
    if as_json:
        print_json({"scope": kind, "id": scope_id, "period": period, "limit_nanos": limit_nanos})
    else:
        limit = "no limit" if wanted is None else f"${usd}"
        click.echo(f"{kind} {scope_id}: {limit} ({period})")
