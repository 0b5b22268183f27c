"""Results of a provider's batch → ended lines, settled holds and corrections."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.problems import as_api_error, error_answer
from gateway.batch.native.api import LineOutcome, NativeResult
from gateway.batch.native_money import NativeMoney, attempt_id_of
from gateway.core import Endpoint
from gateway.errors import InvalidRequest
from gateway.ledger.corrections import KnownCost, correct_attempts
from gateway.pipeline import Gateway
from gateway.store.batch_work import LineCost, LineResult, keep_costs, keep_results
from gateway.store.batches import BatchRow
from gateway.store.engine import Store
from gateway.store.native_batches import NativeRow
from gateway.wire.pieces import SURFACE_DIALECT, Surface
from gateway.wire.translate import CannotTranslate, translate_answer
from gateway.wire.usage import Usage

ROWS_MAX = 200  # kept in one transaction
TRY_AGAIN = 429  # and all of 500 and above: the line itself is not to blame


class Collecting:
    """What one provider's batch brings. `flush` writes results first, then what they cost."""

    def __init__(
        self, gateway: Gateway, batch: BatchRow, row: NativeRow, money: NativeMoney
    ) -> None:
        self._gateway = gateway
        self._batch = batch
        self._row = row
        self._money = money
        self._surface = Surface(batch.surface)
        self._results: list[LineResult] = []
        self._unpaid: list[tuple[int, Usage | None, str]] = []

    @property
    def is_full(self) -> bool:
        return len(self._results) >= ROWS_MAX

    async def take(self, line_no: int, result: NativeResult, endpoint: Endpoint) -> None:
        """One line's answer or error, in the words of the batch's own API."""
        is_good = result.outcome is LineOutcome.SUCCEEDED
        if not is_good and (result.status_code == TRY_AGAIN or result.status_code >= 500):
            return  # left over: it is sent again
        body, status = result.body, result.status_code or (200 if is_good else 400)
        if is_good and result.surface is not self._surface:
            try:
                body = translate_answer(
                    body,
                    result.surface,
                    self._surface,
                    model=endpoint.model,
                    created=int(self._gateway.wall_clock()),
                    request_id=self._request_id(line_no),
                )
            except CannotTranslate as error:
                await self.refuse(line_no, str(error))
                return
        if is_good:
            self._unpaid.append((line_no, result.usage, "stop"))
        else:
            self._money.release(line_no, "refused in the provider's batch")
        self._results.append(self._result(line_no, status, body, endpoint.id))

    async def refuse(self, line_no: int, message: str) -> None:
        """A line that this endpoint cannot carry, or whose answer has no form in the caller's."""
        await self.fail(line_no, InvalidRequest(message))

    async def fail(self, line_no: int, error: Exception) -> None:
        told = as_api_error(error)
        dialect = SURFACE_DIALECT[self._surface]
        status, _, body, _ = error_answer(told, dialect, self._request_id(line_no), is_kept=True)
        self._money.release(line_no, "not sent")
        self._results.append(self._result(line_no, status, body, ""))

    async def flush(self, store: Store) -> None:
        """Results are kept before they are paid for, so nothing that was paid is asked again."""
        results, self._results = self._results, []
        unpaid, self._unpaid = self._unpaid, []
        if results:
            async with store.begin() as connection:
                await keep_results(connection, results, out_of=("submitted",))
        costs: list[LineCost] = []
        corrections: list[KnownCost] = []
        for line_no, usage, finish in unpaid:
            cost, correction = self._money.settle(self._batch.id, line_no, usage, finish=finish)
            if cost is not None:
                costs.append(cost)
            if correction is not None:
                corrections.append(correction)
        if costs:
            async with store.begin() as connection:
                await keep_costs(connection, costs)
        if corrections:
            now = self._gateway.wall_clock()
            await correct_attempts(store, corrections, kind="native_result", now=now)

    async def release(self, store: Store, line_nos: Sequence[int]) -> None:
        """Lines that the provider did not do; what a crash estimated of them becomes nothing."""
        known = [
            KnownCost(
                attempt_id=attempt_id_of(self._row.id, each), cost_nanos=0, source=self._row.id
            )
            for each in line_nos
            if not self._money.release(each, "not done in the provider's batch")
        ]
        if known:
            now = self._gateway.wall_clock()
            await correct_attempts(store, known, kind="native_result", now=now)

    def _request_id(self, line_no: int) -> str:
        return f"{self._row.id}:{line_no}"

    def _result(self, line_no: int, status: int, body: bytes, endpoint_id: str) -> LineResult:
        return LineResult(
            batch_id=self._batch.id,
            line_no=line_no,
            state="succeeded" if 200 <= status < 300 else "errored",
            status_code=status,
            body=body,
            request_id=self._request_id(line_no),
            endpoint_id=endpoint_id,
            ended_at=self._gateway.wall_clock(),
        )


def line_no_of(custom_id: str) -> int:
    """The line of a custom_id as we gave it to a provider."""
    return int(custom_id.rpartition(":")[2])
