"""`looprouter policy shadow`: what a running gateway's second policy would have done."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import rich_click as click

from gateway.cli.support import print_json, print_table
from gateway.errors import SetupError

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 10.0


@click.command()
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Of a gateway on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def shadow(url: str, as_json: bool) -> None:
    """Show what the shadow policy of a running gateway would have changed.

    Every figure is a prediction for both policies, since its last change or start. Exit 1 where the
    gateway has no shadow policy (`serve --shadow-policy FILE`).
    """
    found = _asked(url.rstrip("/"))
    if as_json:
        print_json(found)
    elif found is None:
        click.echo("no shadow policy: start with `serve --shadow-policy FILE`", err=True)
    else:
        _print(found)
    sys.exit(0 if found is not None else 1)


def _asked(url: str) -> dict[str, Any] | None:
    import httpx

    try:
        answer = httpx.get(f"{url}/status.json", timeout=TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
        found: dict[str, Any] | None = answer.json().get("shadow")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError) as error:
        raise SetupError(
            f"no gateway's status at {url}/status.json: {error}; pass --url"
        ) from error
    return found


def _print(found: dict[str, Any]) -> None:
    since = datetime.datetime.fromtimestamp(found["since_unix_s"]).astimezone()
    click.echo(f"{found['source']} (version {found['policy_version']}), since {since:%F %T}")
    counts = ", ".join(
        f"{found[name]} {name}" for name in ("agreed", "disagreed", "refused", "failed", "skipped")
    )
    click.echo(f"requests: {counts}")
    predicted = found["predicted"]
    click.echo(
        "predicted difference a request (shadow less live): "
        f"{_shown(predicted['seconds_difference'], 3)} s, "
        f"${_shown(predicted['dollars_difference'], 6)}"
    )
    if found["disagreements"]:
        click.echo()
        print_table(
            [
                [
                    each["route"],
                    each["live"],
                    each["shadow"],
                    each["requests"],
                    _shown(each["predicted"]["seconds_difference"], 3),
                    _shown(each["predicted"]["dollars_difference"], 6),
                ]
                for each in found["disagreements"]
            ],
            ("ROUTE", "LIVE", "SHADOW", "REQUESTS", "PREDICTED s", "PREDICTED $"),
        )
    for rules, num in found["refusals"].items():
        click.echo(f"note: it would refuse {num}: {rules}")
    for name in ("policy_error", "last_error"):
        if found[name]:
            click.echo(f"note: {found[name]}")


def _shown(figure: dict[str, Any], digits: int) -> str:
    """`-0.120 (-0.190 to -0.050)`; no interval where there are too few."""
    if not figure["n"]:
        return "–"
    value = f"{figure['mean']:+.{digits}f}"
    if "low" not in figure:
        return value
    return f"{value} ({figure['low']:+.{digits}f} to {figure['high']:+.{digits}f})"
