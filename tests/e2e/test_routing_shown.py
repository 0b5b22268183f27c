"""What the gateway shows of its routing: reasons, status page, metrics, models, one request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway_world import (
    chat,
    status_of,
    wait_until,
)
from tests.support.routing_world import (
    POOLS,
    PROFILES,
    World,
    routing_world,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with routing_world(tmp_path_factory.mktemp("routed")) as built:
        yield built


# Reasons


def test_the_explain_header_shows_terms_that_add_up(world: World) -> None:
    answer = world.ask(chat("[[sim tokens=3]]"), x_looprouter_explain="1")
    reasons = json.loads(answer.headers["x-looprouter-explain"])

    assert answer.status == 200
    assert answer.json["choices"]
    assert [each["endpoint"] for each in reasons["candidates"]] == reasons["order"]
    assert reasons["order"][0] == answer.headers["x-looprouter-endpoint"]
    for each in reasons["candidates"]:
        terms, predicted = each["terms"], each["predicted"]
        assert 0.0 < predicted["completion_p5_s"] < predicted["completion_p95_s"]
        time_s = terms["load"] * (terms["ttft_s"] + terms["decode_s"])
        assert terms["time_s"] == pytest.approx(time_s, rel=1e-3, abs=1e-5)
        score_s = terms["time_s"] + terms["failure_s"] + terms["cost_s"]
        assert terms["score_s"] == pytest.approx(score_s, rel=1e-3, abs=1e-5)
        assert terms["cost_s"] == pytest.approx(
            float(terms["cost_usd"]) / 0.0005, rel=1e-3, abs=1e-5
        )
    lost = [each for each in reasons["candidates"] if each["outcome"] != "chosen"]
    assert all(re.search(r"score [\d.]+ s against [\d.]+ s", each["reason"]) for each in lost)


@pytest.mark.parametrize("wish", ["", "0", "false", "Off"])
def test_who_says_no_gets_no_reasons(world: World, wish: str) -> None:
    answer = world.ask(chat("[[sim tokens=3]]"), x_looprouter_explain=wish)

    assert answer.status == 200
    assert "x-looprouter-explain" not in answer.headers


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
    assert all(each["terms"]["score_s"] > 0 and each["reason"] for each in shown["candidates"])
    assert shown["candidates"][0]["outcome"] == "chosen"
