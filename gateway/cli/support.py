"""What every command needs: settings, an open store, one way to print JSON and tables."""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import rich_click as click

from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.store.engine import Store

T = TypeVar("T")
Task = TypeVar("Task")
Found = TypeVar("Found")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine in a loop of its own."""
    return asyncio.run(main)


@asynccontextmanager
async def open_current_store(settings: Settings) -> AsyncIterator[Store]:
    """The configured store, its schema brought up to date first."""
    from gateway.store.engine import open_store
    from gateway.store.migrate import upgrade

    settings.make_home()
    await asyncio.to_thread(upgrade, settings.database_url)
    store = await open_store(settings.database_url, home=settings.home)
    try:
        yield store
    finally:
        await store.close()


def print_json(value: object) -> None:
    """Indented JSON on standard output; nothing else goes there when --json is given."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Left-aligned columns that stay greppable when piped."""
    table = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[idx]) for row in table) for idx in range(len(header))]
    for row in table:
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def words(text: str) -> list[str]:
    """The words of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def in_processes(run: Callable[[Task], Found], tasks: Sequence[Task], jobs: int) -> Iterable[Found]:
    """
    Each task in a process of its own kind (`jobs` at once; 0: one a core), in their order.

    One that fails ends the whole with its error.
    """
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from map(run, tasks)
        return
    # Here, for they would be a tenth of the start of every other command.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(run, tasks), 1):
            if sys.stderr.isatty():
                click.echo(f"\r{number} of {len(tasks)} runs", nl=number == len(tasks), err=True)
            yield found


def parse_since(
    text: str | None, *, now: datetime.datetime | None = None
) -> datetime.datetime | None:
    """`24h`, `7d`, `30m` ago, or an ISO date. Raises click.BadParameter on anything else."""
    if text is None:
        return None
    now = now or datetime.datetime.now(datetime.UTC)
    units = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    if text[:-1].isdigit() and text[-1:] in units:
        return now - datetime.timedelta(seconds=int(text[:-1]) * units[text[-1]])
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; use 24h, 7d or a date such as 2026-01-31", param_hint="--since"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
