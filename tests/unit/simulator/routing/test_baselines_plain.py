"""Round robin, least in flight, peak EWMA, static table, clairvoyants: each by its own rule."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.errors import FailureClass
from gateway.simulator.routing.baselines.p2c_peak_ewma import PeakEwma
from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.baselines.ruled import Roster
from gateway.simulator.routing.router import Listing, Router, Setting
from tests.support.baseline_outcomes import (
    FakeOracle,
    attempt,
    firsts,
    make_ask,
    make_setting,
    outcome,
)

TIMES = {"a": 3.0, "b": 1.0, "c": 2.0}


def setting_of(seed: int = 1) -> Setting:
    return make_setting(seed=seed, oracle=FakeOracle(TIMES, {"b": 5.0}))


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_names_itself_and_its_source(name: str) -> None:
    router: Router = BASELINES[name](setting_of())

    assert name == router.name
    assert len(BASELINES[name].source) > 20


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_ranks_known_endpoints_once_and_repeats_itself_by_seed(name: str) -> None:
    def play() -> list[tuple[str, ...]]:
        router = BASELINES[name](setting_of(seed=7))
        orders = []
        for idx in range(200):
            now_s = idx * 0.7
            order = tuple(router.order(make_ask(idx), now_s))
            orders.append(order)
            for endpoint_id in order[:1]:
                failure = FailureClass.SERVER_ERROR if idx % 9 == 0 else None
                attempt(router, outcome(endpoint_id, now_s, tokens=50 + idx, failure=failure))
        return orders

    orders = play()

    assert all(len(set(order)) == len(order) and set(order) <= {*"abc"} for order in orders)
    assert orders == play()


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_takes_a_new_endpoint_when_it_is_listed(name: str) -> None:
    setting = make_setting("ab", oracle=FakeOracle({**TIMES, "d": 0.1}, {}))
    rows = make_setting("abd")
    router = BASELINES[name](
        Setting(
            listings=setting.listings, prices=rows.prices, rng=setting.rng, oracle=setting.oracle
        )
    )
    router.order(make_ask(), 0.0)
    router.listed((Listing(endpoint_id="d", tokens_per_s=500.0, ttft_s=0.1),), 10.0)

    assert tuple(router.order(make_ask(), 10.0)) == ("d",)


def test_round_robin_takes_turns_and_leaves_a_failed_one_out_for_ten_seconds() -> None:
    router = BASELINES["round_robin"](make_setting())

    assert firsts(router, 6) == [*"abcabc"]

    attempt(router, outcome("b", 1.0, failure=FailureClass.SERVER_ERROR))

    assert "b" not in firsts(router, 6, now_s=10.9)
    assert not router.may_send("b", 10.9)
    assert "b" in firsts(router, 6, now_s=11.0)


def test_all_failed_are_tried_again() -> None:
    router = BASELINES["round_robin"](make_setting("ab"))
    for name in "ab":
        attempt(router, outcome(name, 1.0, failure=FailureClass.CONNECT))

    assert {*router.order(make_ask(), 2.0)} == {*"ab"}
    assert router.may_send("a", 2.0)


def test_a_failure_of_the_callers_own_shuts_nobody_out() -> None:
    router = BASELINES["round_robin"](make_setting())
    attempt(router, outcome("b", 1.0, failure=FailureClass.INVALID_REQUEST))

    assert "b" in firsts(router, 3, now_s=1.0)


def test_random_choice_is_even() -> None:
    shares = Counter(firsts(BASELINES["random_choice"](make_setting()), 3_000))

    assert all(900 < shares[name] < 1_100 for name in "abc")


def test_least_in_flight_counts_what_is_under_way() -> None:
    router = BASELINES["least_in_flight"](make_setting())
    for name in "aab":
        router.started(name, 0.0)

    assert list(router.order(make_ask(), 0.0)) == [*"cba"]

    router.started("c", 0.0)
    router.started("c", 0.0)
    router.ended(outcome("a", 1.0), 1.0)
    router.ended(outcome("a", 1.0), 1.0)

    assert list(router.order(make_ask(), 1.0)) == [*"abc"]


def test_peak_ewma_jumps_up_at_once_and_comes_down_slowly() -> None:
    rule = PeakEwma(Roster(make_setting().listings), make_setting().rng)
    rule.learn(outcome("a", 0.0, whole_s=1.0), 0.0)
    rule.learn(outcome("a", 0.0, whole_s=8.0), 0.0)

    assert rule.load("a", 0.0) == 8.0
    assert rule.load("a", 10.0) == pytest.approx(8.0 / 2.718, rel=1e-3)

    rule.learn(outcome("a", 10.0, whole_s=1.0), 10.0)

    assert rule.load("a", 10.0) == pytest.approx(8.0 / 2.718 + 1.0 - 1 / 2.718, rel=1e-3)


def test_peak_ewma_shuns_one_with_work_pending_and_no_history() -> None:
    roster = Roster(make_setting("ab").listings)
    rule = PeakEwma(roster, make_setting().rng)
    rule.learn(outcome("a", 0.0, whole_s=100.0), 0.0)
    roster.in_flight.update(a=3, b=1)

    assert rule.load("a", 0.0) == 400.0
    assert list(rule.rank(make_ask(), ["a", "b"], 0.0)) == ["a", "b"]


def test_failure_accrual_marks_dead_after_five_in_a_row_and_doubles_the_pause() -> None:
    router = BASELINES["p2c_peak_ewma"](make_setting("ab"))
    for now_s in range(5):
        assert "b" in router.order(make_ask(), float(now_s))
        attempt(router, outcome("b", float(now_s), failure=FailureClass.SERVER_ERROR))

    assert list(router.order(make_ask(), 8.9)) == ["a"]
    assert "b" in router.order(make_ask(), 9.0)

    attempt(router, outcome("b", 10.0, failure=FailureClass.SERVER_ERROR))

    assert list(router.order(make_ask(), 19.9)) == ["a"]
    assert "b" in router.order(make_ask(), 20.0)


def test_static_table_orders_by_listed_speed_whatever_is_measured() -> None:
    router = BASELINES["static_table"](make_setting(speeds={"a": 20.0, "b": 90.0, "c": 50.0}))
    for now_s in range(20):
        attempt(router, outcome("b", float(now_s), whole_s=60.0))

    assert list(router.order(make_ask(), 20.0)) == [*"bca"]


def test_clairvoyants_order_by_draw_or_by_mean() -> None:
    assert list(BASELINES["clairvoyant_greedy"](setting_of()).order(make_ask(), 0.0)) == [*"cab"]
    assert list(BASELINES["clairvoyant_means"](setting_of()).order(make_ask(), 0.0)) == [*"bca"]
