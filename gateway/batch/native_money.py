"""Holds of lines that a provider's batch works on: one a line, at the tier `batch`.

They live in this process. After a restart the ledger's recovery has booked estimates in their
place; the results then correct those by entries of their own.
"""

from __future__ import annotations

import math

from gateway.core import Caller, Endpoint, FleetSnapshot, Lane, PriceRow
from gateway.ledger.corrections import KnownCost
from gateway.ledger.ledger import Ledger
from gateway.ledger.records import CRASHED, Hold, HoldRequest, Settlement
from gateway.prices.rows import BATCH, STANDARD, UNPRICED, cost_nanos, hold_nanos, pick_row
from gateway.relay.money import (
    OUTPUT_TOKENS_UNKNOWN,
    PROMPT_OVERHEAD_TOKENS,
    TOKENS_PER_BYTE_MARGIN,
    TOKENS_PER_BYTE_UNKNOWN,
)
from gateway.store.batch_work import LineCost
from gateway.wire.requests import ParsedRequest
from gateway.wire.usage import Usage


def attempt_id_of(native_id: str, line_no: int) -> str:
    """Worked out, not kept: after a restart a result finds its attempt by it."""
    return f"att_{native_id}_{line_no}"


class NativeMoney:
    """The open holds of one provider's batch, by line."""

    def __init__(
        self, ledger: Ledger, endpoint: Endpoint, snapshot: FleetSnapshot, *, native_id: str
    ) -> None:
        self._ledger = ledger
        self._endpoint = endpoint
        self._native_id = native_id
        self._rows: tuple[PriceRow, ...] = snapshot.prices.get(endpoint.id, ()) or (UNPRICED,)
        stats = snapshot.stats.get(endpoint.id)
        self._per_byte = stats.tokens_per_byte_p99 if stats is not None else TOKENS_PER_BYTE_UNKNOWN
        self._holds: dict[int, Hold] = {}
        self._expected: dict[int, Usage] = {}

    @property
    def num_open(self) -> int:
        return len(self._holds)

    async def hold(self, line_no: int, parsed: ParsedRequest, caller: Caller, model: str) -> None:
        """Raises BudgetExhausted or LedgerUnavailable: then the line must not be sent."""
        prompt = math.ceil(parsed.text_bytes * self._per_byte * TOKENS_PER_BYTE_MARGIN)
        asked = parsed.max_tokens or self._endpoint.output_tokens_max or OUTPUT_TOKENS_UNKNOWN
        asked *= max(1, parsed.num_choices)
        request = HoldRequest(
            attempt_id=attempt_id_of(self._native_id, line_no),
            request_id=f"{self._native_id}:{line_no}",
            caller=caller,
            endpoint_id=self._endpoint.id,
            model=model,
            surface=parsed.surface.value,
            stream=False,
            hold_nanos=hold_nanos(
                self._rows,
                prompt_tokens_max=prompt + PROMPT_OVERHEAD_TOKENS,
                output_tokens_max=asked,
                tier=BATCH,
                writes_cache=False,
            ),
            rows=self._rows,
            tier=BATCH,
            prompt_tokens_estimate=prompt,
            provider=self._endpoint.provider,
            is_simulated=self._endpoint.is_simulated,
            unseen_tokens=asked,
            lane=Lane.BATCH.value,
        )
        self._holds[line_no] = await self._ledger.reserve(request)
        self._expected[line_no] = Usage(input=prompt, output=asked)

    def release(self, line_no: int, reason: str) -> bool:
        """The provider did no work on it. False: the hold is not ours any more (a restart)."""
        hold = self._holds.pop(line_no, None)
        if hold is not None:
            self._ledger.release(hold, reason)
        return hold is not None

    def release_all(self, reason: str) -> None:
        for line_no in list(self._holds):
            self.release(line_no, reason)

    def estimate_all(self) -> None:
        """Settle what is held by what was expected: it may have been done, and we cannot know."""
        for line_no, hold in self._holds.items():
            said = self._expected[line_no]
            row = pick_row(self._rows, tier=BATCH, context_tokens=said.input_total)
            cost = cost_nanos(row, said) if row.is_priced else hold.hold_nanos
            self._ledger.settle(
                hold,
                Settlement(
                    usage=said, cost_nanos=cost, price=row, is_estimated=True, failure=CRASHED
                ),
            )
        self._holds.clear()

    def settle(
        self, batch_id: str, line_no: int, usage: Usage | None, *, finish: str
    ) -> tuple[LineCost | None, KnownCost | None]:
        """
        The line's cost, and what is to be corrected where its hold did not outlive a restart.

        Without a word on its usage it costs what was expected; after a restart the ledger's own
        estimate stands, and no cost is told here.
        """
        hold = self._holds.pop(line_no, None)
        is_estimated = usage is None
        if usage is None and hold is None:
            return None, None
        said = usage or self._expected[line_no]
        row = pick_row(self._rows, tier=BATCH, context_tokens=said.input_total)
        cost = cost_nanos(row, said)
        listed = pick_row(self._rows, tier=STANDARD, context_tokens=said.input_total)
        attempt_id = attempt_id_of(self._native_id, line_no)
        billed, correction = cost, None
        if hold is not None:
            settlement = Settlement(
                usage=said, cost_nanos=cost, price=row, is_estimated=is_estimated, finish=finish
            )
            billed = self._ledger.settle(hold, settlement).billed_nanos
        else:
            correction = KnownCost(
                attempt_id=attempt_id, cost_nanos=cost, usage=said, source=self._native_id
            )
        line_cost = LineCost(
            batch_id=batch_id,
            line_no=line_no,
            attempt_id=attempt_id,
            cost_nanos=cost,
            billed_nanos=billed,
            list_nanos=cost_nanos(listed, said),
            is_estimated=is_estimated,
        )
        return line_cost, correction
