"""OpenRouter's and LLM Gateway's rules: price, speed, outages, stickiness."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.errors import FailureClass
from gateway.simulator.routing.baselines.llm_gateway_weighted import WeightedScore, uptime_penalty
from gateway.simulator.routing.baselines.openrouter_edge import CompetitiveEdge
from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.baselines.sort_throughput import SortThroughput
from tests.support.baseline_outcomes import attempt, firsts, make_ask, make_setting, outcome

DEAR = {"a": (1.0, 2.0), "b": (3.0, 6.0)}


def fail(router: RuledRouter, name: str, times_s: tuple[float, ...]) -> None:
    for now_s in times_s:
        attempt(router, outcome(name, now_s, failure=FailureClass.SERVER_ERROR))


def test_inverse_square_makes_a_third_of_the_price_nine_times_as_likely() -> None:
    router = BASELINES["openrouter_inverse_square"](make_setting("ab", prices=DEAR))
    shares = Counter(firsts(router, 10_000))

    assert 8_850 < shares["a"] < 9_150


def test_inverse_square_puts_an_outage_last_for_thirty_seconds() -> None:
    router = BASELINES["openrouter_inverse_square"](make_setting("ab", prices=DEAR))
    fail(router, "a", (1.0, 2.0))

    assert {tuple(router.order(make_ask(), 31.0)) for _ in range(50)} == {("b", "a")}
    assert "a" in firsts(router, 50, now_s=32.1)


def test_a_429_is_no_outage() -> None:
    router = BASELINES["cheapest_listed"](make_setting("ab", prices=DEAR))
    for now_s in (1.0, 2.0, 3.0):
        attempt(router, outcome("a", now_s, failure=FailureClass.RATE_LIMITED))

    assert list(router.order(make_ask(), 3.0)) == ["a", "b"]


def test_cheapest_listed_prices_this_prompt() -> None:
    prices = {"a": (1.0, 20.0), "b": (3.0, 3.0)}
    router = BASELINES["cheapest_listed"](make_setting("ab", prices=prices))

    assert list(router.order(make_ask(prompt_tokens=100), 0.0)) == ["b", "a"]
    assert list(router.order(make_ask(prompt_tokens=50_000), 0.0)) == ["a", "b"]


def test_sort_throughput_takes_the_median_of_five_minutes() -> None:
    rule = SortThroughput(Roster(make_setting("ab").listings))
    for now_s, rate in ((0.0, 900), (200.0, 10), (250.0, 30), (301.0, 20)):
        rule.learn(outcome("a", now_s, whole_s=1.0, tokens=rate), now_s)

    assert rule.tokens_per_s("a") == 20.0
    assert rule.tokens_per_s("b") == 50.0  # as listed


def test_sort_throughput_keeps_the_last_median_of_one_it_no_longer_uses() -> None:
    router = BASELINES["sort_throughput"](make_setting("ab"))
    for now_s, tokens in ((1.0, 40), (2.0, 60), (3.0, 50)):
        attempt(router, outcome("a", now_s, whole_s=0.5, tokens=tokens))

    assert list(router.order(make_ask(), 3_000.0)) == ["a", "b"]


def edge_rule(prices: dict[str, tuple[float, float]]) -> CompetitiveEdge:
    setting = make_setting("".join(prices), prices=prices)
    return CompetitiveEdge(Roster(setting.listings), setting.prices, setting.rng)


def feed(rule: CompetitiveEdge, name: str, whole_s: float, num: int = 20) -> None:
    for idx in range(num):
        rule.learn(outcome(name, idx * 0.5, ttft_s=0.2, whole_s=whole_s, tokens=200), idx * 0.5)


def test_edge_gives_most_to_those_inside_and_little_but_something_past_it() -> None:
    rule = edge_rule({"a": (1.0, 2.0), "b": (1.05, 2.1), "c": (4.0, 8.0)})
    for name in "abc":
        feed(rule, name, whole_s=4.0)
    shares = rule.shares([*"abc"], 10.0)

    assert shares["a"] > shares["b"] > 0.4
    assert 0.005 < shares["c"] < 0.02


def test_edge_lets_a_faster_endpoint_charge_more() -> None:
    rule = edge_rule({"a": (1.0, 2.0), "b": (1.6, 3.2)})
    feed(rule, "a", whole_s=4.0)
    before = rule.shares([*"ab"], 10.0)["b"]
    feed(rule, "b", whole_s=1.5)
    after = rule.shares([*"ab"], 10.0)["b"]

    assert before < 0.2 < 0.5 < after


def test_edge_charges_failures_to_the_endpoint() -> None:
    rule = edge_rule({"a": (1.0, 2.0), "b": (1.0, 2.0)})
    feed(rule, "a", whole_s=4.0)
    feed(rule, "b", whole_s=4.0)
    even = rule.shares([*"ab"], 10.0)
    for _ in range(10):
        rule.learn(outcome("a", 10.0, whole_s=5.0, failure=FailureClass.SERVER_ERROR), 10.0)

    assert even["a"] == pytest.approx(0.5)
    assert rule.shares([*"ab"], 10.0)["a"] < 0.2


def test_edge_breaker_pauses_one_far_worse_than_its_peers_and_lets_it_return() -> None:
    router = BASELINES["openrouter_edge"](make_setting("ab"))
    for idx in range(10):
        attempt(router, outcome("b", idx * 0.1))
    fail(router, "a", tuple(1.0 + idx * 0.1 for idx in range(6)))

    assert list(router.order(make_ask(), 2.0)) == ["b"]
    assert not router.may_send("a", 2.0)
    assert "a" in router.order(make_ask(), 40.0)


def test_edge_breaker_leaves_all_alone_when_all_fail_alike() -> None:
    router = BASELINES["openrouter_edge"](make_setting("ab"))
    for idx in range(10):
        fail(router, "a", (idx * 0.2,))
        fail(router, "b", (idx * 0.2 + 0.1,))

    assert {*router.order(make_ask(), 3.0)} == {*"ab"}


def test_edge_learns_a_cap_from_429s_and_raises_it_when_they_stop() -> None:
    rule = edge_rule({"a": (1.0, 2.0), "b": (1.2, 2.4)})
    for idx in range(120):
        now_s = idx * 0.4
        rule.learn(outcome("b", now_s), now_s)
        limited = FailureClass.RATE_LIMITED if idx % 3 == 0 else None
        rule.learn(outcome("a", now_s, failure=limited, whole_s=0.2 if limited else 2.0), now_s)
    traffic = rule._traffic["a"]
    traffic.learn_cap(48.0)
    cap = traffic.cap_per_s

    assert cap == pytest.approx(0.9 * 80 / 60.0, rel=0.1)

    traffic.learn_cap(200.0)

    assert traffic.cap_per_s == pytest.approx(1.1 * (cap or 0.0))


def score_rule(
    prices: dict[str, tuple[float, float]], cached: dict[str, float] | None = None
) -> WeightedScore:
    setting = make_setting("".join(prices), prices=prices, cached=cached)
    return WeightedScore(setting.prices, setting.rng)


@pytest.mark.parametrize(
    ("uptime", "penalty"), [(0.97, 0.0), (0.9, 0.07), (0.8, 0.62), (0.7, 1.73), (0.5, 5.61)]
)
def test_uptime_penalty_is_the_documented_curve(uptime: float, penalty: float) -> None:
    assert round(uptime_penalty(uptime), 2) == penalty


def test_weighted_score_is_dominated_by_price() -> None:
    # theopenco#3317: speed weighs too little to leave a slow provider that is a little cheaper.
    rule = score_rule({"a": (1.0, 1.0), "b": (1.3, 1.3)})
    for now_s in range(30):
        rule.learn(outcome("a", float(now_s), ttft_s=1.5, whole_s=8.0), float(now_s))
        rule.learn(outcome("b", float(now_s), ttft_s=1.0, whole_s=4.0), float(now_s))
    scores = rule.scores(make_ask(), [*"ab"], 30.0)

    assert scores["a"] == pytest.approx((0.05 * 1.0 + 0.025 * 0.5) / 1.175)
    assert scores["b"] == pytest.approx(0.6 * 0.3 / 1.175)


def test_weighted_score_counts_cache_support_from_five_thousand_tokens_on() -> None:
    rule = score_rule({"a": (1.0, 1.0), "b": (1.0, 1.0)}, cached={"b": 0.1})
    short = rule.scores(make_ask(prompt_tokens=4_999), [*"ab"], 0.0)
    long = rule.scores(make_ask(prompt_tokens=5_000), [*"ab"], 0.0)

    assert short["a"] == short["b"] == 0.0
    assert long["b"] == 0.0
    assert long["a"] > 0.5


def test_the_last_minute_weighs_tenfold() -> None:
    rule = score_rule({"a": (1.0, 1.0)})
    rule.learn(outcome("a", 10.0, ttft_s=1.0), 10.0)
    rule.learn(outcome("a", 700.0, ttft_s=3.0), 700.0)

    assert rule.metrics("a", 700.0).ttft_s == pytest.approx((1.0 + 30.0) / 11.0)
    assert rule.metrics("a", 800.0).ttft_s == pytest.approx((1.0 + 9.0) / 4.0)
    assert rule.metrics("a", 3_700.0).ttft_s == pytest.approx(3.0)


def test_preferred_provider_stays_until_it_is_clearly_worse_or_down() -> None:
    router = BASELINES["llm_gateway_weighted"](make_setting("ab", prices=DEAR | {"b": (1.1, 2.2)}))
    assert firsts(router, 1) == ["a"]
    for idx in range(200):
        attempt(router, outcome("a", idx * 0.1, ttft_s=1.5, whole_s=8.0))
        attempt(router, outcome("b", idx * 0.1, ttft_s=0.5, whole_s=2.0))

    assert Counter(firsts(router, 300, now_s=20.0)).most_common(1)[0][0] == "a"

    fail(router, "a", tuple(21.0 + idx * 0.1 for idx in range(60)))

    assert Counter(firsts(router, 300, now_s=30.0)).most_common(1)[0][0] == "b"


def test_one_request_in_a_hundred_goes_elsewhere() -> None:
    router = BASELINES["llm_gateway_weighted"](make_setting("ab", prices=DEAR))
    shares = Counter(firsts(router, 10_000))

    assert 25 < shares["b"] < 80  # half of one per cent: exploring may also draw the best


def test_a_session_keeps_its_provider_and_is_never_passed_on() -> None:
    router = BASELINES["llm_gateway_weighted"](make_setting("ab", prices=DEAR))
    ask = make_ask(session="s")

    assert list(router.order(ask, 0.0)) == ["a"]

    attempt(router, outcome("a", 1.0))
    fail(router, "a", (2.0,))

    assert list(router.order(ask, 2.0)) == ["b"]  # its uptime is 50 %
