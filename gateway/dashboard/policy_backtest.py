"""`looprouter policy simulate` for a text that is nobody's file yet, as a process of its own.

A process, and not a thread: deciding thousands of requests again is Python all the way, and would
stand before every request that the gateway serves. It can be ended when its time is over, and its
memory goes with it. One runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from gateway.dashboard.page import Desk
from gateway.errors import ApiError, Conflict, InvalidRequest
from gateway.policy.backtest_summary import Comparison
from gateway.settings import PREFIX, Settings

HOURS_MAX = 7 * 24  # for so long beliefs are kept
ROWS_MAX = 10_000
TIME_S_MAX = 60.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
NICENESS = 10  # requests come first
SAID_CHARS_MAX = 300  # characters of what a failed run said

Against = Literal["happened", "live"]


class BacktestWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Of the newest `rows_max` requests since so many hours."""

    against: Against = "happened"
    hours: float = 24.0
    rows_max: int = 5_000


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """What `looprouter policy simulate --json` says; the old side is `against`."""

    comparison: Comparison | None  # null = there was no request to decide again
    num_read: int
    num_without_snapshot: int  # left out: the beliefs they were decided on are gone
    num_not_sent: int  # left out: only explained
    is_cut: bool  # there are more requests than `rows_max`
    keyless: list[str]  # endpoints without a key here, so never chosen


class Failed(ApiError):
    """The run ended without an answer."""

    status = 503
    code = "backtest_failed"


class Backtests:
    """Runs one at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._is_running = False

    async def run(self, new: bytes, live: bytes, wanted: BacktestWanted) -> Backtest:
        """Both texts are known to load. Conflict while another runs; ApiError for what fails."""
        check_wanted(wanted)
        if self._is_running:
            raise Conflict(
                "a backtest is running; one runs at a time, try again when it is done",
                code="backtest_running",
            )
        self._is_running = True
        try:
            with tempfile.TemporaryDirectory(prefix="looprouter-backtest-") as folder:
                settings = self._desk.gateway.settings
                return await _run(settings, Path(folder), (new, live), wanted)
        finally:
            self._is_running = False


def check_wanted(wanted: BacktestWanted) -> None:
    """InvalidRequest says which limit was passed."""
    if not 0.0 < wanted.hours <= HOURS_MAX:
        raise InvalidRequest(
            f"hours: {wanted.hours:g} is not above 0 and at most {HOURS_MAX}; what requests were "
            "decided on is kept for 7 days",
            param="hours",
        )
    if not 1 <= wanted.rows_max <= ROWS_MAX:
        raise InvalidRequest(
            f"rows_max: {wanted.rows_max} is not 1 to {ROWS_MAX:,}; `looprouter policy simulate` "
            "takes more",
            param="rows_max",
        )


async def _run(
    settings: Settings, folder: Path, texts: tuple[bytes, bytes], wanted: BacktestWanted
) -> Backtest:
    new, live = folder / "new.yaml", folder / "live.yaml"
    for path, text in zip((new, live), texts, strict=True):
        path.write_bytes(text)
    against = ("--against", str(live)) if wanted.against == "live" else ()
    minutes = max(1, round(wanted.hours * 60))
    options = ("--since", f"{minutes}m", "--limit", str(wanted.rows_max), "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "policy", "simulate", str(new), *against, *options,
        env=_environ(settings), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=ANSWER_BYTES_MAX,
    )  # fmt: skip
    try:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        async with asyncio.timeout(TIME_S_MAX):
            said, complained = await process.communicate()
    except TimeoutError:
        raise Failed(
            f"the backtest took longer than {TIME_S_MAX:.0f} s and was ended; take fewer hours or "
            "requests, or run `looprouter policy simulate`",
            code="backtest_too_long",
        ) from None
    finally:
        if process.returncode is None:  # our time is over, or who asked has left
            process.kill()
            await process.wait()
    if len(said) > ANSWER_BYTES_MAX:
        raise Failed("the backtest's answer is too long; take fewer requests")
    try:
        return msgspec.json.decode(said, type=Backtest)
    except msgspec.DecodeError:
        last = complained.decode(errors="replace").strip()[-SAID_CHARS_MAX:]
        raise Failed(f"the backtest ended without a result: {last or 'no word'}") from None


def _environ(settings: Settings) -> dict[str, str]:
    """As this process was set up, and where it keeps its data."""
    return {
        **settings.environ,
        f"{PREFIX}HOME": str(settings.home),
        f"{PREFIX}DATABASE_URL": settings.database_url,
    }
