"""The SDKs' batch flows over a real model of our own beside simulated providers' batch APIs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from gateway.app.own_backend import PARAMETERS
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.backend_process import RunningBackend, running_backend
from tests.support.batch_books import question
from tests.support.batch_world import chat_line, joined_lines, wait_for_end
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.gateway_world import status_of, wait_until
from tests.support.simulator_process import BRISK, simulator_processes
from tests.support.text_models import smollm2_file

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "a-key-of-the-backend"
NUM_LINES = 24
NUM_NATIVE = 60  # as many as a provider's batch need not wait for
ENDS_S_MAX = 300.0
PRICE = SimulatedPrice(input=3_000_000, output=15_000_000)
QUICK = BatchProfile(turnaround_median_s=1.0, turnaround_sigma=0.1)
PROFILES = tuple(
    ProviderProfile(**{**BRISK, "name": name, "model": "sim", "price": PRICE, "batch": QUICK})
    for name in ("open-batch", "claude-batch")
)
POLICY = """
version: 1
providers:
  own:
    api: openai
    base_url: "{own}"
    network: private
    key_env: OWN_KEY
    self_hosted: {{billing: owned, watts: 30, usd_per_kwh: 0.20, tokens_per_hour: 100000}}
  open-batch: {{base_url: "{openai}", network: private, simulated: true, quirks: [native_batch]}}
  claude-batch: {{api: anthropic, base_url: "{anthropic}", network: private, simulated: true,
    quirks: [native_batch]}}
models:
  small:
    - {{provider: own, model: smollm2-135m-instruct, context: 8192, surfaces: [chat, completions],
        parameters: [{parameters}]}}
    - {{provider: open-batch, model: sim, context: 8192, price: {{input: 3, output: 15}}}}
  native:
    - {{provider: open-batch, model: sim, context: 8192, price: {{input: 3, output: 15}}}}
  claude:
    - {{provider: claude-batch, model: sim, context: 8192, price: {{input: 3, output: 15}}}}
routes: [{{name: all, prefer: {{by: fastest}}}}]
"""


@dataclass(frozen=True, slots=True)
class World:
    backend: RunningBackend
    gateway: RunningGateway


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("own")
    with (
        running_backend(smollm2_file(), folder / "backend", key=KEY) as backend,
        simulator_processes(PROFILES, folder / "providers") as providers,
    ):
        policy = POLICY.format(
            own=backend.v1,
            openai=providers["open-batch"].base_url,
            anthropic=providers["claude-batch"].root,
            parameters=", ".join(PARAMETERS),
        ).replace("smollm2-135m-instruct", backend.model)
        with running_gateway(policy, folder / "home", environ={"OWN_KEY": KEY}) as gateway:
            world = World(backend, gateway)
            wait_until(lambda: own_row(world)["measured"]["machine"] is not None, "its load")
            yield world
        assert "own fault" not in gateway.log()


@pytest.fixture
def client(world: World) -> Iterator[OpenAI]:
    with OpenAI(base_url=world.gateway.v1, api_key=world.gateway.key, max_retries=0) as client:
        yield client


def own_row(world: World) -> dict[str, Any]:
    rows = status_of(world.gateway.base_url)["endpoints"]
    (row,) = [each for each in rows if each["id"].startswith("own/")]
    return dict(row)


def make(client: OpenAI, lines: list[dict[str, Any]]) -> Any:
    file = client.files.create(file=("in.jsonl", joined_lines(lines)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def answers(client: OpenAI, batch: Any) -> dict[str, str]:
    assert batch.error_file_id is None
    found = {}
    for line in client.files.content(batch.output_file_id).text.splitlines():
        each = json.loads(line)
        found[each["custom_id"]] = each["response"]["body"]["choices"][0]["message"]["content"]
    return found


def test_openais_flow_uses_the_own_machine_at_its_marginal_cost_and_a_native_batch(
    world: World, client: OpenAI
) -> None:
    lines = [chat_line(f"own-{at}", "small", question(at)) for at in range(NUM_LINES)]
    lines += [chat_line(f"nat-{at}", "native", question(at)) for at in range(NUM_NATIVE)]
    made = make(client, lines)
    lanes = {each["lane"]: each for each in made.looprouter["plan"]["lanes"]}
    own_lane = f"own/{world.backend.model}#standard"
    assert set(lanes) == {own_lane, "open-batch/sim#native"}
    assert (lanes[own_lane]["kind"], lanes[own_lane]["lines"]) == ("own", NUM_LINES)
    # A machine that is on anyway: less than a hundredth of what the provider's batch takes.
    own_usd, native_usd = (float(lanes[name]["cost_usd"]) for name in sorted(lanes, reverse=True))
    assert 0.0 < own_usd < native_usd / 100

    done = wait_for_end(lambda: client.batches.retrieve(made.id), wait_s=ENDS_S_MAX)
    assert (done.status, done.request_counts.completed) == ("completed", len(lines))
    found = answers(client, done)
    assert set(found) == {each["custom_id"] for each in lines}
    assert all(found.values())
    said = " ".join(found[f"own-{at}"] for at in range(NUM_LINES))
    assert len(set(said.split())) > 30  # words of a model, not of a simulator's list
    print(f"\nown ${own_usd}, native ${native_usd}; in all ${done.looprouter['cost_usd']}")


def test_anthropics_flow_does_the_same(world: World) -> None:
    requests: list[Any] = [
        {
            "custom_id": f"{model}-{at}",
            "params": {
                "model": model,
                "max_tokens": 16,
                "messages": [{"role": "user", "content": question(at)}],
            },
        }
        for model, num in (("small", NUM_LINES), ("claude", NUM_NATIVE))
        for at in range(num)
    ]
    with Anthropic(
        base_url=world.gateway.base_url, api_key=world.gateway.key, max_retries=0
    ) as client:
        made = client.messages.batches.create(requests=requests)
        began_s = time.monotonic()
        while client.messages.batches.retrieve(made.id).processing_status != "ended":
            assert time.monotonic() - began_s < ENDS_S_MAX
            time.sleep(0.5)
        found = {each.custom_id: each.result for each in client.messages.batches.results(made.id)}
    assert set(found) == {each["custom_id"] for each in requests}
    assert {each.type for each in found.values()} == {"succeeded"}
