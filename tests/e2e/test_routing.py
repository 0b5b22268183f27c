"""Routing as a client sees it: affinity, failing endpoints, wishes."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway_world import (
    Client,
    chat,
    in_threads,
    wait_until,
)
from tests.support.routing_world import (
    POOLS,
    World,
    order_of,
    provider_of,
    routing_world,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with routing_world(tmp_path_factory.mktemp("routed")) as built:
        yield built


# Affinity


def conversation(world: World, number: int, num_turns: int) -> list[str]:
    """The endpoint of each turn of a conversation whose beginning is worth caching."""
    turns = [{"role": "system", "content": f"Conversation {number}. " + "Mind each word. " * 400}]
    seen = []
    for turn in range(num_turns):
        turns.append({"role": "user", "content": f"Question {turn}? [[sim tokens=6]]"})
        answer = world.ask({"model": "twins", "messages": list(turns), "stream": False})
        assert answer.status == 200
        seen.append(provider_of(answer))
        turns.append(
            {"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]}
        )
    return seen


def num_moves(homes: list[str]) -> int:
    """How often a turn went elsewhere than the one before it."""
    return sum(before != after for before, after in itertools.pairwise(homes))


def test_a_conversation_stays_where_its_prefix_is_cached(world: World) -> None:
    numbers = itertools.count()
    seen = in_threads(4, lambda: [conversation(world, next(numbers), 5) for _ in range(2)])
    homes = [each for pair in seen for each in pair]

    # Of 32 turns that could move; without affinity half of them would. A busy machine makes an
    # endpoint look slow now and then, and then a move is right.
    assert sum(num_moves(each) for each in homes) <= 6, homes
    lines = [
        line for name in ("twin-a", "twin-b") for line in world.providers[name].invoice()["lines"]
    ]
    cached = sum(line["cached_read"] for line in lines)
    prompt = sum(line["input"] + line["cached_read"] for line in lines)
    assert cached / prompt > 0.5


def test_a_session_id_keeps_short_prompts_together(world: World) -> None:
    def session(header: str) -> list[str]:
        client = Client(world.gateway.base_url, world.gateway.key)
        return [
            provider_of(
                client.ask(
                    chat(f"Turn {turn} [[sim tokens=4]]", model="twins"), {header: f"mine-{header}"}
                )
            )
            for turn in range(12)
        ]

    homes = [session(name) for name in ("x-session-id", "x-session-affinity", "session_id")]

    assert sum(num_moves(each) for each in homes) <= 6, homes  # of 33


# Failing endpoints


def test_a_failing_endpoint_leaves_and_returns(world: World) -> None:
    shaky = world.providers["shaky"]
    body = chat("[[sim tokens=30]]", model="risky", stream=True)
    ask = lambda: world.ask(body)  # noqa: E731
    in_threads(
        2, lambda: [world.ask({**body, "provider": {"only": [n]}}) for n in POOLS["risky"] * 4]
    )
    assert Counter(provider_of(ask()) for _ in range(10))["shaky"] >= 9

    began_s = time.monotonic()  # it opens after this, and stays so for eight seconds at least
    shaky.control(faults=[{"mode": "error", "status": 503}])
    answers = [ask() for _ in range(12)]
    assert {answer.status for answer in answers} == {200}
    assert {provider_of(answer) for answer in answers} == {"steady"}
    assert world.row("shaky")["breaker"] == "open"
    seen = shaky.stats()["requests_seen"]
    for _ in range(10):
        assert ask().headers["x-looprouter-attempts"] == "1"
    assert shaky.stats()["requests_seen"] == seen
    reasons = {each["endpoint"]: each for each in world.plan(chat(model="risky"))["candidates"]}
    assert reasons["shaky/simulated-model"]["outcome"] == "excluded"
    assert reasons["shaky/simulated-model"]["reason"].startswith("breaker: open")

    shaky.control(faults=[])

    def has_returned() -> bool:
        time.sleep(0.1)  # a client that asks now and then: one of its requests is the probe
        return provider_of(ask()) == "shaky" and world.row("shaky")["breaker"] == "closed"

    wait_until(has_returned, "the endpoint to return", wait_s=60)
    assert time.monotonic() - began_s > 7, "it was tried again at once"


# Wishes


def test_suffixes_choose_speed_or_price(world: World) -> None:
    nitro = world.plan(chat(model="chat:nitro"))
    floor = world.plan(chat(model="chat:floor"))

    assert (nitro["prefer"], order_of(nitro)) == ("throughput", ["quick", "cheap"])
    assert (floor["prefer"], order_of(floor)) == ("price", ["cheap", "quick"])
    assert provider_of(world.ask(chat("[[sim tokens=2]]", model="chat:nitro"))) == "quick"
    assert provider_of(world.ask(chat("[[sim tokens=2]]", model="chat:floor"))) == "cheap"


def test_streams_go_to_the_fastest_and_batches_to_the_cheapest(world: World) -> None:
    stream = world.plan(chat(stream=True))
    batch = world.plan(chat(), x_looprouter_lane="batch")
    by_suffix = world.plan(chat(model="chat:batch"))
    frugal = world.plan(chat(stream=True), x_looprouter_tags="frugal")

    assert (stream["route"], order_of(stream)[0]) == ("interactive", "quick")
    assert (batch["route"], order_of(batch)[0]) == ("batch", "cheap")
    assert (by_suffix["route"], order_of(by_suffix)[0]) == ("batch", "cheap")
    assert (frugal["route"], order_of(frugal)) == ("cheap-only", ["cheap"])


# The provider object → the order it leads to, and the rule that excluded the other endpoint.
WISHES: list[tuple[dict[str, Any], list[str], str]] = [
    ({"only": ["cheap"]}, ["cheap"], "only"),
    ({"ignore": ["quick"]}, ["cheap"], "ignore"),
    ({"order": ["cheap", "quick"]}, ["cheap", "quick"], ""),
    ({"order": ["cheap"], "allow_fallbacks": False}, ["cheap"], "order"),
    ({"allow_fallbacks": False}, ["quick"], ""),
    ({"data_collection": "deny"}, ["cheap"], "data_collection"),
    ({"zdr": True}, ["cheap"], "zdr"),
    ({"max_price": {"prompt": 1}}, ["cheap"], "max_price"),
    ({"max_price": {"completion": "14.99"}}, ["cheap"], "max_price"),
    ({"sort": "price"}, ["cheap", "quick"], ""),
    ({"sort": "throughput"}, ["quick", "cheap"], ""),
    ({"sort": {"by": "price", "partition": "none"}}, ["cheap", "quick"], ""),
    ({"preferred_min_throughput": 150}, ["quick", "cheap"], ""),
]


@pytest.mark.parametrize(("wish", "order", "rule"), WISHES, ids=lambda each: json.dumps(each))
def test_each_field_of_the_provider_object_is_obeyed(
    world: World, wish: dict[str, Any], order: list[str], rule: str
) -> None:
    plan = world.plan(chat(stream=True, provider=wish))

    assert order_of(plan) == order
    excluded = {
        each["reason"].split(":")[0] for each in plan["candidates"] if each["outcome"] == "excluded"
    }
    assert excluded == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("wish", "rule"),
    [
        ({"quantizations": ["fp8"]}, "quantizations"),
        ({"enforce_distillable_text": True}, "enforce_distillable_text"),
        ({"only": ["nobody"]}, "only"),
    ],
)
def test_a_wish_that_nobody_meets_names_the_rule_for_each_endpoint(
    world: World, wish: dict[str, Any], rule: str
) -> None:
    answer = world.ask(chat(provider=wish))

    assert (answer.status, answer.code) == (503, "no_eligible_endpoint")
    error = answer.json["error"]
    detail = error.get("detail") or error.get("details") or error["metadata"]
    assert {each["rule"] for each in detail} == {rule}
    assert {each["endpoint"] for each in detail} == {
        "quick/simulated-model",
        "cheap/simulated-model",
    }


def test_required_parameters_exclude_who_cannot_carry_them(world: World) -> None:
    wish = {"require_parameters": True}
    plan = world.plan(chat(temperature=0.2, seed=7, provider=wish))

    assert order_of(plan) == ["quick"]
    assert (
        "seed"
        in next(each for each in plan["candidates"] if each["outcome"] == "excluded")["reason"]
    )


def test_needs_of_the_request_exclude_who_cannot_meet_them(world: World) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with_tools = world.plan(chat(tools=[tool]))
    long = world.plan(chat("word " * 6_000))

    reasons = {
        each["reason"].split(":")[0]
        for plan in (with_tools, long)
        for each in plan["candidates"]
        if each["outcome"] == "excluded"
    }
    assert order_of(with_tools) == order_of(long) == ["quick"]
    assert reasons == {"capability", "context"}


def test_a_bad_wish_is_the_callers_error(world: World) -> None:
    answer = world.ask(chat(provider={"sorted": "price"}))

    assert answer.status == 400
    assert "sorted" in answer.json["error"]["message"]
    assert answer.json["error"]["param"].startswith("provider")


def test_the_fallback_list_goes_on_to_the_next_model(world: World) -> None:
    answer = world.ask(chat("[[sim tokens=3]]", model="no-such-model", models=["twins", "chat"]))

    assert answer.status == 200
    assert provider_of(answer) in POOLS["twins"]
