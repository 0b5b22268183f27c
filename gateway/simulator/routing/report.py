"""The race's outcome as Markdown and JSON: every cell, wins and losses alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.bench import CLAIRVOYANT, CellResult, Ratio
from gateway.simulator.routing.losses import is_rival, losses_table
from gateway.simulator.routing.ours import PREFERENCES

_SHOWN = (
    ("p50_s", "p50 s"),
    ("p95_s", "p95 s"),
    ("p99_s", "p99 s"),
    ("mean_s", "mean s"),
    ("ttft_p50_s", "TTFT p50 s"),
    ("usd_per_kchar", "$ / 1k chars"),
    ("slo_share", "SLO"),
    ("failed_share", "failed"),
    ("explored_share", "explored"),
    ("oscillations_per_10min", "turns / 10 min"),
    ("load_over_fair", "busiest / fair"),
)
_OF_EVENTS = (
    ("leave_s", "left after s"),
    ("leave_requests", "requests in the first 30 s"),
    ("event_share_before", "share before"),
    ("event_share", "share afterwards"),
    ("return_s", "back after s"),
    ("adopt_s", "30 % after s"),
    ("cached_of_ideal", "of ideal cache hits"),
    ("deadline_misses", "deadline misses"),
    ("coverage_50", "50 % interval held"),
    ("coverage_90", "90 % interval held"),
    ("bias_ln", "ln(real / predicted)"),
    ("cold_minute", "first minute cold / warm"),
    ("cold_mean", "mean cold / warm"),
    ("cold_p95", "p95 cold / warm"),
    ("cold_usd", "$ cold / warm"),
    ("cold_for_s", "cold for s"),
)


def as_json(results: Sequence[CellResult]) -> bytes:
    """All of it, for machines."""
    return msgspec.json.format(msgspec.json.encode(list(results)), indent=1)


def as_markdown(results: Sequence[CellResult], command: str, duration_s: float) -> str:
    """The report: how to get it again, claims, one table a cell, where the baselines come from."""
    lines = [
        "# Routers in seeded worlds",
        "",
        f"`{command}`",
        "",
        f"{duration_s / 60.0:g} minutes of traffic a run. Figures are means over seeds; regret is",
        f"the ratio to `{CLAIRVOYANT}`, which knows every draw. Differences are paired by seed,",
        "brackets hold the 95 % bootstrap interval, and where it crosses 0 nothing is claimed.",
        "A request without an answer counts as 60 s. Every run starts cold.",
        "",
    ]
    for result in results:
        lines += _cell(result)
    lines += ["## Losses", "", *losses_table(results), ""]
    lines += ["## Where each rule is written down", ""]
    lines += [f"- `{name}`: {baseline.source}" for name, baseline in BASELINES.items()]
    return "\n".join(lines) + "\n"


def _cell(result: CellResult) -> list[str]:
    lines = [f"## {result.cell.name}", "", f"{result.workload}; {len(result.seeds)} seeds.", ""]
    routers = sorted(result.means, key=lambda name: result.means[name]["p95_s"] or 0.0)
    events = [
        (figure, shown)
        for figure, shown in _OF_EVENTS
        if any(result.means[name].get(figure) for name in routers)
    ]
    columns = [*_SHOWN, *events]
    head = ["router", "p50 regret", "p95 regret", *(shown for _, shown in columns)]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in routers:
        means, regret = result.means[name], result.regrets.get(name, {})
        cells = [
            f"**{name}**" if name in PREFERENCES else name,
            _interval(regret.get("p50_s")),
            _interval(regret.get("p95_s")),
            *(_number(means.get(figure)) for figure, _ in columns),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *_claims(result), ""]


def _claims(result: CellResult) -> list[str]:
    """One line for each of ours: whom it beats, to whom it loses, in p95 and in money."""
    lines = []
    rivals = [each for each in result.comparisons if is_rival(each.other)]
    for router, theirs in groupby(rivals, key=lambda each: each.router):
        listed = list(theirs)
        for figure, shown in (("p95_s", "p95"), ("usd_per_kchar", "$")):
            of_it = [each for each in listed if each.figure == figure]
            won = [each.other for each in of_it if each.verdict == "better"]
            lost = [each.other for each in of_it if each.verdict == "worse"]
            open_ = [each.other for each in of_it if each.verdict == "no claim"]
            lines.append(
                f"- `{router}`, {shown}: lower than {_names(won)}; higher than {_names(lost)}; "
                f"no claim against {_names(open_)}."
            )
    return lines


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _interval(found: Ratio | None) -> str:
    if found is None:
        return ""
    value, low, high = found
    return f"{value:.2f}x" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == 0.0:
        return "0"
    return f"{value:.5f}" if abs(value) < 0.01 else f"{value:.3g}"
