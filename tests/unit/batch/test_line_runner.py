"""Which lines are sent again, when, and how often."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.batch.line_runner import TRIES_MAX, line_body, put_back
from gateway.errors import (
    ApiError,
    BudgetExhausted,
    InvalidRequest,
    NoEligibleEndpoint,
    Overloaded,
    RateLimited,
    UpstreamFailed,
)
from gateway.store.batch_work import ClaimedLine

DEADLINE = 10_000.0


def line(num_tries: int = 1) -> ClaimedLine:
    return ClaimedLine(
        batch_id="b",
        line_no=1,
        custom_id="c",
        offset_bytes=0,
        num_bytes=1,
        model="m",
        lane="p/m#standard",
        num_tries=num_tries,
        tenant_id="t",
        key_id="k",
        surface="chat",
        input_file_id="f",
        deadline_at=DEADLINE,
    )


def test_waits_double_up_to_two_minutes_and_end_after_ten_tries() -> None:
    error = UpstreamFailed("no")
    waits = []
    for tries in range(1, TRIES_MAX):
        back = put_back(line(tries), error, now=0.0)
        assert back is not None
        assert back.is_a_try
        waits.append(back.after_s)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0, 120.0]
    assert put_back(line(TRIES_MAX), error, now=0.0) is None


@pytest.mark.parametrize("error", [Overloaded("full"), RateLimited("slow")])
def test_want_of_room_is_no_try_and_has_no_end(error: ApiError) -> None:
    back = put_back(line(TRIES_MAX + 90), error, now=0.0)
    assert back is not None
    assert (back.after_s, back.is_a_try) == (2.0, False)


@pytest.mark.parametrize("is_capacity", [True, False])
def test_an_endpoint_that_may_never_serve_it_is_a_try_a_full_one_is_none(is_capacity: bool) -> None:
    error = NoEligibleEndpoint("none")
    error.is_capacity = is_capacity
    back = put_back(line(), error, now=0.0)
    assert back is not None
    assert back.is_a_try is not is_capacity
    last = put_back(line(TRIES_MAX), error, now=0.0)
    assert (last is not None) is is_capacity


@pytest.mark.parametrize("error", [InvalidRequest("wrong"), BudgetExhausted("no money")])
def test_what_sending_again_cannot_mend_ends_the_line(error: ApiError) -> None:
    assert put_back(line(), error, now=0.0) is None


@pytest.mark.parametrize(("said_s", "waits_s"), [(0.5, 2.0), (30.0, 30.0), (9_999.0, 120.0)])
def test_a_provider_may_ask_for_a_longer_wait_within_two_minutes(
    said_s: float, waits_s: float
) -> None:
    back = put_back(line(), RateLimited("slow", retry_after_s=said_s), now=0.0)
    assert back is not None
    assert back.after_s == waits_s


def test_nothing_is_put_back_beyond_the_deadline() -> None:
    assert put_back(line(), UpstreamFailed("no"), now=DEADLINE - 1.9) is None
    assert put_back(line(), UpstreamFailed("no"), now=DEADLINE - 2.1) is not None


@pytest.mark.parametrize(("tier", "said"), [("standard", None), ("", None), ("flex", "flex")])
def test_the_lanes_tier_goes_into_the_body(tier: str, said: str | None) -> None:
    given: dict[str, Any] = {"model": "m", "messages": [], "x": 1.50}
    text = json.dumps({"custom_id": "c", "body": given}).encode()
    body = json.loads(line_body(text, tier))
    assert body.pop("service_tier", None) == said
    assert body == given


def test_a_line_without_a_body_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no body"):
        line_body(b'{"custom_id":"c"}', "standard")
