"""The simulated batch APIs on virtual time: turnaround, states, results, bills, faults, limits."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.simulator.meter import Tally, cost_nanos
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.native_work import batch_price
from gateway.simulator.profile import SimulatedPrice
from tests.support.simulated import SimulatedWorld, chat

pytestmark = pytest.mark.anyio

STEADY = {"turnaround_sigma": 0.0, "turnaround_median_s": 10.0, "validation_s": 1.0}
CHAT = "/v1/chat/completions"


def world(*, faults: tuple[dict[str, Any], ...] = (), **batch: Any) -> SimulatedWorld:
    return SimulatedWorld(batch=_profile(**batch, faults=faults))


def _profile(**batch: Any) -> BatchProfile:
    return msgspec.convert({**STEADY, **batch}, BatchProfile)


def line(number: int, text: str = "[[sim tokens=4]]", **fields: Any) -> dict[str, Any]:
    made = {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": chat(text, seed=1)}
    return {**made, **fields}


async def upload(sim: SimulatedWorld, lines: list[Any], purpose: str = "batch") -> Any:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    body = (
        f'--B\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
        '--B\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n'
        f"content-type: application/jsonl\r\n\r\n{text}\r\n--B--\r\n"
    )
    return await sim.ask(
        "/v1/files",
        body.encode(),
        headers={"content-type": "multipart/form-data; boundary=B"},
    )


async def create(sim: SimulatedWorld, lines: list[Any], **fields: Any) -> Any:
    file_id = (await upload(sim, lines)).json["id"]
    wanted = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **fields}
    return await sim.ask("/v1/batches", wanted)


async def get(sim: SimulatedWorld, path: str) -> Any:
    return await sim.ask(path, method="GET")


async def at(sim: SimulatedWorld, batch_id: str, second: float) -> Any:
    sim.timers.now_s = sim.started_s + second
    return (await get(sim, f"/v1/batches/{batch_id}")).json


async def told(sim: SimulatedWorld, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [
        json.loads(x) for x in (await get(sim, f"/v1/files/{file_id}/content")).body.splitlines()
    ]


async def test_lines_are_done_one_after_the_other_and_told_when_all_are() -> None:
    sim = world()
    created = (await create(sim, [line(n) for n in range(10)], metadata={"k": "v"})).json
    half = await at(sim, created["id"], 6.05)
    all_done = await at(sim, created["id"], 11.0)
    results = await told(sim, all_done["output_file_id"])

    assert (created["status"], created["metadata"]) == ("validating", {"k": "v"})
    assert half["status"] == "in_progress"
    assert half["request_counts"] == {"total": 10, "completed": 5, "failed": 0}
    assert half["output_file_id"] is None
    assert all_done["status"] == "completed"
    assert all_done["completed_at"] - all_done["created_at"] == 11
    ids = [each["custom_id"] for each in results]
    assert sorted(ids) == sorted(f"c{n}" for n in range(10))
    assert ids != sorted(ids)
    assert all_done["usage"]["output_tokens"] == 40


async def test_answer_is_the_one_a_single_request_gets_at_the_batch_price() -> None:
    sim = world(price_percent=50)
    sim.provider.control({"price": {"input": 3, "output": 7}})
    created = (await create(sim, [line(1), line(2)])).json
    done = await at(sim, created["id"], 60.0)
    results = await told(sim, done["output_file_id"])
    alone = await sim.ask("chat", chat("[[sim tokens=4]]", seed=1))
    [*batched, single] = await sim.invoice()

    body = results[0]["response"]["body"]
    assert body["choices"] == alone.json["choices"]
    assert body["usage"] == alone.json["usage"]
    assert {each["client_request_id"] for each in batched} == {"c1", "c2"}
    for each in batched:
        tally = Tally(input=single["input"], output=single["output"])
        assert (each["input"], each["output"]) == (single["input"], single["output"])
        assert each["cost_nanos"] == cost_nanos(SimulatedPrice(input=2, output=4), tally)
    assert (
        sum(x["cost_nanos"] for x in batched) + single["cost_nanos"]
        == sim.provider.books.total_nanos
    )


def test_each_price_is_rounded_up_by_itself() -> None:
    price = SimulatedPrice(input=3, cached_read=1, output=5, reasoning=7)

    assert batch_price(price, 50) == SimulatedPrice(
        input=2, cached_read=1, cache_write_5m=62_500, cache_write_1h=100_000, output=3, reasoning=4
    )
    assert batch_price(SimulatedPrice(), 50).reasoning is None


async def test_invoice_shows_what_is_due_though_nobody_asked_for_the_batch() -> None:
    sim = world()
    await create(sim, [line(n) for n in range(10)])
    sim.timers.now_s = sim.started_s + 4.5

    assert len(await sim.invoice()) == 3


async def test_cancelling_stops_the_work_and_keeps_what_was_done() -> None:
    sim = world(cancel_s=1.0)
    created = (await create(sim, [line(n) for n in range(10)])).json
    await at(sim, created["id"], 4.5)
    leaving = (await sim.ask(f"/v1/batches/{created['id']}/cancel")).json
    gone = await at(sim, created["id"], 30.0)
    again = await sim.ask(f"/v1/batches/{created['id']}/cancel")

    assert leaving["status"] == "cancelling"
    assert gone["status"] == "cancelled"
    assert gone["request_counts"] == {"total": 10, "completed": 4, "failed": 6}
    assert len(await told(sim, gone["output_file_id"])) == len(await sim.invoice()) == 4
    assert gone["error_file_id"] is None
    assert again.status == 409


async def test_batch_that_takes_longer_than_its_window_expires_with_what_is_done() -> None:
    sim = world(window_s=6.05)
    created = (await create(sim, [line(n) for n in range(10)])).json
    expired = await at(sim, created["id"], 100.0)
    errors = await told(sim, expired["error_file_id"])

    assert expired["status"] == "expired"
    assert len(await told(sim, expired["output_file_id"])) == len(await sim.invoice()) == 5
    assert [each["error"]["code"] for each in errors] == ["batch_expired"] * 5
    assert {each["response"] for each in errors} == {None}


async def test_lines_that_cannot_be_answered_are_in_the_error_file_and_cost_nothing() -> None:
    sim = world()
    bad = line(3)
    bad["body"]["n"] = 99
    lines = [line(1), line(2, "[[sim fault=error status=429]]"), bad]
    created = (await create(sim, lines)).json
    done = await at(sim, created["id"], 60.0)
    errors = {
        each["custom_id"]: each["response"] for each in await told(sim, done["error_file_id"])
    }

    assert done["status"] == "completed"
    assert {name: each["status_code"] for name, each in errors.items()} == {"c2": 429, "c3": 400}
    assert errors["c3"]["body"]["error"]["param"] == "n"
    assert len(await sim.invoice()) == 1


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([line(1), "{"], "invalid_json_line", 2),
        ([line(1), line(2), line(1)], "duplicate_custom_id", 3),
        ([line(1, url="/v1/embeddings")], "mismatched_endpoint", 1),
        ([line(1, body=chat(model="other"))], "model_not_found", 1),
        ([line(n) for n in range(6)], "invalid_size", None),
        ([], "invalid_size", None),
    ],
)
async def test_broken_batch_fails_as_a_whole(
    lines: list[Any], code: str, number: int | None
) -> None:
    sim = world(lines_max=5)
    created = (await create(sim, lines)).json
    failed = await at(sim, created["id"], 60.0)

    assert created["status"] == "validating"
    assert failed["status"] == "failed"
    assert (failed["errors"]["data"][0]["code"], failed["errors"]["data"][0]["line"]) == (
        code,
        number,
    )
    assert await sim.invoice() == []


async def test_faults_of_batches() -> None:
    every = [line(n) for n in range(1, 11)]

    slow = world(faults=({"mode": "slow", "factor": 5.0},))
    job = (await create(slow, every)).json
    assert (await at(slow, job["id"], 50.0))["status"] == "in_progress"
    assert (await at(slow, job["id"], 51.1))["status"] == "completed"

    wrong = world(faults=({"mode": "fail_validation"},))
    job = (await create(wrong, every)).json
    assert (await at(wrong, job["id"], 2.0))["status"] == "failed"

    leaving = world(faults=({"mode": "expiring", "done_share": 0.3},))
    job = (await create(leaving, every)).json
    ended = await at(leaving, job["id"], 9.0)
    assert ended["status"] == "expired"
    assert ended["request_counts"] == {"total": 10, "completed": 3, "failed": 7}

    twice = world(faults=({"mode": "duplicate_results", "every": 5},))
    job = (await create(twice, every)).json
    ids = [
        r["custom_id"]
        for r in await told(twice, (await at(twice, job["id"], 60.0))["output_file_id"])
    ]
    assert sorted(ids) == sorted([*(f"c{n}" for n in range(1, 11)), "c5", "c10"])
    assert len(await twice.invoice()) == 10

    gaps = world(faults=({"mode": "missing_results", "every": 5},))
    job = (await create(gaps, every)).json
    ended = await at(gaps, job["id"], 60.0)
    assert len(await told(gaps, ended["output_file_id"])) == len(await gaps.invoice()) == 8
    assert ended["error_file_id"] is None

    failing = world(faults=({"mode": "line_errors", "every": 2, "status": 503},))
    job = (await create(failing, every)).json
    ended = await at(failing, job["id"], 60.0)
    assert ended["request_counts"] == {"total": 10, "completed": 5, "failed": 5}
    assert len(await failing.invoice()) == 5

    early = world(faults=({"mode": "slow", "starts_s": 100.0},))
    job = (await create(early, every)).json
    assert (await at(early, job["id"], 11.1))["status"] == "completed"


async def test_lost_submission_is_done_but_not_said() -> None:
    sim = world(faults=({"mode": "lost_submit"},))
    task, exchange = sim.start("/v1/files", b"", method="GET")
    await sim.timers.until_done(task)
    answer = await create(sim, [line(1)], metadata={"name": "mine"})
    sim.timers.now_s += 60.0
    [listed] = (await get(sim, "/v1/batches")).json["data"]

    assert exchange.status == 200
    assert answer.transport.ended == "aborted"
    assert answer.status == 0
    assert (listed["status"], listed["metadata"]) == ("completed", {"name": "mine"})
    assert len(await sim.invoice()) == 1


async def test_what_has_no_room_is_refused_and_deleting_makes_room() -> None:
    num_bytes = (await upload(world(), [line(1)])).json["bytes"]
    sim = world(bytes_max=2 * num_bytes, stored_bytes_max=2 * num_bytes)
    first, second = await upload(sim, [line(1)]), await upload(sim, [line(2)])
    too_large = await upload(sim, [line(1), line(2), line(3)])
    full = await upload(sim, [line(1)])
    await sim.ask(f"/v1/files/{first.json['id']}", method="DELETE")
    again = await upload(sim, [line(1)])

    assert [e.status for e in (first, second, too_large, full, again)] == [200, 200, 413, 429, 200]


async def test_lists_are_paged_from_the_newest_on() -> None:
    sim = world()
    ids = []
    for _ in range(5):
        ids.append((await create(sim, [line(1)])).json["id"])
        sim.timers.now_s += 1.0
    first = (await sim.ask("/v1/batches", method="GET", query="limit=2")).json
    second = (await sim.ask("/v1/batches", method="GET", query=f"limit=9&after={ids[3]}")).json

    assert [each["id"] for each in first["data"]] == [ids[4], ids[3]]
    assert first["has_more"]
    assert [each["id"] for each in second["data"]] == [ids[2], ids[1], ids[0]]
    assert not second["has_more"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/batches", {"input_file_id": "file-x"}, 400, "endpoint"),
        ("/v1/batches", {"input_file_id": "f", "endpoint": "/v1/x", "completion_window": "24h"},
         400, "no endpoint"),
        ("/v1/batches", {"input_file_id": "f", "endpoint": CHAT, "completion_window": "24h"},
         404, "No such File"),
        ("/v1/batches", {"input_file_id": "f", "endpoint": CHAT, "completion_window": "1h"},
         400, "24h"),
        ("/v1/files", {}, 400, "multipart"),
        ("/v1/batches/none/cancel", {}, 404, "No batch"),
        ("/v1/messages/batches", {"requests": []}, 400, "anthropic-version"),
    ],
)  # fmt: skip
async def test_wrong_requests(path: str, body: Any, status: int, said: str) -> None:
    answer = await world().ask(path, body)

    assert answer.status == status
    assert said in answer.json["error"]["message"]


async def test_provider_without_a_batch_api_has_no_such_paths_and_keys_are_asked_for() -> None:
    plain = SimulatedWorld()
    locked = SimulatedWorld(api_key="k", batch=_profile())

    assert (await get(plain, "/v1/batches")).status == 404
    assert (await get(locked, "/v1/batches")).status == 401
    listed = await locked.ask("/v1/batches", method="GET", headers={"authorization": "Bearer k"})
    assert listed.json["data"] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("turnaround_median_s", 0.0),
        ("turnaround_sigma", -1.0),
        ("lines_min", 0),
        ("lines_max", 0),
        ("price_percent", -1),
        ("faults", [{"mode": "slow", "factor": 0.0}]),
        ("faults", [{"mode": "line_errors", "every": 0}]),
        ("faults", [{"mode": "line_errors", "status": 200}]),
        ("faults", [{"mode": "expiring", "done_share": 2.0}]),
        ("faults", [{"mode": "unknown"}]),
    ],
)
def test_profiles_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError):
        _profile(**{field: value})
