"""Bars on standard error: of a download, and of a run; without a terminal, one line a level."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.load import Level

REFRESH_PER_S = 2.0  # drawing takes processor time from what is measured


@contextmanager
def downloading(total_bytes: int, label: str) -> Iterator[Callable[[int], None]]:
    """Call what is given with the bytes so far."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=_console()
    )
    with bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda so_far: bar.update(task, completed=so_far)


class Shown:
    """The bars of a run."""

    def __init__(self, bar: Progress, num_requests: int, num_asked: int) -> None:
        """`num_asked`: how often each is asked."""
        self._bar = bar
        self._num_asked = num_asked
        self._total = bar.add_task("all", total=num_requests, more="")

    @contextmanager
    def level(self, level: Level) -> Iterator[Callable[[Answer], None]]:
        """Call what is given with every answer."""
        bar = self._bar
        task = bar.add_task(level.label, total=level.num_requests * self._num_asked, more="")
        began_at_s = time.monotonic()
        num_tokens = num_failed = 0

        def done(answer: Answer) -> None:
            nonlocal num_tokens, num_failed
            num_tokens += 0 if answer.failure else answer.num_tokens
            num_failed += bool(answer.failure)
            speed = num_tokens / max(time.monotonic() - began_at_s, 1e-9)
            failed = f", {num_failed} failed" if num_failed else ""
            bar.update(task, advance=1, more=f"{speed:,.0f} tok/s{failed}")
            bar.update(self._total, advance=1)

        yield done
        if not bar.console.is_terminal:
            bar.console.print(f"{level.label}: done, {bar.tasks[task].fields['more']}")


@contextmanager
def playing(levels: Sequence[Level], num_asked: int = 1) -> Iterator[Shown]:
    console = _console()
    bar = Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[more]}"),
        console=console,
        refresh_per_second=REFRESH_PER_S,
        disable=not console.is_terminal,
    )
    with bar:
        yield Shown(bar, num_asked * sum(each.num_requests for each in levels), num_asked)


def _console() -> Console:
    return Console(stderr=True)
