"""`looprouter admins`: who may use the dashboard. A running server obeys at once."""

from __future__ import annotations

import datetime
import getpass
import time
from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from gateway.cli.support import open_current_store, print_json, print_table, run
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.dashboard.accounts import IssuedAdmin
    from gateway.store.admins import AdminRow

ROLES = ("viewer", "operator", "owner")


@click.group()
def admins() -> None:
    """People who may log in to the dashboard at /admin, and what they may do there."""


@admins.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="viewer",
    show_default=True,
    help="viewer sees all; operator changes keys, budgets and policy; owner admins too.",
)
@click.option("--ask", is_flag=True, help="Ask for a password; default: make a random one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(name: str, role: str, ask: bool, as_json: bool) -> None:
    """Make an admin. A random password is printed now and never again."""
    from gateway.dashboard import accounts

    password = _asked() if ask else None
    settings = Settings.from_environment()

    async def main() -> IssuedAdmin:
        async with open_current_store(settings) as store:
            return await accounts.create_admin(
                store, name, role, now=time.time(), actor=_actor(), password=password
            )

    _print_issued(run(main()), is_shown=not ask, as_json=as_json)


@admins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """Show admins, disabled ones too."""
    from gateway.dashboard import accounts

    settings = Settings.from_environment()

    async def main() -> list[AdminRow]:
        async with open_current_store(settings) as store:
            return await accounts.list_admins(store)

    rows = run(main())
    if as_json:
        print_json(rows)
        return
    print_table(
        [
            [
                row.name,
                row.role,
                "active" if row.disabled_at is None else "disabled",
                _day(row.created_at),
                _day(row.last_login_at),
            ]
            for row in rows
        ],
        ("NAME", "ROLE", "STATE", "CREATED", "LAST LOG-IN"),
    )


@admins.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let the admin in again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def disable(name: str, undo: bool, as_json: bool) -> None:
    """Shut an admin out, everywhere and at once."""
    from gateway.dashboard import accounts

    settings = Settings.from_environment()
    change = accounts.enable_admin if undo else accounts.disable_admin

    async def main() -> AdminRow:
        async with open_current_store(settings) as store:
            return await change(store, name, now=time.time(), actor=_actor())

    row = run(main())
    if as_json:
        print_json(row)
    else:
        click.echo(f"{'Enabled' if undo else 'Disabled'} {row.name}")


@admins.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), help="Give this role as well.")
@click.option("--ask", is_flag=True, help="Ask for a password; default: make a random one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reset(name: str, role: str | None, ask: bool, as_json: bool) -> None:
    """Give an admin a new password and end all sessions of theirs."""
    from gateway.dashboard import accounts

    password = _asked() if ask else None
    settings = Settings.from_environment()

    async def main() -> IssuedAdmin:
        async with open_current_store(settings) as store:
            if role is not None:
                await accounts.set_role(store, name, role, now=time.time(), actor=_actor())
            return await accounts.reset_password(
                store, name, now=time.time(), actor=_actor(), password=password
            )

    _print_issued(run(main()), is_shown=not ask, as_json=as_json)


def _print_issued(issued: IssuedAdmin, *, is_shown: bool, as_json: bool) -> None:
    if as_json:
        shown = {"password": issued.password} if is_shown else {}
        print_json({**msgspec.to_builtins(issued.row), **shown})
    elif is_shown:
        click.echo(issued.password)
        click.echo(
            f"The password of {issued.row.name} ({issued.row.role}); it is not shown again.",
            err=True,
        )
    else:
        click.echo(f"{issued.row.name} ({issued.row.role})")


def _asked() -> str:
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


def _actor() -> str:
    """Who sits at this machine, as audit events name them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


def _day(at: float | None) -> str:
    if at is None:
        return "–"
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d")
