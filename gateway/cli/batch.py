"""`looprouter batch …`: files of requests through a running gateway, by its own API."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli.support import print_json, print_table

if TYPE_CHECKING:
    from gateway.cli.batch_client import BatchClient

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
WATCH_S = 1.0
ENDED = ("completed", "failed", "expired", "cancelled")
_url = click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="LOOPROUTER_URL",
    help="Of the gateway.",
)
_key = click.option(
    "--key",
    envvar="LOOPROUTER_API_KEY",
    show_envvar=True,  # the message of a missing one names the variable, too
    required=True,
    help="An API key of the gateway's.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def batch() -> None:
    """Files of requests, each line by the cheapest lane that keeps the deadline.

    A line is `{"custom_id", "method": "POST", "url", "body"}`, as OpenAI's batch API takes it.
    The gateway's address is --url or LOOPROUTER_URL, its key --key or LOOPROUTER_API_KEY.
    """


@batch.command()
@click.argument("file", type=FILE)
@click.option("--deadline", default="24h", show_default=True, help="10m to 7d.")
@click.option("--max-cost", help="Dollars that it may cost.")
@click.option("--watch", is_flag=True, help="Stay and show how far it is.")
@_url
@_key
@_json
def submit(
    file: Path,
    deadline: str,
    max_cost: str | None,
    *,
    watch: bool,
    url: str,
    key: str,
    as_json: bool,
) -> None:
    """Upload FILE and start its batch; prints the batch's id.

    Where no plan keeps deadline and cost nothing is started, and it says by how much. With --watch
    Ctrl-C leaves the batch running.
    """
    with _client(url, key) as client:
        made = client.create(client.upload(file), deadline=deadline, max_cost=max_cost)
        _warn(made["looprouter"].get("warning"))
        if not watch:
            _show(made, as_json)
            return
        click.echo(made["id"], err=True)
        _show(_watched(client, made), as_json)


@batch.command()
@click.argument("file", type=FILE)
@click.option("--deadline", default="24h", show_default=True, help="10m to 7d.")
@click.option("--max-cost", help="Dollars that it may cost.")
@_url
@_key
@_json
def plan(
    file: Path, deadline: str, max_cost: str | None, *, url: str, key: str, as_json: bool
) -> None:
    """Lanes, cost, finish time and saving of FILE as a batch; nothing is started or spent.

    Exit 1 where no plan keeps deadline and cost.
    """
    with _client(url, key) as client:
        file_id = client.upload(file)
        try:
            found = client.create(file_id, deadline=deadline, max_cost=max_cost, plan_only=True)
        finally:
            client.delete_file(file_id)
    if as_json:
        print_json(found)
    else:
        _show_plan(found)
        _warn(found.get("warning"))
        if found["refusal"]:
            click.echo(f"looprouter: {found['refusal']}", err=True)
    sys.exit(0 if found["is_feasible"] else 1)


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@_url
@_key
@_json
def list_(limit: int, *, url: str, key: str, as_json: bool) -> None:
    """The newest batches of this key's tenant."""
    with _client(url, key) as client:
        rows = client.listing(limit)
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("There are no batches.")
        return
    print_table(
        [
            (
                each["id"],
                each["status"],
                _progress(each),
                each["looprouter"]["cost_usd"],
                _moment(each["looprouter"]["deadline_at"]),
            )
            for each in rows
        ],
        ("BATCH", "STATUS", "LINES", "COST $", "DEADLINE"),
    )


@batch.command()
@click.argument("batch_id")
@_url
@_key
@_json
def show(batch_id: str, *, url: str, key: str, as_json: bool) -> None:
    """One batch: how far it is, what it cost, where its lines are."""
    with _client(url, key) as client:
        _show(client.show(batch_id), as_json)


@batch.command()
@click.argument("batch_id")
@_url
@_key
@_json
def cancel(batch_id: str, *, url: str, key: str, as_json: bool) -> None:
    """Send nothing more of a batch; what ran is paid for and kept."""
    with _client(url, key) as client:
        _show(client.cancel(batch_id), as_json)


