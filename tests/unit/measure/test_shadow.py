"""Shadow mode counts what a second policy would do, and whatever it does, nothing else feels it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.measure.shadow import (
    PAIRS_MAX,
    PAIRS_SHOWN,
    QUEUE_MAX,
    REQUESTS_MIN,
    SLICE,
    SLICES_A_TURN,
    TURN_S,
    Shadow,
)
from tests.support.deciding import decide_on, facts_of, policy_of, view_of
from tests.support.virtual_loop import run_virtual

POLICY = policy_of("a", "b")
VIEW = view_of(POLICY)
FACTS = facts_of()
PLAN = decide_on(POLICY, VIEW, FACTS).plan


@dataclass
class Verdict:
    route: str = "all"
    live: str = "a/x"
    shadow: str = "a/x"
    refusal: str = ""
    live_s: float = 2.0
    shadow_s: float = 2.0
    live_nanos: int = 3_000_000
    shadow_nanos: int = 3_000_000


class World:
    """A shadow that answers with what stands in `verdicts`, in order."""

    def __init__(self, *verdicts: Verdict | Exception) -> None:
        self.verdicts = list(verdicts)
        self.registry = CollectorRegistry()
        self.now_s = 100.0
        self.shadow = Shadow(
            self.judge,
            self.registry,
            version=lambda: "v2",
            source="new.yaml",
            wall_clock=lambda: self.now_s,
        )

    def judge(self, *_: Any) -> Verdict:
        verdict = self.verdicts.pop(0) if self.verdicts else Verdict()
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def offer(self, num: int = 1) -> None:
        for _ in range(num):
            self.shadow.offer(FACTS, PLAN, VIEW, POLICY)

    def judged(self) -> dict[str, Any]:
        self.offer(len(self.verdicts))
        self.shadow.judge_some(10_000)
        return self.shadow.summary()

    def metric(self, name: str) -> float | None:
        for line in generate_latest(self.registry).decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return None


def test_agreements_disagreements_and_refusals_are_counted() -> None:
    world = World(
        Verdict(),
        Verdict(shadow="b/x", shadow_s=1.5, shadow_nanos=5_000_000),
        Verdict(shadow="b/x", shadow_s=2.5, shadow_nanos=5_000_000),
        Verdict(shadow="", refusal="price_max", route="vip"),
    )
    found = world.judged()

    counts = {name: found[name] for name in ("agreed", "disagreed", "refused", "failed", "skipped")}
    assert counts == {"agreed": 1, "disagreed": 2, "refused": 1, "failed": 0, "skipped": 0}
    assert found["refusals"] == {"price_max": 1}
    (pair,) = found["disagreements"]
    assert (pair["route"], pair["live"], pair["shadow"], pair["requests"]) == (
        "all",
        "a/x",
        "b/x",
        2,
    )
    assert pair["predicted"]["seconds_difference"]["mean"] == 0.0
    assert pair["predicted"]["dollars_difference"]["mean"] == pytest.approx(0.002)
    # Of all that both would serve, the agreement too.
    assert found["predicted"]["dollars_difference"]["mean"] == pytest.approx(0.004 / 3)
    assert found["predicted"]["dollars_difference"]["n"] == 3
    assert (found["policy_version"], found["source"]) == ("v2", "new.yaml")


def test_the_metrics_say_the_same() -> None:
    world = World(
        Verdict(),
        Verdict(shadow="b/x", shadow_s=1.5, shadow_nanos=1_000_000),
        Verdict(shadow="", refusal="capacity"),
    )
    world.judged()

    decisions = "gateway_shadow_decisions_total"
    assert world.metric(f'{decisions}{{result="agreed"}}') == 1
    assert world.metric(f'{decisions}{{result="disagreed"}}') == 1
    assert world.metric(f'{decisions}{{result="refused"}}') == 1
    pairs = 'gateway_shadow_disagreements_total{live="a/x",route="all",shadow='
    assert world.metric(pairs + '"b/x"}') == 1
    assert world.metric(pairs + '""}') == 1
    sums = "gateway_shadow_predicted_"
    assert world.metric(sums + 'seconds_total{policy="live",route="all"}') == 4.0
    assert world.metric(sums + 'seconds_total{policy="shadow",route="all"}') == 3.5
    assert world.metric(sums + 'dollars_total{policy="live",route="all"}') == pytest.approx(0.006)
    assert world.metric(sums + 'dollars_total{policy="shadow",route="all"}') == pytest.approx(0.004)


def test_an_interval_is_shown_from_enough_requests_on() -> None:
    few = World(*[Verdict(shadow="b/x", shadow_s=1.0)] * (REQUESTS_MIN - 1)).judged()
    many = World(
        *[Verdict(shadow="b/x", shadow_s=2.0 + 0.1 * (-1) ** i) for i in range(REQUESTS_MIN)]
    ).judged()

    assert "low" not in few["predicted"]["seconds_difference"]
    interval = many["predicted"]["seconds_difference"]
    assert interval["low"] < 0.0 < interval["high"]
    assert interval["high"] == pytest.approx(1.96 * 0.1 / (REQUESTS_MIN - 1) ** 0.5, rel=1e-3)


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("a/x"), RecursionError(), ZeroDivisionError()]
)
def test_whatever_the_shadow_raises_is_counted_and_the_next_is_judged(error: Exception) -> None:
    found = World(error, Verdict(), error, Verdict(shadow="b/x")).judged()

    assert (found["failed"], found["agreed"], found["disagreed"]) == (2, 1, 1)
    assert found["last_error"].startswith(type(error).__name__)


def test_a_full_queue_leaves_requests_out_and_counts_them() -> None:
    world = World()
    world.offer(QUEUE_MAX + 17)
    found = world.shadow.summary()

    assert (found["skipped"], found["agreed"]) == (17, 0)
    assert world.metric('gateway_shadow_decisions_total{result="skipped"}') == 17
    assert world.shadow.judge_some(10_000) == QUEUE_MAX
    world.offer(1)
    assert world.shadow.judge_some(10_000) == 1


def test_it_takes_no_more_than_its_share_of_the_loop() -> None:
    """Small slices with the loop let go in between, and a bounded number a turn."""
    world = World()

    async def main() -> list[int]:
        world.offer(QUEUE_MAX)
        task = asyncio.ensure_future(world.shadow.run())
        await asyncio.sleep(0)
        first = world.shadow.tally.counts["agreed"]
        for _ in range(100):
            await asyncio.sleep(0)
        a_turn = world.shadow.tally.counts["agreed"]
        loop = asyncio.get_running_loop()
        with loop.jumping():  # type: ignore[attr-defined]  # a VirtualLoop
            await asyncio.sleep(TURN_S * QUEUE_MAX / (SLICE * SLICES_A_TURN) + 1.0)
        task.cancel()
        return [first, a_turn, world.shadow.tally.counts["agreed"]]

    assert run_virtual(main()) == [SLICE, SLICE * SLICES_A_TURN, QUEUE_MAX]


def test_what_it_keeps_is_bounded_whatever_the_policies_name() -> None:
    world = World(*[Verdict(shadow=f"e{idx}/x", route="r") for idx in range(PAIRS_MAX + 50)])
    found = world.judged()

    assert found["disagreed"] == PAIRS_MAX + 50
    assert len(world.shadow.tally.pairs) == PAIRS_MAX
    assert len(found["disagreements"]) == PAIRS_SHOWN


def test_another_shadow_policy_counts_anew() -> None:
    world = World(Verdict(shadow="b/x"))
    world.judged()
    world.offer(3)
    world.now_s = 200.0
    world.shadow.restart()
    found = world.shadow.summary()

    assert (found["disagreed"], found["agreed"], found["disagreements"]) == (0, 0, [])
    assert found["since_unix_s"] == 200.0
    assert world.shadow.judge_some(10) == 0  # those were offered for the policy before


def test_an_offer_costs_next_to_nothing() -> None:
    """The bound is far above what it takes, so that a busy machine does not break the test."""
    world = World()
    num, best_s = 500, 1.0
    for _ in range(20):
        world.shadow.restart()
        began_s = time.perf_counter()
        for _ in range(num):
            world.shadow.offer(FACTS, PLAN, VIEW, POLICY)
        best_s = min(best_s, (time.perf_counter() - began_s) / num)

    assert best_s < 3e-6
