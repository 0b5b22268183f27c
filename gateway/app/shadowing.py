"""Shadow mode: the second policy's file is followed, and every decision is shown to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from gateway.app.housekeeping import tell_of_end
from gateway.app.policy_source import FilePolicySource
from gateway.core import FleetSnapshot, FleetView, Plan, RequestFacts
from gateway.errors import PolicyError, SetupError
from gateway.measure.shadow import Shadow
from gateway.pipeline import Gateway
from gateway.policy.backtest import Shift, moved_between, priced_by, seen_by, shift
from gateway.policy.load import Policy
from gateway.prices.book import PriceBook

log = structlog.get_logger()


class ShadowPolicy:
    """The second policy, and its view of the fleet of the first."""

    def __init__(self, source: FilePolicySource) -> None:
        self._source = source
        self._book = PriceBook(unpriced_cap_picos=source.current.unpriced_cap_picos)
        self._of: tuple[str, str, str] | None = None
        self._snapshot: FleetSnapshot | None = None
        self._moved: frozenset[str] = frozenset()

    def judge(self, facts: RequestFacts, plan: Plan, view: FleetView, policy: Policy) -> Shift:
        """What it would do with a request that `policy` has decided as `plan`."""
        mine = self._source.current
        of = (view.snapshot.id, policy.version, mine.version)
        snapshot = self._snapshot
        if snapshot is None or self._of != of:
            self._moved = moved_between(policy, mine)
            snapshot = priced_by(view.snapshot, mine, self._book.rows, self._moved)
            self._of, self._snapshot = of, snapshot
        return shift(facts, plan, view, policy, mine, seen_by(view, snapshot, self._moved))

    async def renewed(self, policy: Policy) -> None:
        """Another version is in force."""
        self._book.set_unpriced_cap(policy.unpriced_cap_picos)
        self._snapshot = None


@asynccontextmanager
async def shadowing(gateway: Gateway, path: Path | None) -> AsyncIterator[None]:
    """Ask the policy at `path` beside the one in force, if there is one; nothing else changes.

    Raises SetupError where it does not load at start; an edit that does not is told and left out.
    """
    if path is None:
        yield
        return
    try:
        source = FilePolicySource(path, gateway.settings.environ)
    except (PolicyError, SetupError) as error:
        raise SetupError(f"the shadow policy does not load: {error}") from error
    policy = ShadowPolicy(source)
    shadow = Shadow(
        policy.judge,
        gateway.metrics.registry,
        version=lambda: source.current.version,
        source=str(path),
        wall_clock=gateway.wall_clock,
        policy_error=lambda: source.last_error,
    )

    async def renewed(current: Policy) -> None:
        await policy.renewed(current)
        shadow.restart()

    tasks = [
        asyncio.create_task(shadow.run()),
        asyncio.create_task(source.follow(renewed, asyncio.Event())),
    ]
    for task in tasks:
        task.add_done_callback(tell_of_end)
    gateway.shadow = shadow
    log.info("shadow policy", source=str(path), version=source.current.version)
    try:
        yield
    finally:
        gateway.shadow = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
