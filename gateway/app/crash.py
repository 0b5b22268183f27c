"""For tests only: ends this process like a power cut at a named point of the ledger."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from gateway.errors import SetupError

# A test name on purpose: Settings does not know it, the docs for operators do not name it.
KILL_VARIABLE = "LOOPROUTER_TEST_KILL_AT"
POINTS = ("before_hold", "after_hold", "after_sent", "mid_stream", "before_settle_commit")


def kill_point(environ: Mapping[str, str]) -> Callable[[str], None]:
    """
    What the ledger calls at its points; `LOOPROUTER_TEST_KILL_AT=after_sent:40` kills at the 40th.

    Without the variable it does nothing. Raises SetupError for a point that does not exist.
    """
    wanted = environ.get(KILL_VARIABLE, "")
    if not wanted:
        return _live_on
    point, _, count = wanted.partition(":")
    if point not in POINTS or not (count or "1").isdecimal():
        raise SetupError(f"{KILL_VARIABLE} is {wanted[:60]!r}; use POINT:N of {', '.join(POINTS)}")
    passes_left = int(count or "1")

    def die_at(name: str) -> None:
        nonlocal passes_left
        if name == point:
            passes_left -= 1
            if passes_left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return die_at


def _live_on(_name: str) -> None:
    pass
