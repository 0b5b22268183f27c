"""Routing as a client sees it: affinity, failing endpoints, wishes, reasons, and what is shown."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.gateway_process import RunningGateway, start_gateway
from tests.support.gateway_world import (
    Answered,
    Client,
    chat,
    in_threads,
    issue_key,
    status_of,
    wait_until,
)
from tests.support.simulator_process import BRISK, SimulatorProcess, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EVEN: dict[str, Any] = {**BRISK, "tokens_per_event": 2, "prefill_tokens_per_s": 50_000.0}
PRICES = {
    "quick": SimulatedPrice(input=3_000_000, cached_read=300_000, output=15_000_000),
    "cheap": SimulatedPrice(input=100_000, cached_read=50_000, output=400_000),
}
PROFILES = (
    ProviderProfile(**{**EVEN, "name": "quick", "tokens_per_s": 300.0}, price=PRICES["quick"]),
    ProviderProfile(**{**EVEN, "name": "cheap", "tokens_per_s": 80.0}, price=PRICES["cheap"]),
    ProviderProfile(**{**EVEN, "name": "twin-a"}),
    ProviderProfile(**{**EVEN, "name": "twin-b"}),
    ProviderProfile(**{**EVEN, "name": "shaky", "ttft_base_s": 0.002}),
    ProviderProfile(**{**EVEN, "name": "steady", "ttft_base_s": 0.2, "tokens_per_s": 100.0}),
)
POOLS = {"chat": ("quick", "cheap"), "twins": ("twin-a", "twin-b"), "risky": ("shaky", "steady")}
# What a policy may say of an endpoint, and a wish may ask for.
SAID = {
    "quick": "stores_data: true",
    "cheap": "stores_data: false, zero_retention: true",
}
CAN = {
    "quick": "parameters: [temperature, seed], capabilities: [text, tools, json_schema]",
    "cheap": "parameters: [temperature], capabilities: [text], context: 4000",
}
ROUTES = """
routes:
  - {name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 1h}}
  - {name: cheap-only, match: {tags: [frugal]}, prefer: {by: fastest, price_max: {input: 1}}}
  - {name: interactive, match: {stream: true}, prefer: {by: fastest}}
  - {name: rest, prefer: {by: balanced, usd_per_second: 0.0005}}