@batch.command()
@click.argument("batch_id")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Folder."
)
@_url
@_key
def fetch(batch_id: str, out: Path, *, url: str, key: str) -> None:
    """Write a batch's output and error files into a folder; prints their paths."""
    with _client(url, key) as client:
        found = client.show(batch_id)
        ids = [found[name] for name in ("output_file_id", "error_file_id") if found[name]]
        if not ids:
            from gateway.cli.batch_client import Refused

            raise Refused(f"{batch_id} has no files yet; it is {found['status']}")
        out.mkdir(parents=True, exist_ok=True)
        for file_id in ids:
            click.echo(client.fetch(file_id, out))


def _client(url: str, key: str) -> closing[BatchClient]:
    from gateway.cli.batch_client import BatchClient

    return closing(BatchClient(url, key))


def _warn(warning: str | None) -> None:
    if warning:  # an older gateway gives none
        click.echo(f"warning: {warning}", err=True)


def _watched(client: BatchClient, made: dict[str, Any]) -> dict[str, Any]:
    """Until it has ended, with a bar on standard error."""
    total = made["request_counts"]["total"]
    with click.progressbar(
        length=total, file=sys.stderr, show_eta=False, item_show_func=_bar_text
    ) as bar:
        while made["status"] not in ENDED:
            time.sleep(WATCH_S)
            made = client.show(made["id"])
            done = sum(
                count
                for state, count in made["looprouter"]["lines"].items()
                if state not in ("open", "leased", "submitted")
            )
            bar.update(done - bar.pos, made)
    return made


def _bar_text(made: dict[str, Any] | None) -> str:
    if made is None:
        return ""
    ours = made["looprouter"]
    told = [f"{_progress(made)} lines", f"${ours['cost_usd']} so far"]
    if ours["plan"]:
        told.append(f"${_about(ours['plan']['cost_usd'])} to come")
        told.append(f"done by {_moment(ours['plan']['finish_at'])}")
    return ", ".join(told)


def _show(made: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    ours = made["looprouter"]
    lines = ", ".join(f"{count} {state}" for state, count in sorted(ours["lines"].items()))
    rows: list[tuple[str, object]] = [
        ("batch", made["id"]),
        ("status", made["status"]),
        ("lines", f"{_progress(made)} ({lines})" if lines else _progress(made)),
        ("cost $", f"{ours['cost_usd']} (list price {ours['list_price_usd']})"),
        ("deadline", _moment(ours["deadline_at"])),
    ]
    for name in ("output_file_id", "error_file_id"):
        if made[name]:
            rows.append((name.removesuffix("_file_id"), made[name]))
    for name, value in rows:
        click.echo(f"{name:<9} {value}")
    for problem in (made["errors"] or {}).get("data", []):
        click.echo(f"error     {problem['message']}")
    if ours["plan"] and made["status"] not in ENDED:
        _show_plan(ours["plan"])


def _show_plan(plan: dict[str, Any]) -> None:
    print_table(
        [
            (
                each["lane"],
                each["lines"],
                _about(each["cost_usd"]),
                _moment(each["start_at"]),
                _moment(each["finish_at"]),
            )
            for each in plan["lanes"]
        ],
        ("LANE", "LINES", "COST $", "FROM", "UNTIL"),
    )
    told = f"about ${_about(plan['cost_usd'])}, done by {_moment(plan['finish_at'])}"
    if "saving" in plan:
        share, price = f"{abs(plan['saving']):.0%}", _about(plan["list_price_usd"])
        side = "above" if plan["saving"] < 0 and share != "0%" else "below"
        told += f"; {share} {side} list price (${price})"
    click.echo(told)


def _progress(made: dict[str, Any]) -> str:
    counts = made["request_counts"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['completed'] + counts['failed']} of {counts['total']}{failed}"


def _about(usd: str) -> str:
    """A predicted amount to four digits: more of them would promise what a plan cannot know."""
    amount = Decimal(usd)
    if not amount:
        return "0.00"
    digits = max(2, 3 - amount.adjusted())
    return f"{amount.quantize(Decimal(1).scaleb(-digits)):f}"


def _moment(unix_s: float) -> str:
    """This machine's time and its zone: the dashboard and logs tell UTC."""
    local: Callable[[float], datetime.datetime] = datetime.datetime.fromtimestamp
    return local(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
