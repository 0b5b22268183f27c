"""Which tier's price an answer is billed at."""

from __future__ import annotations

import pytest

from gateway.core import AttemptOutcome, PriceRow
from gateway.prices.rows import tier_at_once
from gateway.relay.money import settlement_for
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

ROWS = tuple(
    PriceRow(source="genai-prices", tier=tier, input=picos, output=picos)
    for tier, picos in (("standard", 4_000), ("flex", 2_000), ("priority", 8_000), ("batch", 1_000))
)


@pytest.mark.parametrize(
    ("asked", "served", "billed"),
    [
        ("flex", "flex", "flex"),
        ("flex", "", "flex"),  # it does not say
        ("flex", "default", "standard"),  # flex was full
        ("standard", "priority", "priority"),  # the account's own default
        ("priority", "default", "standard"),
        ("standard", "batch", "standard"),
        ("standard", "something new", "standard"),
    ],
)
def test_answer_is_billed_at_the_tier_it_was_served_at(
    asked: str, served: str, billed: str
) -> None:
    outcome = AttemptOutcome(
        attempt_id="a",
        request_id="r",
        endpoint_id="e",
        surface=Surface.CHAT,
        stream=False,
        dispatched_at_s=0.0,
        usage=Usage(input=10, output=10),
        tier_served=served,
    )
    settled = settlement_for(outcome, ROWS, asked, None, is_whole=True)

    assert settled.price is not None
    assert settled.price.tier == billed


@pytest.mark.parametrize(
    ("asked", "own", "tier"),
    [
        ("standard", "standard", "standard"),
        ("standard", "flex", "flex"),
        ("priority", "flex", "priority"),
        ("batch", "standard", "standard"),
        ("standard", "batch", "standard"),
    ],
)
def test_what_is_waited_for_never_has_the_batch_price(asked: str, own: str, tier: str) -> None:
    assert tier_at_once(asked, own) == tier
