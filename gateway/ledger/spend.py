"""What an attempt's end, and each correction of it, adds to the roll-ups of spend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.ledger.records import CRASHED, Ended
from gateway.prices.rows import UNPRICED
from gateway.store.rollup_tables import MONEY, SPEND_NAMES
from gateway.store.rollups import Names, Sums
from gateway.wire.usage import BUCKETS, Usage

_NO_TOKENS = (0,) * len(BUCKETS)


class Whose(Protocol):
    """Who an attempt is booked to, and when it was sent."""

    @property
    def tenant_id(self) -> str: ...
    @property
    def team_id(self) -> str: ...
    @property
    def key_id(self) -> str: ...
    @property
    def endpoint_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def lane(self) -> str: ...
    @property
    def at_unix_s(self) -> float: ...


def is_wasted(*, cost_nanos: int, billed_nanos: int, waste_nanos: int, failure: str) -> bool:
    """An attempt that failed was never the client's to pay, whatever it cost."""
    has_failed = cost_nanos == 0 and failure not in ("", CRASHED)
    return billed_nanos == 0 and (waste_nanos > 0 or has_failed)


def add_end(sums: Sums, whose: Whose, end: Ended, *, is_released: bool) -> None:
    """An attempt has ended: it counts once, with all that it cost."""
    is_unpriced = (
        not is_released
        and end.price is not None
        and end.price.source == UNPRICED.source
        and end.cost_nanos == 0
    )
    tokens = _NO_TOKENS if end.usage is None else _tokens(end.usage)
    money = (end.cost_nanos, end.billed_nanos, end.overrun_nanos, end.waste_nanos)
    wasted = is_wasted(
        cost_nanos=end.cost_nanos,
        billed_nanos=end.billed_nanos,
        waste_nanos=end.waste_nanos,
        failure=end.failure,
    )
    counts = (1, int(end.is_estimated), int(is_unpriced))
    names = (
        whose.tenant_id, whose.team_id, whose.key_id, whose.endpoint_id, whose.model, whose.lane,
        wasted,
    )  # fmt: skip
    sums.add(whose.at_unix_s, names, (*counts, *money, *tokens))


def add_correction(
    sums: Sums,
    attempt: Any,
    deltas: Mapping[str, int],
    *,
    cost_before_nanos: int,
    usage_before: Usage,
    usage: Usage | None,
) -> None:
    """What became known of `attempt` (its row): the difference, in the buckets of its end."""
    num_unpriced = 0
    if attempt.price_source == UNPRICED.source:
        cost_nanos = cost_before_nanos + deltas["cost_nanos"]
        num_unpriced = int(cost_nanos == 0) - int(cost_before_nanos == 0)
    tokens = _NO_TOKENS
    if usage is not None:
        before = _tokens(usage_before)
        tokens = tuple(now - then for now, then in zip(_tokens(usage), before, strict=True))
    wasted = is_wasted(
        cost_nanos=attempt.cost_nanos,
        billed_nanos=attempt.billed_nanos,
        waste_nanos=attempt.waste_nanos,
        failure=attempt.failure,
    )
    names: Names = (*(getattr(attempt, name) for name in SPEND_NAMES), wasted)
    money = tuple(deltas[name] for name in MONEY)
    sums.add(attempt.sent_at, names, (0, 0, num_unpriced, *money, *tokens))


def _tokens(usage: Usage) -> tuple[int, ...]:
    return tuple([getattr(usage, bucket) for bucket in BUCKETS])
