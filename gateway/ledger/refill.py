"""Many waiting holds share one trip to SQL: rounds of refills, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.errors import LedgerUnavailable
from gateway.ledger.leases import Grant

Demands = dict[str, list[int]]  # budget id → the holds that wait for it, in order
Grants = dict[str, Grant]


class Refiller:
    """Collects what is wanted while a round runs; the next round takes all of it together."""

    def __init__(self, lease: Callable[[Demands], Awaitable[Grants]]) -> None:
        self._lease = lease
        self._demands: Demands = {}
        self._next: asyncio.Future[Grants] | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self, budget_ids: list[str], nanos: int | None = None) -> asyncio.Future[Grants]:
        """
        Join the next round. `nanos` is what a waiting hold needs of each; None only tops up.

        The future fails with whatever the round failed with; shield it.
        """
        for budget_id in budget_ids:
            demands = self._demands.setdefault(budget_id, [])
            if nanos is not None:
                demands.append(nanos)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return self._next

    async def _run(self) -> None:
        while self._next is not None:
            await asyncio.sleep(0)  # whoever is ready in this turn of the loop comes along
            demands, self._demands = self._demands, {}
            future, self._next = self._next, None
            try:
                grants = await self._lease(demands)
            except asyncio.CancelledError:
                future.set_exception(LedgerUnavailable("the ledger is closing"))
                future.exception()
                raise
            except Exception as e:
                future.set_exception(e)
                future.exception()  # a top-up has nobody to retrieve it
            else:
                future.set_result(grants)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._next is not None and not self._next.done():
            self._next.set_exception(LedgerUnavailable("the ledger is closing"))
            self._next.exception()
