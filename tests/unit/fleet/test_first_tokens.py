"""When a first token is late: the p95 of an endpoint's own times for such a prompt."""

from __future__ import annotations

import pytest

from tests.support.fleet_world import facts, serve, world


def test_delay_of_a_hedge_follows_the_endpoint_and_the_prompt() -> None:
    clock, fleet = world("fast/m", "slow/m")
    for step in range(100):
        # One in ten is late: beyond the p90 and within the p95 there is only the late kind.
        serve(fleet, clock, "fast/m", ttft_s=0.2 if step % 10 else 0.9)
        serve(fleet, clock, "slow/m", ttft_s=2.0)
    like = facts(prompt_tokens=1_000)  # as those that were served
    fast_s, slow_s = fleet.ttft_p95_s("fast/m", like), fleet.ttft_p95_s("slow/m", like)

    assert fast_s == pytest.approx(0.9, rel=0.25)
    assert slow_s == pytest.approx(2.0, rel=0.25)
    long_s = fleet.ttft_p95_s("fast/m", facts(prompt_tokens=100_000))
    assert long_s is not None
    assert fast_s is not None
    assert long_s > fast_s


def test_unknown_endpoint_has_no_delay_and_a_new_one_the_beliefs() -> None:
    _, fleet = world("fast/m")
    known_s = fleet.ttft_p95_s("fast/m", facts())

    assert fleet.ttft_p95_s("no/such", facts()) is None
    assert known_s is not None
    assert 0.5 < known_s < fleet.ttft_timeout_s("fast/m", facts())
