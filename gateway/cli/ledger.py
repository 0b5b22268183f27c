"""`looprouter ledger …`: what was spent, and whether all sums balance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli.support import open_current_store, parse_since, print_json, print_table, run
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.ledger.reconcile import Reconciliation

GROUPS = ("model", "key", "endpoint", "day")


@click.group()
def ledger() -> None:
    """Spend, exactly, and the proof that it adds up."""


@ledger.command()
@click.option(
    "--by", type=click.Choice(GROUPS), default="model", show_default=True, help="A row for each."
)
@click.option("--since", help="24h, 7d or a date; default: everything.")
@click.option("--tenant", help="Only this tenant's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; amounts are decimal strings.")
def report(by: str, since: str | None, tenant: str | None, as_json: bool) -> None:
    """Spend by model, key, endpoint or day.

    cost is what providers charge; billed is what clients pay; the rest is the operator's. Attempts
    whose price nobody knows (`unpriced: allow`) are counted as unpriced, not as free.
    """
    from gateway.keys.tenants import tenant_id_of
    from gateway.ledger.report import report as read_report

    settings = Settings.from_environment()
    moment = parse_since(since)

    async def main() -> list[dict[str, object]]:
        async with open_current_store(settings) as store:
            tenant_id = None if tenant is None else await tenant_id_of(store, tenant)
            return await read_report(
                store,
                by=by,  # type: ignore[arg-type]  # click allows GROUPS only
                since=None if moment is None else moment.timestamp(),
                tenant=tenant_id,
            )

    rows = run(main())
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("Nothing was spent.")
        return
    names = ("NAME",) if by == "key" else ()
    print_table(
        [
            [
                row[by],
                *([row["key_name"] or "–"] if by == "key" else []),
                row["attempts"],
                row["input_tokens"],
                row["cached_read_tokens"],
                row["output_tokens"],
                row["cost_usd"],
                row["billed_usd"],
            ]
            for row in rows
        ],
        (by.upper(), *names, "ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "COST $", "BILLED $"),
    )
    num_unpriced = sum(int(str(row["unpriced"])) for row in rows)
    if num_unpriced:
        click.echo(
            f"Not in these sums: {num_unpriced} attempts whose price nobody knows.", err=True
        )


@ledger.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(as_json: bool) -> None:
    """Add everything up again; exit 0 when all sums balance, 1 with what does not."""
    from gateway.ledger.verify import verify as find_problems

    settings = Settings.from_environment()

    async def main() -> list[str]:
        async with open_current_store(settings) as store:
            return await find_problems(store, settings.home / "journal")

    problems = run(main())
    if as_json:
        print_json({"balances": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            click.echo(f"✗ {problem}")
    else:
        click.echo("All sums balance.")
    sys.exit(1 if problems else 0)


@ledger.command()
@click.option("--provider", required=True, help="Its name in the policy.")
@click.option(
    "--export",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A CSV that the provider gave, or the plain one.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="THEIRS=OURS where the export names a model otherwise; may stand several times.",
)
@click.option("--dry-run", is_flag=True, help="Book nothing; say what would be booked.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; amounts are decimal strings.")
def reconcile(
    provider: str, path: Path, models: tuple[str, ...], *, dry_run: bool, as_json: bool
) -> None:
    """Compare the ledger with what a provider says it charged; exit 1 when they drift apart.

    Attempts whose cost was estimated are corrected by new bookings so that each model's day adds
    up; what was settled exactly is never touched. Drift is what then remains: above 1 % of a
    model's day, or in total, it is an alarm. The same file is booked once. docs/reconcile.md has
    the formats.
    """
    from gateway.ledger.exports.reader import open_export
    from gateway.ledger.reconcile import reconcile as compare

    named = dict(_named(text) for text in models)
    settings = Settings.from_environment()
    reader = open_export(path)

    async def main() -> Reconciliation:
        async with open_current_store(settings) as store:
            return await compare(store, reader, provider=provider, models=named, is_dry_run=dry_run)

    found = run(main())
    if as_json:
        from gateway.ledger.reconcile_shown import as_json as shown

        print_json(shown(found))
    else:
        _print_reconciliation(found)
    for alert in found.alerts:
        click.echo(f"alert kind={alert.kind} {alert.message}", err=True)
    sys.exit(1 if found.alerts else 0)


def _named(text: str) -> tuple[str, str]:
    theirs, _, ours = text.partition("=")
    if not (theirs.strip() and ours.strip()):
        raise click.BadParameter(
            f"{text!r} is not THEIRS=OURS, as in gpt-5-chat=gpt-5", param_hint="--model"
        )
    return theirs.strip(), ours.strip()


def _print_reconciliation(found: Reconciliation) -> None:
    from gateway.ledger.reconcile_shown import HEADER, as_row, booked_sentence

    print_table([as_row(each) for each in (*found.days, found.total)], HEADER)
    click.echo(booked_sentence(found))
    if found.num_in_flight:
        click.echo(f"Not in these sums: {found.num_in_flight} attempts in flight.", err=True)
