"""`looprouter policy simulate`: a changed policy over the request log."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli.support import parse_since, print_json, print_table, run
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.app.simulating import Simulated
    from gateway.policy.backtest_summary import Comparison, Interval, Side

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
LIMIT = 10_000
REFUSALS_SHOWN = 5


@click.command()
@click.argument("new", type=FILE)
@click.option("--against", type=FILE, help="Compare with this policy; default: what happened.")
@click.option("--since", default="24h", show_default=True, help="24h, 7d or a date.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=LIMIT,
    show_default=True,
    help="The newest so many requests.",
)
@click.option("--assume-keys", is_flag=True, help="Take every provider key as set.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    new: Path, against: Path | None, since: str, limit: int, *, assume_keys: bool, as_json: bool
) -> None:
    """Decide the recorded requests again under NEW; nothing is sent.

    A request that NEW sends where it really went keeps its real time and cost. Others are predicted
    from what was believed at that moment, and counted as predicted. Exit 1 where the log has none.
    """
    from gateway.app.simulating import simulate as over_log

    settings = Settings.from_environment()
    moment = parse_since(since) or datetime.datetime.now(datetime.UTC)
    found = run(
        over_log(
            settings,
            new,
            against=against,
            since_unix_s=moment.timestamp(),
            limit=limit,
            has_every_key=assume_keys,
        )
    )
    if as_json:
        _print_json(found)
    elif found.comparison is None:
        click.echo(f"no request of the log since {since} can be decided again", err=True)
        _print_left_out(found)
    else:
        _print(found, found.comparison)
    sys.exit(0 if found.comparison is not None else 1)


def _print_json(found: Simulated) -> None:
    print_json(
        {
            "comparison": found.comparison,
            "num_read": found.num_read,
            "num_without_snapshot": found.num_without_snapshot,
            "num_not_sent": found.num_not_sent,
            "is_cut": found.is_cut,
            "keyless": found.keyless,
        }
    )


def _print(found: Simulated, comparison: Comparison) -> None:
    old, new = comparison.old, comparison.new
    click.echo(
        f"{comparison.num_requests} requests decided again, {comparison.num_changed} of them "
        f"otherwise; time and money of the {comparison.num_compared} that were answered and "
        "neither side refuses"
    )
    click.echo()
    rows: list[list[object]] = [
        ["predicted", *(_predicted(side, comparison.num_compared) for side in (old, new))],
        ["refused", str(old.num_refused), str(new.num_refused)],
    ]
    if comparison.num_compared:
        rows += [
            ["cost $", _shown(old.cost_usd, 6), _shown(new.cost_usd, 6)],
            ["completion p50 s", _shown(old.p50_s, 3), _shown(new.p50_s, 3)],
            ["completion p95 s", _shown(old.p95_s, 3), _shown(new.p95_s, 3)],
        ]
    rows += [
        [f"share of {endpoint_id} %", _share(old, endpoint_id), _share(new, endpoint_id)]
        for endpoint_id in dict.fromkeys((*new.shares, *old.shares))
    ]
    print_table(rows, ("", old.name.upper(), new.name.upper()))
    _print_differences(comparison)
    _print_notes(found, comparison)


def _predicted(side: Side, num_compared: int) -> str:
    return f"{side.num_predicted} of {num_compared}" if side.num_predicted else "none, all real"


def _share(side: Side, endpoint_id: str) -> str:
    share = side.shares.get(endpoint_id)
    return "–" if share is None else _shown(share, 1, scale=100.0)


def _shown(figure: Interval, digits: int, *, scale: float = 1.0, sign: str = "") -> str:
    """`0.812 (0.790 to 0.834)`; values of a difference carry their sign."""
    value = f"{figure.value * scale:{sign}.{digits}f}"
    if figure.low is None or figure.high is None:
        return value
    low, high = figure.low * scale, figure.high * scale
    return f"{value} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def _print_differences(comparison: Comparison) -> None:
    found = comparison.differences
    if found is None:
        return
    click.echo()
    click.echo(f"{comparison.new.name} less {comparison.old.name}, with 95 % intervals")
    num, old = comparison.num_compared, comparison.old
    rows = [
        ["cost $", _shown(found.cost_usd, 6, sign="+"), _said(found.cost_usd, num, old.cost_usd)],
        ["mean completion s", _shown(found.mean_s, 3, sign="+"), _said(found.mean_s, num)],
        ["p50 s", _shown(found.p50_s, 3, sign="+"), _said(found.p50_s, num, old.p50_s)],
        [
            "p95 s",
            _shown(found.p95_s, 3, sign="+"),
            _said(found.p95_s, num, old.p95_s, is_p95=True),
        ],
    ]
    if found.mean_expected_s is not None and comparison.new.num_predicted:
        expected = found.mean_expected_s
        shown = _shown(expected, 3, sign="+")
        rows.append(["mean, both predicted s", shown, _said(expected, num)])
    print_table(rows, ("", "DIFFERENCE", "SAYS"))


def _said(figure: Interval, num: int, base: Interval | None = None, *, is_p95: bool = False) -> str:
    """What may be claimed of a difference."""
    from gateway.policy.backtest_summary import claim_of

    claim = claim_of(figure, num, base, is_p95=is_p95)
    if claim.word == "too_few":
        return "too few requests to tell"
    if claim.word == "none":
        return "no difference shown"
    if claim.word == "same":
        return "the same"
    return claim.word if claim.share is None else f"{claim.share:.0%} {claim.word}"


def _print_notes(found: Simulated, comparison: Comparison) -> None:
    click.echo()
    if comparison.too_few:
        click.echo(f"note: {comparison.too_few}")
    check = comparison.check
    if check is not None:
        click.echo(
            f"note: the prediction checked on {check.num} requests that were really sent: real "
            f"times are {_shown(check.real_over_predicted, 2)} of predicted (median), "
            f"{_shown(check.inside_90, 0, scale=100.0)} % lie inside the predicted 90 % interval, "
            f"real cost is {check.cost_real_over_predicted:.2f} of predicted"
        )
    for side in (comparison.old, comparison.new):
        for rules, num in list(side.refusals.items())[:REFUSALS_SHOWN]:
            click.echo(f"note: {side.name} refuses {num}: {rules}")
        if side.num_unseen:
            click.echo(
                f"note: {side.name} sends {side.num_unseen} to endpoints whose load was not "
                "recorded with the request; they are taken as idle"
            )
    if comparison.new.num_predicted:
        click.echo(
            "note: what other choices would have changed in load, caches and learning is not in it"
        )
    if found.keyless:
        click.echo(
            f"note: without a key in this environment and so never chosen: "
            f"{', '.join(found.keyless)} (--assume-keys takes them in)"
        )
    _print_left_out(found)


def _print_left_out(found: Simulated) -> None:
    if found.num_without_snapshot:
        click.echo(
            f"note: left out {found.num_without_snapshot} whose recorded beliefs are gone "
            "(kept for 7 days)"
        )
    if found.num_not_sent:
        click.echo(
            f"note: left out {found.num_not_sent} that were never sent: refused for a budget or a "
            "limit, or only explained"
        )
    if found.is_cut:
        click.echo(f"note: only the newest {found.num_read} were read; --limit reads more")
