"""LiteLLM's rules, with the faults that are known of them."""

from __future__ import annotations

from collections import Counter

from gateway.errors import FailureClass
from gateway.simulator.routing.baselines.litellm_lowest_latency import LowestLatency
from gateway.simulator.routing.baselines.litellm_lowest_latency_old import OLD
from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.baselines.ruled import CLIENT_TIMEOUT_S, Roster, RuledRouter
from tests.support.baseline_outcomes import attempt, firsts, make_ask, make_setting, outcome


def lowest_latency(names: str = "ab", **limits: int) -> RuledRouter:
    return BASELINES["litellm_lowest_latency"](make_setting(names, limits=limits or None))


def old_rule() -> LowestLatency:
    setting = make_setting("ab")
    return LowestLatency(Roster(setting.listings), setting.rng, OLD)


def new_rule() -> LowestLatency:
    setting = make_setting("ab")
    return LowestLatency(Roster(setting.listings), setting.rng)


def test_streams_are_ranked_by_first_token_alone() -> None:
    router = lowest_latency()
    attempt(router, outcome("a", 40.0, ttft_s=0.2, whole_s=40.0, tokens=200))
    attempt(router, outcome("b", 3.0, ttft_s=0.4, whole_s=3.0, tokens=200))

    assert list(router.order(make_ask(), 41.0)) == ["a", "b"]


def test_only_the_last_ten_samples_count() -> None:
    rule = new_rule()
    for idx in range(15):
        rule.learn(outcome("a", float(idx), ttft_s=1.0 if idx < 5 else 0.2), float(idx))

    assert abs(rule.mean("a") - 0.2) < 1e-9


def test_an_unused_deployment_takes_every_request_until_its_first_answer() -> None:
    router = lowest_latency()
    attempt(router, outcome("a", 1.0, ttft_s=0.1))
    for _ in range(50):
        assert router.order(make_ask(), 1.0)[0] == "b"
        router.started("b", 1.0)

    router.ended(outcome("b", 9.0, ttft_s=5.0), 9.0)

    assert router.order(make_ask(), 9.0)[0] == "a"


def test_the_map_is_thrown_away_an_hour_after_its_last_write() -> None:
    rule = new_rule()
    rule.learn(outcome("a", 0.0, ttft_s=0.1), 0.0)
    rule.learn(outcome("b", 0.0, ttft_s=5.0), 0.0)

    assert list(rule.rank(make_ask(), ["a", "b"], 3_600.0)) == ["a", "b"]

    rule.rank(make_ask(), ["a", "b"], 3_601.0)

    assert rule.mean("a") == rule.mean("b") == 0.0


def test_a_timeout_counts_a_thousand_seconds_where_nothing_else_is_known() -> None:
    rule = new_rule()
    rule.learn(outcome("a", 0.0, failure=FailureClass.TIMEOUT_FIRST_TOKEN), 0.0)

    assert rule.mean("a") == 1_000.0


def test_a_timeout_makes_a_measured_deployment_look_faster_for_streams() -> None:
    rule = new_rule()
    for now_s in (0.0, 1.0):
        rule.learn(outcome("a", now_s, ttft_s=0.6), now_s)
    before = rule.mean("a")
    rule.learn(outcome("a", 2.0, failure=FailureClass.TIMEOUT_FIRST_TOKEN), 2.0)

    assert abs(before - 0.6) < 1e-9
    assert abs(rule.mean("a") - 0.4) < 1e-9


def test_other_failures_and_empty_answers_are_no_samples() -> None:
    rule = new_rule()
    rule.learn(outcome("a", 0.0, failure=FailureClass.SERVER_ERROR), 0.0)
    rule.learn(outcome("a", 0.0, failure=FailureClass.RATE_LIMITED), 0.0)
    rule.learn(outcome("a", 0.0, tokens=0), 0.0)

    assert rule.mean("a") == 0.0


def test_the_old_release_freezes_nine_samples() -> None:
    old, new = old_rule(), new_rule()
    for idx in range(10):
        for rule in (old, new):
            rule.learn(outcome("a", float(idx), ttft_s=0.1, tokens=1), float(idx))
    for idx in range(10, 40):
        for rule in (old, new):
            rule.learn(outcome("a", float(idx), ttft_s=2.0, tokens=1), float(idx))

    assert abs(old.mean("a") - (9 * 0.1 + 2.0) / 10) < 1e-9
    assert abs(new.mean("a") - 2.0) < 1e-9


