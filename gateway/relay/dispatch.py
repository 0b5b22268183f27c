"""Runs one decided request: drives the attempt machine with real attempts and a real client."""

from __future__ import annotations

import asyncio
import secrets as token_source
import time
from collections.abc import Callable, Mapping

from gateway.fleet.fleet import Fleet
from gateway.ledger.ledger import Ledger
from gateway.providers.adapter import Adapter
from gateway.providers.registry import ADAPTERS
from gateway.providers.transport import Transport
from gateway.relay.exchange import Workshop
from gateway.relay.hedge_budget import HedgeBudget
from gateway.relay.job import (
    ClientSink,
    RelayJob,
    RelayLimits,
    RelayResult,
)
from gateway.relay.retry_budget import RetryBudget
from gateway.relay.run import Run
from gateway.wire.pieces import Dialect

__all__ = ["ClientSink", "Relay", "RelayJob", "RelayLimits", "RelayResult"]

CLOSE_S_MAX = 5.0


class Relay:
    """Runs requests; every long-lived thing is given. One for the process."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        fleet: Fleet,
        *,
        secrets: Callable[[str], str | None],
        adapters: Mapping[Dialect, Adapter] = ADAPTERS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: token_source.token_hex(12),
        limits: RelayLimits | None = None,
        retry_budget: RetryBudget | None = None,
        hedge_budget: HedgeBudget | None = None,
    ) -> None:
        self._shop = Workshop(
            transport=transport,
            adapters=adapters,
            ledger=ledger,
            fleet=fleet,
            clock=clock,
            wall_clock=wall_clock,
            secrets=secrets,
            new_id=new_id,
            limits=limits or RelayLimits(),
        )
        self._retries = retry_budget or RetryBudget()
        self._hedges = hedge_budget or HedgeBudget()
        self._runs: set[Run] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # attempts, until their sockets are closed

    @property
    def transport(self) -> Transport:
        """The way to providers, under the network rule; for whoever asks one about itself."""
        return self._shop.transport

    @property
    def num_active(self) -> int:
        return len(self._runs)

    async def run(self, job: RelayJob, client: ClientSink) -> RelayResult:
        """Answer `job` through `client`. Does not raise for what endpoints or client do.

        When the result has an error and the client was not started, the caller must tell it.
        """
        tenant_id = job.caller.tenant_id
        self._retries.begin(tenant_id, self._shop.clock())
        self._hedges.begin(job.policy.rescue.hedge_share_max)
        run = Run(self._shop, job, client, self._retries, self._hedges, self._tasks)
        self._runs.add(run)
        try:
            return await run.run()
        finally:
            self._runs.discard(run)
            self._retries.end(tenant_id)

    def stop_all(self) -> None:
        """The drain limit is reached: every running answer ends with an error in band."""
        for run in self._runs:
            run.stop()

    async def aclose(self) -> None:
        """End what runs and wait until the sockets of all attempts are closed."""
        self.stop_all()
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=CLOSE_S_MAX)
            for task in pending:
                task.cancel()
