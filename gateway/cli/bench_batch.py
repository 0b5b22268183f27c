"""`looprouter bench batch`: the batch planner in seeded worlds, beside one that knows all."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import rich_click as click

from gateway.cli.support import in_processes, print_table, words


@click.command("batch")
@click.option("--worlds", default="all", show_default=True, help="Comma-separated, or `all`.")
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--jobs", default=0, help="Processes; 0: one a core.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report and JSON.")
def bench_batch(*, worlds: str, seeds: int, jobs: int, out: Path | None) -> None:
    """Plan batches in seeded worlds; print cost, saving and deadlines beside the best possible.

    The best possible is a lower bound that knows every rate, turnaround and job in advance.
    """
    from gateway.simulator.batch.bench import run_task, summarise, tasks_of
    from gateway.simulator.batch.report import HEADER, as_json, as_markdown, rows_of, verdicts
    from gateway.simulator.batch.worlds import WORLDS

    try:
        tasks = tasks_of(WORLDS if worlds == "all" else words(worlds), seeds)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    played = list(in_processes(run_task, tasks, jobs))
    results = summarise(played)
    print_table(rows_of(results), HEADER)
    click.echo()
    for verdict in verdicts(results):
        click.echo(verdict)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        command = shlex.join(["looprouter", *sys.argv[1:]])
        (out / "report.md").write_text(as_markdown(results, command), encoding="utf-8")
        (out / "report.json").write_bytes(as_json(results, played))
        click.echo(f"\nwritten to {out}")
