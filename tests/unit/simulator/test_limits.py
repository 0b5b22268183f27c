"""What the simulated provider refuses, and how its operator changes it under way."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.simulator.connection import BODY_BYTES_MAX
from tests.support.simulated import SimulatedWorld, chat, messages

pytestmark = pytest.mark.anyio

ONE = chat("[[sim tokens=1]]")


async def test_rate_limit_lets_the_burst_pass_then_the_rate() -> None:
    world = SimulatedWorld(requests_per_minute=60, requests_burst=3, ttft_base_s=0.0)

    burst = [(await world.ask("chat", ONE)) for _ in range(4)]
    world.timers.now_s += 1.0
    later = await world.ask("chat", ONE)

    assert [each.status for each in burst] == [200, 200, 200, 429]
    assert burst[3].headers["retry-after"] == "1"
    assert burst[3].json["error"]["code"] == "rate_limit_exceeded"
    assert later.status == 200
    assert len(await world.invoice()) == 4


async def test_requests_above_the_concurrency_limit_are_refused() -> None:
    world = SimulatedWorld(concurrency_max=2)

    pairs = [world.start("chat", ONE) for _ in range(3)]
    await world.timers.until_done(*(task for task, _ in pairs))

    assert sorted(exchange.status for _, exchange in pairs) == [200, 200, 503]
    assert world.provider.in_flight == 0


async def test_streams_above_the_soft_limit_share_the_speed() -> None:
    world = SimulatedWorld(concurrency_soft=1)
    body = chat("[[sim tokens=11]]", stream=True)

    alone = await world.ask("chat", body)
    alone_s = alone.stamps_s[-1]
    before_s = world.elapsed_s
    pairs = [world.start("chat", body) for _ in range(2)]
    await world.timers.until_done(*(task for task, _ in pairs))

    assert alone_s == pytest.approx(2.0)  # 1 s to the first token, ten more at 10 a second
    # The first starts alone: token 1 at 1 s, then half speed, done at 3 s. The second has its first
    # token at 2 s, five more at half speed until 3 s, and the last five alone at full speed.
    assert pairs[0][1].stamps_s[-1] - before_s == pytest.approx(3.0, abs=0.01)
    assert pairs[1][1].stamps_s[-1] - before_s == pytest.approx(3.5, abs=0.01)


async def test_wrong_key_is_refused_in_each_dialect() -> None:
    world = SimulatedWorld(api_key="k1")

    missing = await world.ask("chat", ONE)
    right = await world.ask("chat", ONE, headers={"authorization": "Bearer k1"})
    wrong = await world.ask("messages", messages(), headers={"x-api-key": "k2"})
    listing = await world.ask("/v1/models", method="GET")

    assert (missing.status, right.status, wrong.status, listing.status) == (401, 200, 401, 401)
    assert missing.json["error"]["code"] == "invalid_api_key"
    assert wrong.json["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("chat", b"{", 400, "parse"),
        ("chat", b"[]", 400, "object"),
        ("chat", b'{"model":"m","messages":' + b"[" * 5000, 400, "nested"),
        ("chat", {"model": "m"}, 400, "messages"),
        ("chat", {"messages": [{"role": "user", "content": "x"}]}, 400, "model"),
        ("chat", chat(model="other"), 404, "does not exist"),
        ("chat", chat(n=17), 400, "'n'"),
        ("chat", chat(max_tokens="ten"), 400, "max_tokens"),
        ("chat", chat(max_tokens=0), 400, "at least 1"),
        ("chat", chat(tool_choice="required"), 400, "tool"),
        ("chat", chat("x" * 600_000), 400, "maximum context length"),
        ("completions", {"model": "m", "prompt": 3}, 400, "prompt"),
        ("embeddings", {"model": "m", "input": []}, 400, "input"),
        ("messages", chat(), 400, "max_tokens"),
        ("messages", messages(thinking={"type": "enabled"}), 400, "budget_tokens"),
        ("/v1/nothing", {}, 404, "Unknown request URL"),
    ],
)
async def test_bad_request_is_refused_and_free(
    path: str, body: object, status: int, said: str
) -> None:
    world = SimulatedWorld()

    done = await world.ask(path, body)

    assert done.status == status
    assert said in done.json["error"]["message"]
    assert await world.invoice() == []


async def test_anthropic_version_is_required() -> None:
    done = await SimulatedWorld().ask("/v1/messages", messages())

    assert done.status == 400
    assert "anthropic-version" in done.json["error"]["message"]


async def test_wrong_method_is_405() -> None:
    assert (await SimulatedWorld().ask("chat", ONE, method="GET")).status == 405


async def test_oversized_body_is_refused() -> None:
    done = await SimulatedWorld().ask("chat", b" " * (BODY_BYTES_MAX + 1))

    assert done.status == 413


async def test_full_invoice_refuses_instead_of_giving_work_away() -> None:
    world = SimulatedWorld()
    world.provider.books.lines_max = 1

    statuses = [(await world.ask("chat", ONE)).status for _ in range(2)]
    await world.control(reset=True)
    again = await world.ask("chat", ONE)

    assert statuses == [200, 503]
    assert again.status == 200
    assert len(await world.invoice()) == 1


async def test_control_changes_one_field_and_keeps_the_others() -> None:
    world = SimulatedWorld(ttft_base_s=3.0)

    done = await world.control(tokens_per_s=99.0)

    assert done.json["tokens_per_s"] == 99.0
    assert done.json["ttft_base_s"] == 3.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens_per_second": 9}, "tokens_per_second"),
        ({"tokens_per_s": "9"}, "$.tokens_per_s"),
        ({"tokens_per_s": 0}, "above 0"),
        ({"faults": [{"mode": "sleepy"}]}, "$.faults[0].mode"),
        ({"faults": [{"mode": "error", "share": 2}]}, "share"),
    ],
)
async def test_control_refuses_what_it_does_not_know(changes: dict[str, object], said: str) -> None:
    world = SimulatedWorld()
    before = world.provider.profile

    done = await world.control(**changes)

    assert done.status == 400
    assert said in done.json["error"]
    assert world.provider.profile == before


async def test_control_needs_a_content_type_no_foreign_page_can_send() -> None:
    done = await SimulatedWorld().ask(
        "/sim/control", {"reset": True}, headers={"content-type": "text/plain"}
    )

    assert done.status == 415


async def test_restarted_clock_counts_windows_from_now() -> None:
    world = SimulatedWorld()
    world.timers.now_s += 500.0

    await world.control(restart_clock=True, faults=[{"mode": "error", "ends_s": 10}])

    assert (await world.ask("chat", ONE)).status == 500


async def test_invoice_carries_the_id_the_client_gave() -> None:
    world = SimulatedWorld()

    done = await world.ask("chat", ONE, headers={"x-client-request-id": "attempt-7"})

    line = (await world.invoice())[0]
    assert line["client_request_id"] == "attempt-7"
    assert done.headers["x-request-id"] == line["id"]
    assert done.json["id"].endswith(line["id"])


async def test_many_streams_at_once_keep_their_own_time() -> None:
    world = SimulatedWorld()
    body = json.dumps(chat("[[sim tokens=21]]", stream=True)).encode()

    pairs = [world.start("chat", body) for _ in range(100)]
    await world.timers.until_done(*(task for task, _ in pairs))
    await asyncio.gather(*(task for task, _ in pairs))

    assert world.elapsed_s == pytest.approx(3.0)
    assert all(exchange.is_complete for _, exchange in pairs)