exploration: {share: 0}
"""


def policy(providers: dict[str, SimulatorProcess]) -> str:
    lines = ["version: 1", "providers:"]
    for name, provider in providers.items():
        said = f", {SAID[name]}" if name in SAID else ""
        lines.append(
            f'  {name}: {{api: openai, base_url: "{provider.base_url}", network: private, '
            f"simulated: true{said}}}"
        )
    lines.append("models:")
    for model, names in POOLS.items():
        lines.append(f"  {model}:")
        for name in names:
            price = providers[name].profile.price
            amounts = ", ".join(
                f"{bucket}: {getattr(price, bucket) / 1e6}"
                for bucket in ("input", "cached_read", "output")
            )
            can = f", {CAN[name]}" if name in CAN else ""
            lines.append(
                f"    - {{provider: {name}, model: simulated-model, canonical: sim, "
                f"price: {{{amounts}}}{can}}}"
            )
    return "\n".join(lines) + ROUTES


@dataclass
class World:
    gateway: RunningGateway
    providers: dict[str, SimulatorProcess]

    def ask(self, body: dict[str, Any], **headers: str) -> Answered:
        client = Client(self.gateway.base_url, self.gateway.key)
        try:
            return client.ask(
                body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
        finally:
            client.close()

    def plan(self, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """The decision alone; nothing is sent."""
        answer = self.ask(body, x_looprouter_explain="only", **headers)
        assert answer.status == 200, answer.text
        return dict(answer.json)

    def row(self, endpoint: str) -> dict[str, Any]:
        rows = status_of(self.gateway.base_url)["endpoints"]
        (found,) = [row for row in rows if row["id"].startswith(endpoint + "/")]
        return dict(found)


def provider_of(answer: Answered) -> str:
    return answer.headers["x-looprouter-endpoint"].partition("/")[0]


def order_of(plan: dict[str, Any]) -> list[str]:
    return [each.partition("/")[0] for each in plan["order"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("routed")
    with simulator_processes(PROFILES, home / "providers") as providers:
        gateway = start_gateway(policy(providers), home, key=issue_key(home))
        built = World(gateway, providers)
        numbers = itertools.count()

        def measure() -> None:
            """Streams long enough to show a decode rate, at each of the two endpoints of chat."""
            for _ in range(3):
                name, tokens = ("quick", 180) if next(numbers) % 2 else ("cheap", 60)
                body = chat(f"[[sim tokens={tokens}]]", stream=True, provider={"only": [name]})
                assert built.ask(body).status == 200

        try:
            in_threads(4, measure)
            yield built
        finally:
            assert gateway.stop() == 0, gateway.log()[-3000:]


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


def test_a_conversation_stays_where_its_prefix_is_cached(world: World) -> None:
    numbers = itertools.count()
    seen = in_threads(4, lambda: [conversation(world, next(numbers), 5) for _ in range(2)])
    homes = [each for pair in seen for each in pair]

    moved = sum(len(set(each)) > 1 for each in homes)
    assert moved <= 1, homes
    assert {each[0] for each in homes} == {"twin-a", "twin-b"}, "all of them share one home"
    lines = [
        line for name in ("twin-a", "twin-b") for line in world.providers[name].invoice()["lines"]
    ]
    cached = sum(line["cached_read"] for line in lines)
    prompt = sum(line["input"] + line["cached_read"] for line in lines)
    assert cached / prompt > 0.6


def test_a_session_id_keeps_short_prompts_together(world: World) -> None:
    for header in ("x-session-id", "x-session-affinity", "session_id"):
        seen = {
            provider_of(
                Client(world.gateway.base_url, world.gateway.key).ask(
                    chat(f"Turn {turn} [[sim tokens=4]]", model="twins"), {header: f"mine-{header}"}
                )
            )
            for turn in range(4)
        }
        assert len(seen) == 1, header


# Failing endpoints


def test_a_failing_endpoint_leaves_and_returns(world: World) -> None:
    shaky = world.providers["shaky"]
    body = chat("[[sim tokens=30]]", model="risky", stream=True)
    ask = lambda: world.ask(body)  # noqa: E731
    in_threads(
        2, lambda: [world.ask({**body, "provider": {"only": [n]}}) for n in POOLS["risky"] * 4]
    )
    assert Counter(provider_of(ask()) for _ in range(10))["shaky"] >= 9

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
    began_s = time.monotonic()

    def has_returned() -> bool:
        time.sleep(0.1)  # a client that asks now and then: one of its requests is the probe
        return provider_of(ask()) == "shaky" and world.row("shaky")["breaker"] == "closed"

    wait_until(has_returned, "the endpoint to return", wait_s=60)
    assert time.monotonic() - began_s > 2, "it was tried again at once"


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


# Reasons


def test_the_explain_header_shows_terms_that_add_up(world: World) -> None:
    answer = world.ask(chat("[[sim tokens=3]]"), x_looprouter_explain="1")
    reasons = json.loads(answer.headers["x-looprouter-explain"])

    assert answer.status == 200
    assert answer.json["choices"]
    assert [each["endpoint"] for each in reasons["candidates"]] == reasons["order"]
    assert reasons["order"][0] == answer.headers["x-looprouter-endpoint"]
    for each in reasons["candidates"]:
        terms = each["terms"]
        time_s = terms["load"] * (terms["ttft_s"] + terms["decode_s"])
        assert terms["time_s"] == pytest.approx(time_s, rel=1e-3, abs=1e-5)
        score_s = terms["time_s"] + terms["failure_s"] + terms["cost_s"]
        assert terms["score_s"] == pytest.approx(score_s, rel=1e-3, abs=1e-5)
        assert terms["cost_s"] == pytest.approx(
            float(terms["cost_usd"]) / 0.0005, rel=1e-3, abs=1e-5
        )
    lost = [each for each in reasons["candidates"] if each["outcome"] != "chosen"]
    assert all(re.search(r"score [\d.]+ s against [\d.]+ s", each["reason"]) for each in lost)


def test_explain_only_sends_nothing_and_costs_nothing(world: World) -> None:
    before = {name: each.stats()["requests_seen"] for name, each in world.providers.items()}
    for _ in range(5):
        world.plan(chat())

    assert before == {name: each.stats()["requests_seen"] for name, each in world.providers.items()}


# What is shown


def test_the_status_page_and_its_data_say_what_happened(world: World) -> None:
    assert world.ask(chat("[[sim tokens=3]]")).status == 200
    status = status_of(world.gateway.base_url)
    page = httpx.get(f"{world.gateway.base_url}/")

    assert {each["id"] for each in status["endpoints"]} == {
        f"{profile.name}/simulated-model" for profile in PROFILES
    }
    assert status["requests_total"] > 0
    assert status["is_simulated"] is True
    assert status["recent"][0]["model"] == "chat"
    assert sum(each["share"] for each in status["endpoints"]) == pytest.approx(1.0)
    quick = world.row("quick")
    assert quick["models"] == ["chat"]
    assert quick["price_text"] == "3 · 15"
    assert quick["measured"]["decode_tokens_per_s"]["n"] >= 3
    wait_until(lambda: float(world.row("quick")["spend_usd"]) > 0, "the spend to be booked")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for profile in PROFILES:
        assert f"{profile.name}/simulated-model" in page.text
    assert re.search(r"n \d+", page.text)
    for name in ("status.css", "status.js"):
        assert httpx.get(f"{world.gateway.base_url}/static/{name}").status_code == 200


def test_the_metrics_parse_and_count(world: World) -> None:
    def families() -> dict[str, Any]:
        answer = httpx.get(f"{world.gateway.base_url}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    def num_attempts() -> float:
        return sum(
            sample.value
            for sample in families()["gateway_attempts"].samples
            if sample.name == "gateway_attempts_total"
            and sample.labels == {"endpoint": "quick/simulated-model", "failure": ""}
        )

    before = num_attempts()
    for _ in range(3):
        assert world.ask(chat("[[sim tokens=3]]", provider={"only": ["quick"]})).status == 200

    assert num_attempts() - before == 3
    found = families()
    for name in (
        "gateway_requests",
        "gateway_request_duration_seconds",
        "gateway_overhead_seconds",
    ):
        assert found[name].samples, name
    assert all(family.documentation for family in found.values())
    known = {f"{profile.name}/simulated-model" for profile in PROFILES}
    for family in found.values():
        for sample in family.samples:
            assert sample.labels.get("endpoint", "quick/simulated-model") in known


def test_models_are_listed_with_price_and_measured_speed(world: World) -> None:
    answer = httpx.get(f"{world.gateway.v1}/models", headers=world.gateway.headers).json()
    listed = {each["id"]: each for each in answer["data"]}

    assert set(listed) == set(POOLS)
    endpoints = {each["provider"]: each for each in listed["chat"]["looprouter"]["endpoints"]}
    quick = endpoints["quick"]
    assert quick["prices"][0]["output"] == "15"
    assert quick["capabilities"] == ["json_schema", "text", "tools"]
    assert endpoints["cheap"]["context_tokens_max"] == 4_000
    assert quick["quantisation"] == "unknown"
    rate = quick["measured"]["decode_tokens_per_s"]
    assert rate["n"] >= 3
    assert rate["low"] <= rate["value"] <= rate["high"]
    assert 150 < rate["value"] < 600  # it is 300
    cheap = endpoints["cheap"]["measured"]["decode_tokens_per_s"]
    assert 40 < cheap["value"] < 160  # it is 80
    unused = {each["provider"]: each for each in listed["risky"]["looprouter"]["endpoints"]}
    assert set(unused) == {"shaky", "steady"}


def test_a_request_can_be_looked_up_with_every_candidate(world: World) -> None:
    answer = world.ask(chat("[[sim tokens=3]]"))
    request_id = answer.headers["x-looprouter-request-id"]
    shown = httpx.get(
        f"{world.gateway.v1}/requests/{request_id}", headers=world.gateway.headers
    ).json()

    assert shown["endpoint_id"] == answer.headers["x-looprouter-endpoint"]
    assert shown["cost"] == answer.headers["x-looprouter-cost"]
    assert {each["endpoint_id"] for each in shown["candidates"]} == {
        "quick/simulated-model",
        "cheap/simulated-model",
    }
