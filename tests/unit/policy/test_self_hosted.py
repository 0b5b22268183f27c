"""Machines of one's own in the policy: billing, whose hour it is, what is refused and how."""

from __future__ import annotations

import pytest

from gateway.core import Endpoint
from gateway.errors import PolicyError
from gateway.policy.load import load_policy

OWNED = "{billing: owned, watts: 350, usd_per_kwh: 0.20}"


def endpoints_of(of_provider: str, *endpoints: str) -> list[Endpoint]:
    lines = [
        "version: 1",
        "providers:",
        f"  own: {{base_url: 'http://10.0.0.1/v1', network: private{of_provider}}}",
        "models:",
    ]
    lines += [f"  m{idx}: [{{provider: own, {text}}}]" for idx, text in enumerate(endpoints)]
    loaded = load_policy("\n".join(lines).encode(), environ=None)
    return list(loaded.endpoints.values())


def problems_of(self_hosted: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        endpoints_of(f", self_hosted: {self_hosted}", "model: x")
    return list(caught.value.problems)


def test_machine_on_demand_costs_its_hour() -> None:
    (own,) = endpoints_of(
        ", self_hosted: {usd_per_hour: 2.10, tokens_per_hour: 3000000}", "model: x"
    )

    assert (own.usd_per_hour_nanos, own.billing, own.machine) == (2_100_000_000, "on_demand", "own")
    assert own.tokens_per_hour_min == 3_000_000
    assert own.prices[0].source == "self_hosted"
    assert own.prices[0].input == own.prices[0].output == 700_000


def test_owned_machine_costs_its_electricity() -> None:
    (own,) = endpoints_of(f", self_hosted: {OWNED}", "model: x")

    assert (own.usd_per_hour_nanos, own.billing) == (70_000_000, "owned")
    assert own.prices[0].output == 70_000


def test_endpoints_of_a_provider_share_its_machine_unless_one_has_its_own() -> None:
    shared, also, alone = endpoints_of(
        ", self_hosted: {usd_per_hour: 2}", "model: x", "model: y",
        f"model: z, self_hosted: {OWNED}",
    )  # fmt: skip

    assert [each.machine for each in (shared, also, alone)] == ["own", "own", "own/z"]
    assert [each.billing for each in (shared, also, alone)] == ["on_demand", "on_demand", "owned"]


def test_machine_of_one_endpoint_alone_makes_only_it_ours() -> None:
    alone, other = endpoints_of(
        "", "model: x, self_hosted: {usd_per_hour: 2}", "model: y, price: {input: 1, output: 2}"
    )

    assert (alone.stores_data, alone.zero_retention) == (False, True)
    assert (other.machine, other.usd_per_hour_nanos, other.billing) == ("", None, "")


def test_stated_price_is_billed_and_the_machine_still_known() -> None:
    (own,) = endpoints_of(
        ", self_hosted: {usd_per_hour: 2}", "model: x, price: {input: 1, output: 2}"
    )

    assert own.prices[0].source == "policy"
    assert own.usd_per_hour_nanos == 2_000_000_000


@pytest.mark.parametrize(
    ("self_hosted", "wrong"),
    [
        ("{billing: on_demand}", {"usd_per_hour: is missing; state what the machine costs"}),
        ("{usd_per_hour: 0}", {"usd_per_hour: 0 is wrong; must be a number > 0"}),
        ("{usd_per_hour: 2, billing: reserved}", {"billing: 'reserved' is unknown; use on_demand"}),
        ("{usd_per_hour: 2, watts: 300}", {"watts: is for billing: owned; remove it"}),
        (
            "{billing: owned}",
            {
                "watts: is missing; of an owned machine only electricity",
                "usd_per_kwh: is missing; of an owned machine only electricity",
            },
        ),
        (
            "{billing: owned, watts: 300, usd_per_kwh: 0.2, usd_per_hour: 2}",
            {"usd_per_hour: is for billing: on_demand"},
        ),
        ("{usd_per_hour: 2, usd_per_houre: 3}", {"usd_per_houre: unknown field; did you mean"}),
    ],
)
def test_each_mistake_is_named_with_its_path_and_its_fix(self_hosted: str, wrong: set[str]) -> None:
    found = problems_of(self_hosted)

    assert len(found) == len(wrong)
    for start in wrong:
        assert any(each.startswith(f"providers.own.self_hosted.{start}") for each in found), found


def test_mistake_at_an_endpoint_is_named_there() -> None:
    with pytest.raises(PolicyError) as caught:
        endpoints_of("", "model: x, self_hosted: {billing: owned, watts: 9}")

    assert str(caught.value).startswith("models.m0[0].self_hosted.usd_per_kwh: is missing")


@pytest.mark.parametrize(
    ("said", "stops"),
    [
        ("", False),  # nobody knows whether it goes on generating
        (", stops_when_left: true", True),
        (", simulated: true", True),
        (", simulated: true, stops_when_left: false", False),
        (", self_hosted: {usd_per_hour: 2.10, tokens_per_hour: 3000000}", True),
    ],
)
def test_who_stops_an_answer_that_nobody_waits_for(said: str, stops: bool) -> None:
    (one,) = endpoints_of(said, "model: x")

    assert one.stops_when_left is stops
