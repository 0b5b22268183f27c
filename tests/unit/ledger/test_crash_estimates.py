"""What an attempt is billed whose gateway died under it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.core import PriceRow
from gateway.ledger.records import CRASHED
from gateway.ledger.recovery import estimated_end
from gateway.wire.usage import BUCKETS

PRICE = PriceRow(source="policy", input=1_000, output=2_000)  # 1 and 2 nano-dollars a token


def attempt(**changes: Any) -> Any:
    row = {
        "attempt_id": "a",
        "stream": True,
        "hold_nanos": 10_000,
        "prompt_tokens_estimate": 100,
        "unseen_tokens": 30,
        "price_rows": msgspec.json.encode([PRICE]).decode(),
        "price_tier": "standard",
        **{f"{bucket}_tokens": 0 for bucket in BUCKETS},
        **changes,
    }
    return SimpleNamespace(**row)


@pytest.mark.parametrize(
    ("changes", "output", "cost"),
    [
        # The first token of a stream makes a record, so without one nothing was generated.
        ({}, 0, 100),
        # After a record as much can follow as an endpoint generates until the next.
        ({"input_tokens": 110, "output_tokens": 50}, 80, 110 + 160),
        # A whole answer tells nothing on its way: all that is expected of it.
        ({"stream": False}, 30, 100 + 60),
        # With a record it had come, and the record says all of it.
        ({"stream": False, "input_tokens": 110, "output_tokens": 50}, 50, 110 + 100),
    ],
)
def test_a_crashed_attempt_is_billed_what_was_seen_and_what_may_follow(
    changes: dict[str, int], output: int, cost: int
) -> None:
    end = estimated_end(attempt(**changes), ("lease",), 5.0)

    assert end.usage is not None
    assert end.usage.output == output
    assert (end.cost_nanos, end.billed_nanos, end.overrun_nanos) == (cost, cost, 0)
    assert (end.is_estimated, end.failure, end.lease_ids) == (True, CRASHED, ("lease",))


@pytest.mark.parametrize(("share", "output"), [(0.0, 0), (0.41, 13), (1.0, 30)])
def test_of_a_whole_answer_only_what_its_time_allowed_is_billed(share: float, output: int) -> None:
    end = estimated_end(attempt(stream=False), (), 5.0, share_max=share)

    assert end.usage is not None
    assert (end.usage.input_total, end.usage.output) == (100, output)


def test_a_stream_is_not_judged_by_its_time() -> None:
    row = attempt(input_tokens=110, output_tokens=50)

    end = estimated_end(row, (), 5.0, share_max=0.0)

    assert end.usage is not None
    assert end.usage.output == 80


def test_a_client_never_pays_more_than_the_hold_for_a_crash() -> None:
    end = estimated_end(attempt(stream=False, unseen_tokens=9_000), (), 5.0)

    assert (end.billed_nanos, end.overrun_nanos) == (10_000, end.cost_nanos - 10_000)


def test_an_unpriced_attempt_costs_its_whole_hold() -> None:
    assert estimated_end(attempt(price_rows=""), (), 5.0).cost_nanos == 10_000
