"""A changed policy tried on a real gateway's traffic: beside it as a shadow, then over its log."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli import cli
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.gateway_process import RunningGateway, cli_environ, start_gateway
from tests.support.gateway_world import Client, chat, issue_key, rows_of, status_of, wait_until
from tests.support.simulator_process import BRISK, policy_over, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_WARM = 10  # of each endpoint by name: the first to be measured must not be all that is known
NUM_REQUESTS = 120
PROFILES = (
    ProviderProfile(
        **{**BRISK, "name": "quick", "model": "sim", "ttft_sigma": 0.1, "ttft_base_s": 0.02},
        price=SimulatedPrice(input=3_000_000, cached_read=300_000, output=15_000_000),
    ),
    ProviderProfile(
        **{**BRISK, "name": "cheap", "model": "sim", "ttft_sigma": 0.1, "ttft_base_s": 0.5},
        price=SimulatedPrice(input=100_000, cached_read=50_000, output=400_000),
    ),
)
ROUTES = "routes: [{name: all, prefer: {by: fastest}}]\n"
CHEAPER = ROUTES.replace("fastest", "cheapest")
CAPPED = ROUTES.replace("{by: fastest}", "{by: fastest, price_max: {input: 0.01}}")


@dataclass
class World:
    gateway: RunningGateway
    home: Path
    policies: dict[str, Path]

    def run(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, list(arguments), env={"LOOPROUTER_HOME": str(self.home)})
        return done.exit_code, done.output

    def json(self, *arguments: str) -> Any:
        code, output = self.run(*arguments, "--json")
        assert code == 0, output
        return json.loads(output)

    def shadow(self) -> dict[str, Any]:
        found: dict[str, Any] = status_of(self.gateway.base_url)["shadow"]
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("trials")
    with simulator_processes(PROFILES, home / "providers") as providers:
        texts = {
            name: policy_over(providers, {"chat": tuple(providers)}, more=more)
            for name, more in (("live", ROUTES), ("cheaper", CHEAPER), ("capped", CAPPED))
        }
        policies = {name: home / f"{name}.yaml" for name in texts}
        for name, text in texts.items():
            policies[name].write_text(text)
        key = issue_key(home)
        options = ("--shadow-policy", str(policies["cheaper"]))
        running = start_gateway(texts["live"], home, key=key, arguments=options)
        try:
            client = Client(running.base_url, running.key)
            for number in range(NUM_REQUESTS):
                body = chat(f"{number}", stream=number % 2 == 0, max_tokens=8)
                if number < 2 * NUM_WARM:
                    body["model"] = ("quick/sim", "cheap/sim")[number // NUM_WARM]
                assert client.ask(body, {}).status == 200
            client.close()
            query = "SELECT COUNT(*) AS num FROM requests"
            wait_until(lambda: rows_of(home, query)[0]["num"] >= NUM_REQUESTS, "the request log")
            yield World(running, home, policies)
        finally:
            assert running.stop() == 0, running.log()[-3000:]


def test_the_policy_that_was_in_force_changes_nothing(world: World) -> None:
    found = world.json("policy", "simulate", str(world.policies["live"]))["comparison"]

    assert (found["num_requests"], found["num_changed"]) == (NUM_REQUESTS, 0)
    assert found["new"]["num_predicted"] == 0
    assert found["differences"]["mean_s"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    (told,) = rows_of(world.home, "SELECT SUM(cost_nanos) AS nanos FROM requests")
    assert found["new"]["cost_usd"]["value"] == pytest.approx(told["nanos"] / 1e9)
    assert found["check"]["num"] == NUM_REQUESTS


def test_a_cheaper_policy_is_predicted_cheaper_and_slower(world: World) -> None:
    found = world.json("policy", "simulate", str(world.policies["cheaper"]))["comparison"]
    new, differences = found["new"], found["differences"]

    assert new["shares"].get("cheap/sim", {}).get("value", 0.0) > 0.85
    assert new["num_predicted"] == found["num_changed"] > NUM_REQUESTS / 2
    assert differences["cost_usd"]["high"] < 0.0
    assert differences["mean_s"]["low"] > 0.0
    assert differences["p50_s"]["low"] > 0.0
    # Another policy may be the other side; its own differences are the same, the sign turned.
    turned = world.json(
        "policy",
        "simulate",
        str(world.policies["live"]),
        "--against",
        str(world.policies["cheaper"]),
    )["comparison"]
    assert turned["old"]["num_predicted"] == new["num_predicted"]
    assert turned["differences"]["cost_usd"]["value"] == pytest.approx(
        -differences["cost_usd"]["value"]
    )


def test_the_table_says_what_is_predicted_refused_and_left_out(world: World) -> None:
    code, text = world.run("policy", "simulate", str(world.policies["cheaper"]), "--limit", "100")
    assert code == 0
    assert f" of {100}" in next(line for line in text.splitlines() if line.startswith("predicted"))
    assert "none, all real" in text
    assert "only the newest 100 were read" in text
    assert "the prediction checked on 100 requests" in text
    code, text = world.run("policy", "simulate", str(world.policies["capped"]))
    assert code == 0
    assert f"refuses {NUM_REQUESTS}: price_max" in text
    code, text = world.run(
        "policy", "simulate", str(world.policies["capped"]), "--since", "2099-01-01"
    )
    assert code == 1
    assert "no request of the log" in text
    code, text = world.run("policy", "simulate", str(world.policies["live"]), "--limit", "5")
    assert "too few" in text


def test_the_shadow_has_seen_every_request_and_says_what_simulate_says(world: World) -> None:
    wait_until(lambda: num_judged(world.shadow()) == NUM_REQUESTS, "the shadow")
    found = world.shadow()
    simulated = world.json("policy", "simulate", str(world.policies["cheaper"]))["comparison"]

    assert found["disagreed"] == simulated["num_changed"]
    assert found["predicted"]["dollars_difference"]["high"] < 0.0
    assert found["predicted"]["seconds_difference"]["mean"] > 0.0
    told = world.json("policy", "shadow", "--url", world.gateway.base_url)
    assert told["disagreements"] == found["disagreements"]
    code, text = world.run("policy", "shadow", "--url", world.gateway.base_url)
    assert code == 0
    assert "quick/sim" in text
    line = f'gateway_shadow_decisions_total{{result="disagreed"}} {found["disagreed"]}.0'
    assert line in httpx.get(f"{world.gateway.base_url}/metrics").text


def test_an_edited_shadow_counts_anew_and_a_bad_edit_hurts_nobody(
    world: World, tmp_path: Path
) -> None:
    path, text = tmp_path / "shadow.yaml", world.policies["cheaper"].read_text()
    path.write_text(text)
    running = start_gateway(
        world.policies["live"].read_text(),
        tmp_path / "home",
        environ={"LOOPROUTER_SHADOW_POLICY": str(path)},
    )
    client = Client(running.base_url, running.key)

    def shadow() -> dict[str, Any]:
        found: dict[str, Any] = status_of(running.base_url)["shadow"]
        return found

    try:
        before = shadow()
        assert client.ask(chat("w", max_tokens=2), {}).status == 200
        wait_until(lambda: num_judged(shadow()) == 1, "the first")
        path.write_text("version: 1\ncolour: red\n")
        wait_until(lambda: "colour" in shadow()["policy_error"], "the mistake to be told")
        assert shadow()["policy_version"] == before["policy_version"]
        assert client.ask(chat("x", max_tokens=2), {}).status == 200
        wait_until(lambda: num_judged(shadow()) == 2, "the second, by the last good one")
        path.write_text(text + "# edited\n")
        wait_until(lambda: shadow()["policy_version"] != before["policy_version"], "the new one")
        assert num_judged(shadow()) == 0
        assert shadow()["policy_error"] == ""
        assert client.ask(chat("y", max_tokens=2), {}).status == 200
        wait_until(lambda: num_judged(shadow()) == 1, "the next")
    finally:
        client.close()
        assert running.stop() == 0, running.log()[-3000:]


def num_judged(shadow: dict[str, Any]) -> int:
    return int(shadow["agreed"]) + int(shadow["disagreed"])


def test_serve_refuses_a_shadow_that_does_not_load(world: World, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\ncolour: red\n")
    for arguments, environ in (
        (("--shadow-policy", str(bad)), {}),
        ((), {"LOOPROUTER_SHADOW_POLICY": str(tmp_path / "gone.yaml")}),
    ):
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "gateway", "serve", "--policy", str(world.policies["live"]),
             "--port", "0", *arguments],
            env=cli_environ(tmp_path / "home", environ),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert "the shadow policy does not load" in done.stderr
        assert time.monotonic() - began_s < 30


def test_without_a_gateway_the_shadow_command_says_where_it_looked(world: World) -> None:
    code, text = world.run("policy", "shadow", "--url", "http://127.0.0.1:9")

    assert code != 0
    assert not text.startswith("requests")
