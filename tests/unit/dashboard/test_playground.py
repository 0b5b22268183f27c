"""The race: lanes are real requests with real bills, limits hold, closing it closes upstream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core import NANOS_PER_DOLLAR
from gateway.dashboard.app import desk_of
from gateway.dashboard.payer import OWN_TENANT, PLAYGROUND
from gateway.dashboard.playground_race import (
    LANES_MAX,
    OUTPUT_TOKENS_MAX,
    PROMPT_CHARS_MAX,
    LaneNews,
    LaneWanted,
    RaceWanted,
    check_race,
    marks_of,
)
from gateway.dashboard.playground_stream import RACES_AT_ONCE, RACES_MAX, Race, Races
from gateway.errors import InvalidRequest, Overloaded
from gateway.keys.service import create_key, list_all_keys
from gateway.keys.tenants import tenant_id_of
from gateway.keys.wanted import Budget, NewKey
from gateway.store.audit import list_all_events
from tests.support.dashboard_world import DashboardWorld, dashboard
from tests.support.deciding import policy_of
from tests.support.relaying import (
    DONE,
    GOOD,
    ROLE,
    STOP,
    answers,
    frame,
    streams,
    token,
    usage_frame,
)
from tests.support.scripted_server import Connection, Script

pytestmark = pytest.mark.anyio
EVIL = "<img src=x onerror=alert(1)> **bold**"


def race(*endpoints: str, **more: Any) -> dict[str, Any]:
    lanes = [{"model": "chat", "endpoint": each} for each in endpoints]
    return {"prompt": "Say something nice.", "lanes": lanes, **more}


def wanted(*endpoints: str, **more: Any) -> RaceWanted:
    return msgspec.convert(race(*endpoints, **more), RaceWanted)


def later(delay_s: float, *texts: str) -> Script:
    """A server whose answer takes a moment, so that who is first is no accident."""

    async def script(connection: Connection) -> None:
        while await connection.read_request() is not None:
            await connection.begin_stream()
            await connection.send_chunk(ROLE)
            await asyncio.sleep(delay_s)
            for text in texts:
                await connection.send_chunk(token(text))
            for part in (STOP, usage_frame(11, len(texts)), DONE):
                await connection.send_chunk(part)
            await connection.end_stream()

    return script


class Endless:
    """A server that goes on until its client closes the connection."""

    def __init__(self) -> None:
        self.is_closed = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        try:
            while True:
                await connection.send_chunk(token("more "))
                await asyncio.sleep(0.005)
        except (ConnectionError, OSError):
            self.is_closed.set()


def events_in(body: str) -> list[tuple[str, Any]]:
    found = []
    for block in body.split("\n\n")[:-1]:
        name, _, data = block.partition("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def of_lane(events: list[tuple[str, Any]], lane: int) -> list[dict[str, Any]]:
    return [data for name, data in events if name == "lane" and data["lane"] == lane]


async def begun(world: DashboardWorld, *endpoints: str, admin: str = "ana", **more: Any) -> Race:
    world.gateway.clock = time.monotonic
    return (
        await desk_of(world.gateway)
        .only(Races)
        .begin(wanted(*endpoints, **more), admin=admin, actor=f"admin:{admin}")
    )


async def test_two_lanes_are_billed_recorded_and_the_first_to_finish_wins(tmp_path: Path) -> None:
    scripts = (later(0.2, "b", "c", "d"), later(0.0, EVIL))
    async with dashboard(tmp_path, scripts=scripts) as world:
        gateway = world.gateway
        gateway.clock = time.monotonic
        browser = await world.logged_in("operator")
        answer = await browser.send(
            "POST", "/admin/api/race", race("a/m", "b/m", system="Be brief.", temperature=0.5)
        )
        await gateway.ledger.flush()
        tenant_id = await tenant_id_of(gateway.store, OWN_TENANT)
        [key] = await list_all_keys(gateway.store, tenant_id)
        rows = gateway.recorder.newest(2)
        async with gateway.store.read() as connection:
            [audited] = await list_all_events(connection, action="race.")

    events = events_in(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[0][0] == "start"
    assert events[-1] == ("end", {})
    slow, quick = of_lane(events, 0), of_lane(events, 1)
    assert "".join(each["text"] for each in slow) == "bcd"
    assert "".join(each["text"] for each in quick) == EVIL
    assert (slow[-1]["state"], slow[-1]["is_final"], slow[-1]["output_tokens"]) == ("done", True, 3)
    assert (slow[-1]["cost_usd"], quick[-1]["cost_usd"]) == ("0.000017", "0.000013")
    assert slow[-1]["ttft_s"] > 0.15 > quick[-1]["ttft_s"]
    marks = [data for name, data in events if name == "marks"][-1]
    assert (marks["winner"], marks["first_token"], marks["cheapest"]) == ([1], [1], [1])
    assert marks["fastest"] == []  # too few tokens to tell
    # Ordinary requests to the endpoint chosen, of the dashboard's own key.
    assert {row.endpoint_id for row in rows} == {"a/m", "b/m"}
    assert {row.key_id for row in rows} == {key.id}
    assert key.name == PLAYGROUND
    assert sum(row.billed_nanos for row in rows) == 30_000
    assert {row.id for row in rows} == {each["request_id"] for each in events[0][1]["lanes"]}
    asked = json.loads(world.edge.servers[0].requests[0].body)
    assert [each["role"] for each in asked["messages"]] == ["system", "user"]
    assert (asked["temperature"], asked["max_tokens"]) == (0.5, 512)
    assert (audited.actor, audited.subject) == ("admin:operator", key.id)
    assert "nice" not in json.dumps(audited.detail)  # no prompt is written down


async def test_closing_the_stream_or_reading_no_more_closes_upstream_and_settles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless()
    async with dashboard(tmp_path, scripts=(endless, GOOD)) as world:
        running = await begun(world, "a/m", "b/m")
        events: AsyncIterator[bytes] = running.events()
        async for event in events:
            if b'"more ' in event:
                break
        await events.aclose()  # type: ignore[attr-defined]  # it is an async generator
        await asyncio.wait_for(endless.is_closed.wait(), 10)
        async with asyncio.timeout(10):
            while not running.lanes[0].is_over:
                await asyncio.sleep(0.01)
        row = world.gateway.recorder.recent(running.lanes[0].request_id)
        endless.is_closed.clear()
        monkeypatch.setattr("gateway.dashboard.playground_stream.UNREAD_S_MAX", 0.1)
        unread = await begun(world, "a/m")
        await asyncio.wait_for(endless.is_closed.wait(), 10)

    assert unread.lanes[0].sink.gone.is_set()
    assert running.lanes[0].state == "stopped"
    assert running.lanes[1].state == "done"
    assert row is not None
    assert (row.status, row.is_estimated) == (499, True)
    assert row.cost_nanos > 0


async def test_lanes_tell_what_the_endpoint_or_the_gateway_said(tmp_path: Path) -> None:
    said = {"error": {"message": "no <b>such</b> thing", "type": "invalid_request_error"}}
    broken = streams(
        ROLE,
        frame({"reasoning_content": "hmm"}),
        token("half"),
        b'data: {"error": {"message": "it broke", "code": "oops"}}\n\n',
    )
    async with dashboard(tmp_path, scripts=(answers(said, 400), broken, GOOD)) as world:
        world.gateway.clock = time.monotonic
        browser = await world.logged_in("operator")
        await browser.send("POST", "/admin/api/endpoints/pause", {"endpoint": "c/m"})
        answer = await browser.send("POST", "/admin/api/race", race("a/m", "b/m", "c/m"))
        page = await browser.get("/admin/race")

    events = events_in(answer.text)
    refused, cut, held = (of_lane(events, idx)[-1] for idx in range(3))
    assert (refused["state"], refused["status"]) == ("failed", 400)
    assert refused["error"] == "no <b>such</b> thing"
    assert (cut["state"], cut["status"]) == ("failed", 200)
    assert "it broke" in cut["error"]
    assert "".join(each["text"] for each in of_lane(events, 1)) == "half"
    assert "".join(each["reasoning"] for each in of_lane(events, 1)) == "hmm"
    assert (held["status"], held["error_code"]) == (503, "endpoint_held")
    marks = [data for name, data in events if name == "marks"][-1]
    assert marks["winner"] == marks["cheapest"] == []
    assert page.text.count('class="runner"') == 3
    assert ">paused</span>" in page.text


async def test_race_keeps_to_the_budget_of_the_key_that_pays(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=(GOOD, GOOD)) as world:
        gateway = world.gateway
        tenant_id = await tenant_id_of(gateway.store, "default")
        poor = await create_key(
            gateway.store,
            gateway.settings.pepper(),
            tenant_id,
            NewKey(name="poor", budgets=(Budget(limit_nanos=NANOS_PER_DOLLAR // 1_000_000),)),
            now=time.time(),
        )
        await gateway.ledger.reload_budgets()
        browser = await world.logged_in("operator")
        answer = await browser.send("POST", "/admin/api/race", race("a/m", key=poor.row.id))
        strange = await browser.send("POST", "/admin/api/race", race("a/m", key="nobody00"))
        options = (await browser.http.get("/admin/api/race")).json()

    [last] = of_lane(events_in(answer.text), 0)[-1:]
    assert (last["state"], last["status"]) == ("failed", 429)
    assert last["error_code"] == "insufficient_quota"
    assert world.edge.servers[0].requests == []
    assert strange.status_code == 400
    assert "'nobody00' cannot pay" in strange.json()["error"]["message"]
    assert {each["name"] for each in options["payers"]} == {"poor", "test"}


async def test_viewers_see_the_page_and_may_not_start(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=(GOOD,)) as world:
        viewer, operator = await world.logged_in("viewer"), await world.logged_in("operator")
        page = await viewer.get("/admin/race")
        options = await viewer.http.get("/admin/api/race")
        refused = await viewer.send("POST", "/admin/api/race", race("a/m"))
        operator.csrf = "0" * 64
        forged = await operator.send("POST", "/admin/api/race", race("a/m"))
        stranger = await world.browser().http.get("/admin/api/race")

    assert (page.status_code, options.status_code) == (200, 200)
    assert "takes the role operator; yours is viewer" in page.text
    assert 'id="start" title="Start (Ctrl or ⌘ + Enter)" disabled' in page.text
    assert (refused.status_code, forged.status_code, stranger.status_code) == (403, 403, 401)
    assert world.edge.servers[0].requests == []


async def test_an_admin_runs_so_many_races_at_once_and_the_process_so_many(
    tmp_path: Path,
) -> None:
    async with dashboard(tmp_path, scripts=(Endless(),), roles=()) as world:
        races = Races(desk_of(world.gateway))
        world.gateway.clock = time.monotonic
        asked = wanted("a/m")
        running = [
            await races.begin(asked, admin="ana", actor="admin:ana") for _ in range(RACES_AT_ONCE)
        ]
        with pytest.raises(Overloaded, match=f"you have {RACES_AT_ONCE} races running"):
            await races.begin(asked, admin="ana", actor="admin:ana")
        running.append(await races.begin(asked, admin="bo", actor="admin:bo"))
        races.running["others"] = RACES_MAX - 3
        with pytest.raises(Overloaded, match=f"{RACES_MAX} races run"):
            await races.begin(asked, admin="cy", actor="admin:cy")
        for each in running:
            each.stop()
        async with asyncio.timeout(10):
            while races.running["ana"] or races.running["bo"]:
                await asyncio.sleep(0.01)
        with pytest.raises(InvalidRequest, match="empty"):  # refused: it takes no place
            await races.begin(wanted("a/m", prompt=" "), admin="ana", actor="admin:ana")

    assert races.running["ana"] == 0


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"lanes": []}, "lanes", f"1 to {LANES_MAX} lanes"),
        ({"lanes": [("m", "a/x")] * 2}, "lanes", "only once"),
        ({"lanes": [("m", f"{c}/x") for c in "abcde"]}, "lanes", "this one has 5"),
        ({"lanes": [("m", "z/x")]}, "lanes", "no endpoint 'z/x' of the model 'm'"),
        ({"lanes": [("z", "a/x")]}, "lanes", "of the model 'z'"),
        ({"prompt": " \n"}, "prompt", "empty"),
        ({"prompt": "x" * PROMPT_CHARS_MAX, "system": "y"}, "prompt", "too many"),
        ({"max_tokens": 0}, "max_tokens", "between 1"),
        ({"max_tokens": OUTPUT_TOKENS_MAX + 1}, "max_tokens", "between 1"),
        ({"temperature": 2.1}, "temperature", "between 0 and 2"),
        ({"temperature": float("nan")}, "temperature", "between 0 and 2"),
    ],
)
def test_what_no_race_may_be_is_refused_by_field(
    more: dict[str, Any], param: str, said: str
) -> None:
    policy = policy_of("a", "b", "c", "d", "e")
    lanes = more.pop("lanes", [("m", "a/x")])
    fields = {"prompt": "x", **more}
    asked = RaceWanted(
        lanes=tuple(LaneWanted(model=model, endpoint=endpoint) for model, endpoint in lanes),
        **fields,
    )

    with pytest.raises(InvalidRequest, match=said) as refused:
        check_race(asked, policy)

    assert refused.value.param == param


def test_largest_race_is_allowed() -> None:
    lanes = tuple(LaneWanted(model="m", endpoint=f"{each}/x") for each in "abcd")
    check_race(
        RaceWanted(
            lanes=lanes,
            prompt="x" * PROMPT_CHARS_MAX,
            max_tokens=OUTPUT_TOKENS_MAX,
            temperature=2.0,
        ),
        policy_of("a", "b", "c", "d"),
    )


class Stub:
    """What `marks_of` reads of a lane."""

    def __init__(self, idx: int, place: int) -> None:
        self.idx, self.place = idx, place


def test_marks_need_someone_to_compare_with_and_all_equal_is_no_lead() -> None:
    def news(lane: int, state: str = "done", **more: Any) -> LaneNews:
        return LaneNews(lane=lane, state=state, is_final=True, **more)

    def marks(*each: LaneNews, places: tuple[int, ...] = (1, 2, 3)) -> Any:
        numbered = list(enumerate(places))[: len(each)]
        lanes: Any = [Stub(idx, place) for idx, place in numbered]
        return marks_of(lanes, each)

    alone = marks(news(0, ttft_s=0.1))
    equal = marks(news(0, cost_usd="0.01"), news(1, cost_usd="0.01"))
    three = marks(
        news(0, cost_usd="0.01", tokens_per_s=50.0, ttft_s=0.3),
        news(1, cost_usd="0.01", tokens_per_s=90.0, ttft_s=0.2),
        news(2, cost_usd="0.02", tokens_per_s=70.0, ttft_s=0.4),
        places=(2, 3, 1),
    )
    free = marks(news(0, is_unpriced=True), news(1, cost_usd="0.5"))
    early = marks(news(0, "streaming", ttft_s=0.1), news(1, "waiting"), places=(0, 0))

    assert (alone.winner, alone.first_token) == ((), ())
    assert equal.cheapest == ()
    assert (three.winner, three.first_token, three.fastest) == ((2,), (1,), (1,))
    assert three.cheapest == (0, 1)
    assert free.cheapest == ()  # nobody knows what the other costs
    assert (early.winner, early.first_token, early.cheapest) == ((), (0,), ())
