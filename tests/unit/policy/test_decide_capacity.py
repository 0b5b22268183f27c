"""Decisions when endpoints are full, or asked for a pause."""

from __future__ import annotations

import pytest

from gateway.core import Lane, MachineLoad
from gateway.errors import NoEligibleEndpoint
from gateway.policy.filter import CAPACITY_RULES
from gateway.policy.score import batch_limit
from tests.support.deciding import decide_on, facts_of, order_of, policy_of, reason_of, view_of

PAUSE = {"breaker": "open", "is_cooling": True, "reopens_in_s": 1.5}


def refusal(*, facts: object = None, **live: dict[str, object]) -> NoEligibleEndpoint:
    policy = policy_of(*live)
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy, live=live), *([facts] if facts else []))
    return caught.value


def test_endpoint_that_asked_for_a_pause_is_waited_for_and_not_tried_in_panic() -> None:
    error = refusal(a=PAUSE)

    assert error.is_capacity
    assert error.free_in_s == 1.5
    assert error.retry_after_s == 1.5
    assert error.detail[0]["rule"] == "pause"
    assert error.detail[0]["rule"] in CAPACITY_RULES


def test_a_place_that_any_ending_request_frees_makes_no_time_to_wait_for() -> None:
    error = refusal(a=PAUSE, b={"in_flight": 4, "capacity": 4.0})

    assert error.free_in_s == 0.0
    assert error.retry_after_s == 1.0


def test_broken_endpoint_is_tried_in_panic_rather_than_wait_out_a_long_pause() -> None:
    policy = policy_of("a", "b")
    broken = {"breaker": "open", "reopens_in_s": 5.0}
    live = {"a": {**PAUSE, "reopens_in_s": 30.0}, "b": broken}
    plan = decide_on(policy, view_of(policy, live=live))

    assert plan.is_panic
    assert order_of(plan) == ["b"]
    assert refusal(a=PAUSE, b=broken).is_capacity  # a short one is waited out


@pytest.mark.parametrize(
    ("capacity", "limit"), [(1.0, 1.0), (2.0, 1.0), (8.0, 7.0), (20.0, 19.0), (100.0, 95.0)]
)
def test_batch_leaves_a_place_or_a_twentieth_to_those_who_wait(
    capacity: float, limit: float
) -> None:
    assert batch_limit(capacity) == limit


def test_batch_is_refused_the_last_place_that_interactive_gets() -> None:
    nearly = {"in_flight": 7, "capacity": 8.0}
    policy = policy_of("a")
    plan = decide_on(policy, view_of(policy, live={"a": nearly}))
    error = refusal(facts=facts_of(lane=Lane.BATCH), a=nearly)

    assert order_of(plan) == ["a"]
    assert error.is_capacity
    assert "kept free of batch" in error.message


SILENT = {"is_full": True, "is_silent": True, "in_flight": 3}


def test_silent_machine_is_left_alone_while_another_can_serve() -> None:
    policy = policy_of("a", "b")
    plan = decide_on(policy, view_of(policy, {"a": {"rate": 900}}, {"a": SILENT}))

    assert order_of(plan) == ["b"]
    assert reason_of(plan, "a") == "capacity: it is silent of late"


def test_silent_machine_serves_whoever_has_no_other_and_batch_waits() -> None:
    policy = policy_of("a", "b")
    live = {"a": SILENT, "b": {"in_flight": 64}}
    plan = decide_on(policy, view_of(policy, live=live))
    error = refusal(facts=facts_of(lane=Lane.BATCH), **live)

    assert order_of(plan) == ["a"]
    assert {c.endpoint_id: c.outcome for c in plan.candidates} == {
        "a/x": "chosen",
        "b/x": "excluded",
    }
    assert error.is_capacity


def test_silent_machine_at_its_learned_limit_is_full() -> None:
    error = refusal(a={**SILENT, "in_flight": 64})

    assert error.is_capacity


def test_machine_that_says_it_is_full_is_repelled_by_batch_with_its_numbers() -> None:
    load = MachineLoad(num_waiting=7, kv_blocks_total=10, kv_blocks_used=9)
    live = {"a": {"is_full": True, "in_flight": 2, "capacity": 64.0, "machine": load}}
    policy = policy_of("a", "b")
    batch = decide_on(policy, view_of(policy, live=live), facts_of(lane=Lane.BATCH))
    interactive = decide_on(policy, view_of(policy, live=live))

    assert order_of(batch) == ["b"]
    assert reason_of(batch, "a") == (
        "capacity: it says it is full (7 wait there, 90% of its cache is in use)"
    )
    assert sorted(order_of(interactive)) == ["a", "b"]