def test_the_old_release_takes_long_answers_for_speed() -> None:
    old, new = old_rule(), new_rule()
    for rule in (old, new):
        rule.learn(outcome("a", 0.0, ttft_s=4.0, tokens=1_000), 0.0)
        rule.learn(outcome("b", 0.0, ttft_s=0.2, tokens=10), 0.0)

    assert list(old.rank(make_ask(), ["a", "b"], 0.0)) == ["a", "b"]
    assert list(new.rank(make_ask(), ["a", "b"], 0.0)) == ["b", "a"]


def test_a_listed_limit_shuts_out_for_the_rest_of_the_minute() -> None:
    router = lowest_latency(a=3)
    for now_s in (1.0, 2.0, 3.0):
        assert "a" in router.order(make_ask(), now_s)
        attempt(router, outcome("a", now_s, ttft_s=0.1))

    assert list(router.order(make_ask(), 59.0)) == ["b"]
    assert "a" in router.order(make_ask(), 60.0)


def test_cooldown_needs_more_than_half_of_five_failed() -> None:
    router = lowest_latency()
    for now_s, failure in ((1.0, None), (2.0, None), (3.0, "x"), (4.0, "x")):
        attempt(router, outcome("a", now_s, failure=FailureClass.SERVER_ERROR if failure else None))

    assert router.may_send("a", 4.0)

    attempt(router, outcome("a", 5.0, failure=FailureClass.SERVER_ERROR))

    assert not router.may_send("a", 9.9)
    assert router.may_send("a", 10.0)


def test_cooldown_counts_by_clock_minute() -> None:
    router = lowest_latency()
    for now_s in (56.0, 57.0, 58.0, 59.0, 60.5):
        attempt(router, outcome("a", now_s, failure=FailureClass.SERVER_ERROR))

    assert router.may_send("a", 61.0)


def test_a_429_cools_at_once_for_five_seconds_or_as_asked() -> None:
    router = lowest_latency()
    attempt(router, outcome("a", 1.0, failure=FailureClass.RATE_LIMITED))
    attempt(router, outcome("b", 1.0, failure=FailureClass.RATE_LIMITED, retry_after_s=20.0))

    assert not router.may_send("a", 5.9)
    assert router.may_send("a", 6.0)
    assert not router.may_send("b", 20.9)


def test_a_second_failure_does_not_lengthen_the_pause() -> None:
    router = lowest_latency()
    attempt(router, outcome("a", 1.0, failure=FailureClass.RATE_LIMITED))
    attempt(router, outcome("a", 4.0, failure=FailureClass.RATE_LIMITED))

    assert router.may_send("a", 6.0)


def test_a_single_deployment_is_never_cooled_and_all_cooling_is_a_refusal() -> None:
    single, pair = lowest_latency("a"), lowest_latency("ab")
    attempt(single, outcome("a", 1.0, failure=FailureClass.RATE_LIMITED))
    for name in "ab":
        attempt(pair, outcome(name, 1.0, failure=FailureClass.RATE_LIMITED))

    assert list(single.order(make_ask(), 1.0)) == ["a"]
    assert list(pair.order(make_ask(), 1.0)) == []
    assert not pair.may_send("a", 1.0)


def test_simple_shuffle_weighs_by_listed_limit_where_all_have_one() -> None:
    limits = {"a": 100, "b": 100, "c": 200}
    weighted = BASELINES["litellm_simple_shuffle"](make_setting(limits=limits))
    even = BASELINES["litellm_simple_shuffle"](make_setting(limits={"a": 100, "b": 100}))
    shares, even_shares = Counter(firsts(weighted, 4_000)), Counter(firsts(even, 3_000))

    assert 1_900 < shares["c"] < 2_100
    assert all(900 < even_shares[name] < 1_100 for name in "abc")


def test_litellm_waits_ten_minutes_for_a_first_token() -> None:
    assert lowest_latency().first_token_timeout_s("a", make_ask()) == CLIENT_TIMEOUT_S == 600.0
