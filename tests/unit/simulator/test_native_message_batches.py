"""The simulated message batches on virtual time: states, results, bills, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.native_profile import BatchProfile
from tests.support.simulated import SimulatedWorld, messages

pytestmark = pytest.mark.anyio


def world(**batch: Any) -> SimulatedWorld:
    steady = {"turnaround_sigma": 0.0, "turnaround_median_s": 10.0, "validation_s": 1.0}
    return SimulatedWorld(batch=BatchProfile(**{**steady, **batch}))


async def test_message_batches() -> None:
    sim = world(cancel_s=0.0)
    headers = {"anthropic-version": "2023-06-01"}
    requests = [
        {"custom_id": "nb_1-1", "params": messages("[[sim tokens=4]]")},
        {"custom_id": "nb_1-2", "params": {"model": "m", "messages": []}},
        {"custom_id": "nb_1-3", "params": messages(model="other")},
    ]
    created = (await sim.ask("/v1/messages/batches", {"requests": requests}, headers=headers)).json
    early = await sim.ask(
        f"/v1/messages/batches/{created['id']}/results", method="GET", headers=headers
    )
    sim.timers.now_s += 60.0
    path = f"/v1/messages/batches/{created['id']}"
    ended = (await sim.ask(path, method="GET", headers=headers)).json
    raw = (await sim.ask(f"{path}/results", method="GET", headers=headers)).body
    results = {x["custom_id"]: x["result"] for x in map(json.loads, raw.splitlines())}
    [bill] = await sim.invoice()

    assert created["processing_status"] == "in_progress"
    assert created["request_counts"]["processing"] == 3
    assert early.status == 404
    assert ended["processing_status"] == "ended"
    assert (ended["request_counts"]["succeeded"], ended["request_counts"]["errored"]) == (1, 2)
    assert ended["results_url"].endswith(f"{path}/results")
    assert results["nb_1-1"]["message"]["usage"]["service_tier"] == "batch"
    assert results["nb_1-2"]["error"]["error"]["type"] == "invalid_request_error"
    assert results["nb_1-3"]["error"]["error"]["type"] == "not_found_error"
    assert (bill["client_request_id"], bill["surface"]) == ("nb_1-1", "messages")


async def test_message_batch_that_is_left_tells_every_line() -> None:
    sim = world(cancel_s=0.0)
    headers = {"anthropic-version": "2023-06-01"}
    requests = [{"custom_id": f"x-{n}", "params": messages("[[sim tokens=1]]")} for n in range(10)]
    created = (await sim.ask("/v1/messages/batches", {"requests": requests}, headers=headers)).json
    path = f"/v1/messages/batches/{created['id']}"
    sim.timers.now_s += 4.5
    await sim.ask(f"{path}/cancel", headers=headers)
    sim.timers.now_s += 1.0
    raw = (await sim.ask(f"{path}/results", method="GET", headers=headers)).body
    kinds = [json.loads(each)["result"]["type"] for each in raw.splitlines()]

    assert sorted(kinds) == ["canceled"] * 7 + ["succeeded"] * 3
    assert len(await sim.invoice()) == 3


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "1 to 5"),
        ([{"custom_id": "a:1", "params": {}}], "custom_id"),
        ([{"custom_id": "a", "params": {}}] * 2, "unique"),
        ([{"custom_id": "a"}], "params"),
    ],
)
async def test_wrong_message_batches(requests: Any, said: str) -> None:
    answer = await world(lines_max=5).ask(
        "/v1/messages/batches",
        {"requests": requests},
        headers={"anthropic-version": "2023-06-01"},
    )

    assert answer.status == 400
    assert said in answer.json["error"]["message"]
