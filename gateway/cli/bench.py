"""`looprouter bench …`: measure the router against others, in seeded worlds."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import rich_click as click

from gateway.cli.bench_batch import bench_batch
from gateway.cli.support import in_processes, print_table, words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.simulator.routing.bench import CellResult, Ratio

MAIN_WORLDS = "drift,regime,outage"
STALE = "Seconds after which replicas know what others saw; absent: each is alone."
Number = TypeVar("Number", int, float)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measure; print what was found, wins and losses."""


bench.add_command(bench_batch)


@bench.command()
@click.option("--worlds", default=MAIN_WORLDS, show_default=True, help="Comma-separated, or `all`.")
@click.option("--loads", default="1,3", show_default=True, help="Times the traffic's own rate.")
@click.option("--endpoints", default="6", show_default=True, help="How many, 2 to 8.")
@click.option(
    "--workload",
    default=None,
    help="Traffic, comma-separated; absent: azure-conversation (`caching`: mooncake-conversation).",
)
@click.option(
    "--replicas", default=1, show_default=True, type=click.IntRange(1, 64), help="Of the router."
)
@click.option("--stale", default=None, type=click.FloatRange(0, 60), help=STALE)
@click.option(
    "--deadline", default=None, type=click.FloatRange(1), help="Seconds, of each request."
)
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(1, 240))
@click.option("--routers", default="all", show_default=True, help="Comma-separated.")
@click.option("--traces", type=DIRECTORY, help="Public traces; absent: generated traffic.")
@click.option("--jobs", default=0, help="Processes; 0: one a core.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report, JSON and plots.")
def router(
    *,
    worlds: str,
    loads: str,
    endpoints: str,
    workload: str | None,
    replicas: int,
    stale: float | None,
    deadline: float | None,
    seeds: int,
    minutes: float,
    routers: str,
    traces: Path | None,
    jobs: int,
    out: Path | None,
) -> None:
    """Race this router against others' documented rules; print regret, cost and intervals."""
    from gateway.simulator.routing.bench import (
        Task,
        cells_of,
        factory_of,
        router_names,
        run_task,
        summarise,
    )
    from gateway.simulator.routing.worlds import WORLDS

    try:
        cells = cells_of(
            tuple(WORLDS) if worlds == "all" else words(worlds),
            _numbers("--loads", loads, float),
            _numbers("--endpoints", endpoints, int),
            workloads=() if workload is None else _names("--workload", workload),
            num_replicas=replicas,
            stale_s=stale,
            deadline_s=deadline,
        )
        names = router_names() if routers == "all" else _names("--routers", routers)
        for name in names:
            factory_of(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    tasks = [
        Task(
            cell=cell,
            seed=seed,
            duration_s=minutes * 60.0,
            routers=tuple(names),
            traces_dir=str(traces) if traces is not None else "",
        )
        for cell in cells
        for seed in range(1, seeds + 1)
    ]
    results = summarise(list(in_processes(run_task, tasks, jobs)))
    for result in results:
        _show(result)
    if out is not None:
        _write(results, out, minutes * 60.0)


@bench.command()
@click.option("--worlds", default="calm,drift,outage", show_default=True, help="Comma-separated.")
@click.option("--loads", default="1,3", show_default=True, help="Times the traffic's own rate.")
@click.option("--pairs", help="LOGGED:TRIED, comma-separated; absent: four of the three.")
@click.option("--seeds", default=10, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(1, 240))
@click.option("--traces", type=DIRECTORY, help="Public traces; absent: generated traffic.")
@click.option("--jobs", default=0, help="Processes; 0: one a core.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for table and JSON.")
def prediction(
    *,
    worlds: str,
    loads: str,
    pairs: str | None,
    seeds: int,
    minutes: float,
    traces: Path | None,
    jobs: int,
    out: Path | None,
) -> None:
    """Measure how far `policy simulate` is from what then really happens, in seeded worlds."""
    import msgspec

    from gateway.simulator.routing.bench import Task, cells_of
    from gateway.simulator.routing.foretold import PAIRS, errors, errors_table, foretell, pairs_of
    from gateway.simulator.routing.worlds import NUM_ENDPOINTS

    try:
        cells = cells_of(words(worlds), _numbers("--loads", loads, float), [NUM_ENDPOINTS])
        tried = PAIRS if pairs is None else pairs_of(pairs)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    tasks = [
        Task(
            cell=cell,
            seed=seed,
            duration_s=minutes * 60.0,
            routers=(),
            traces_dir=str(traces) if traces is not None else "",
        )
        for cell in cells
        for seed in range(1, seeds + 1)
    ]
    found = errors(
        [
            each
            for rows in in_processes(partial(foretell, pairs=tried), tasks, jobs)
            for each in rows
        ]
    )
    table = "\n".join(errors_table(found))
    click.echo(table)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "prediction.md").write_text(table + "\n", encoding="utf-8")
        (out / "prediction.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(found), indent=1)
        )


def _names(option: str, text: str) -> list[str]:
    """Raises ValueError where there are none: nothing would run, and nobody would be told."""
    found = words(text)
    if not found:
        raise ValueError(f"{option} names nothing")
    return found


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Raises ValueError that names the option and the word."""
    found = []
    for word in words(text):
        try:
            found.append(kind(word))
        except ValueError:
            shown = "whole numbers" if kind is int else "numbers"
            raise ValueError(f"{option} takes {shown}, not {word!r}") from None
    return found


def _show(result: CellResult) -> None:
    click.echo(f"\n{result.cell.name} ({result.workload}, {len(result.seeds)} seeds)")
    is_cold = any(means.get("cold_mean") for means in result.means.values())
    head = ["router", "p50 s", "p95 s", "p50 regret", "p95 regret", "$", "failed", "explored"]
    head += ["mean cold / warm"] if is_cold else []
    rows = []
    for name in sorted(result.means, key=lambda each: result.means[each]["p95_s"] or 0.0):
        means, regret = result.means[name], result.regrets.get(name, {})
        rows.append(
            (
                name,
                f"{means['p50_s']:.2f}",
                f"{means['p95_s']:.2f}",
                _ratio(regret.get("p50_s")),
                _ratio(regret.get("p95_s")),
                f"{means['usd']:.2f}",
                f"{means['failed_share']:.2%}",
                f"{means['explored_share']:.2%}",
                *([f"{means['cold_mean']:.3f}"] if is_cold else []),
            )
        )
    print_table(rows, head)


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return ""
    value, low, high = found
    return f"{value:.2f}x" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _write(results: Sequence[CellResult], out: Path, duration_s: float) -> None:
    from gateway.simulator.routing.losses import losses, losses_table
    from gateway.simulator.routing.plots import plots
    from gateway.simulator.routing.report import as_json, as_markdown

    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["looprouter", *sys.argv[1:]])
    (out / "report.md").write_text(as_markdown(results, command, duration_s), encoding="utf-8")
    (out / "report.json").write_bytes(as_json(results))
    (out / "losses.md").write_text("\n".join(losses_table(results)) + "\n", encoding="utf-8")
    for name, svg in plots(results).items():
        (out / name).write_text(svg, encoding="utf-8")
    click.echo(f"\nwritten to {out}; worse than a rival in {len(losses(results))} figures")
