"""What an operator holds back gets nothing new, says so, and is forgotten by nobody."""

from __future__ import annotations

import pytest

from gateway.core import FleetView
from gateway.errors import NoEligibleEndpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.holds import Holds, as_if_not_held
from gateway.policy.filter import HELD
from gateway.store.holds import DRAINING, MODES, PAUSED, HoldRow
from tests.support.deciding import decide_on, facts_of, policy_of, reason_of
from tests.support.fleet_world import Clock, endpoint, failed, make_fleet

IDS = ("a/x", "b/x")


def held(endpoint_id: str, mode: str = PAUSED) -> dict[str, HoldRow]:
    return {endpoint_id: HoldRow(endpoint_id=endpoint_id, mode=mode, actor="admin:ana")}


def view(fleet: Fleet) -> FleetView:
    return fleet.view(facts_of(), IDS)


@pytest.mark.parametrize("mode", MODES)
def test_held_endpoint_is_not_chosen_and_the_explanation_says_why(mode: str) -> None:
    fleet, policy = make_fleet(*IDS, clock=Clock()), policy_of("a", "b")
    holds = Holds()
    before = decide_on(policy, view(fleet))
    holds.obey(fleet, held("a/x", mode))
    during = decide_on(policy, view(fleet))
    holds.obey(fleet, {})
    after = decide_on(policy, view(fleet))

    assert set(before.order) == set(after.order) == set(IDS)
    assert during.order == ("b/x",)
    assert reason_of(during, "a") == f"held: {HELD[mode]}"


def test_request_without_another_endpoint_is_refused_at_once_and_not_queued() -> None:
    fleet, policy = make_fleet("a/x", clock=Clock()), policy_of("a")
    Holds().obey(fleet, held("a/x"))

    with pytest.raises(NoEligibleEndpoint, match="an operator paused it") as refused:
        decide_on(policy, fleet.view(facts_of(), ["a/x"]))

    assert refused.value.code == "endpoint_held"
    assert not refused.value.is_capacity
    assert refused.value.retry_after_s is None


def test_panic_never_tries_what_is_held() -> None:
    clock = Clock()
    fleet, policy = make_fleet(*IDS, clock=clock), policy_of("a", "b")
    for endpoint_id in IDS:
        for _ in range(3):
            fleet.started(endpoint_id)
            fleet.observe(failed(clock.now_s, "server_error", endpoint_id=endpoint_id))
    Holds().obey(fleet, held("a/x"))
    plan = decide_on(policy, view(fleet))

    assert plan.is_panic
    assert plan.order == ("b/x",)


def test_request_decided_before_is_not_dispatched_after_but_a_probe_is() -> None:
    fleet, policy = make_fleet("a/x", clock=Clock()), policy_of("a")
    Holds().obey(fleet, held("a/x"))

    assert not fleet.may_probe("a/x")
    assert fleet.may_probe("a/x", in_panic=True)
    plan = decide_on(policy, as_if_not_held(fleet.view(facts_of(), ["a/x"])))
    assert plan.order == ("a/x",)


def test_hold_outlives_another_policy_and_finds_an_endpoint_that_comes_back() -> None:
    fleet, holds = make_fleet(*IDS, clock=Clock()), Holds()
    holds.obey(fleet, held("a/x", DRAINING))
    fleet.replace_endpoints([endpoint("b/x")])
    holds.obey(fleet)
    fleet.replace_endpoints([endpoint("a/x", base_url="https://new.example/v1"), endpoint("b/x")])
    holds.obey(fleet)

    assert fleet.metrics("a/x")["held"] == DRAINING
    assert fleet.metrics("b/x")["held"] == ""


def test_prefix_finds_another_home_while_its_own_is_held() -> None:
    clock = Clock()
    fleet = make_fleet(*IDS, clock=clock)
    facts = facts_of(session_key="ab" * 16, prompt_tokens=4_000)
    home = next(each.endpoint_id for each in fleet.view(facts, IDS).live.values() if each.is_home)
    Holds().obey(fleet, held(home))
    moved = next(each.endpoint_id for each in fleet.view(facts, IDS).live.values() if each.is_home)

    assert moved != home
