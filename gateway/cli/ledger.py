"""`looprouter ledger …`: what was spent, and whether all sums balance."""

from __future__ import annotations

import sys

import rich_click as click

from gateway.cli.support import open_current_store, parse_since, print_json, print_table, run
from gateway.settings import Settings

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
    print_table(
        [
            [
                row[by],
                row["attempts"],
                row["input_tokens"],
                row["cached_read_tokens"],
                row["output_tokens"],
                row["cost_usd"],
                row["billed_usd"],
            ]
            for row in rows
        ],
        (by.upper(), "ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "COST $", "BILLED $"),
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
