"""The page Backend: what a real server says, what can be wrong with one, and what follows."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gateway.core import MachineLoad
from gateway.dashboard.backend_page import backend_events
from gateway.dashboard.backend_view import ROUNDS_MIN
from gateway.dashboard.backend_watch import OTHER_EVERY_S, BackendWatch, servers_of
from gateway.dashboard.look import Look
from gateway.fleet.load_history import SAMPLES_MAX
from tests.support.backend_pages import (
    FIGURES,
    HEALTH,
    LOAD,
    pages,
    policy_text,
    use_policy,
    with_speculation,
)
from tests.support.backend_process import TINY, RunningBackend, running_backend
from tests.support.dashboard_world import Browser, DashboardWorld, dashboard
from tests.support.edge_world import SECRET
from tests.support.gateway_process import free_port
from tests.support.scripted_server import Script, scripted_server
from tests.support.spelling_model import save_spelling_model

pytestmark = pytest.mark.anyio
LOOK = Look(language="en", theme="auto", here="/backend", csrf="")
NUM_DRAFTS = 4


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    folder = tmp_path_factory.mktemp("own")
    save_spelling_model(folder / "spelling")
    options = (*TINY, "--speculation", "ngram", "--drafts", str(NUM_DRAFTS))
    with running_backend(folder / "spelling", folder / "home", *options, key=SECRET) as running:
        body = {"model": "spelling", "prompt": "a", "max_tokens": 40, "temperature": 0}
        for _ in range(6):
            running.post("/v1/completions", body)
        yield running


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for the module, as its gateway needs."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[DashboardWorld, Browser]]:
    """One gateway for all: it takes longer to start than most of these tests to run."""
    async with dashboard(tmp_path_factory.mktemp("gateway"), roles=["viewer"]) as found:
        found.gateway.fleet.clock = lambda: found.now[0]
        yield found, await found.logged_in("viewer")


@pytest.fixture
def world(shared: tuple[DashboardWorld, Browser]) -> Iterator[DashboardWorld]:
    """With the policy that its file has, and nothing kept from the test before."""
    found, _ = shared
    policy = found.gateway.policy
    found.pass_time(5.0)
    yield found
    found.gateway.policy = policy


@pytest.fixture
def browser(shared: tuple[DashboardWorld, Browser]) -> Browser:
    return shared[1]


async def read(browser: Browser) -> list[dict[str, Any]]:
    answer = await browser.http.get("/admin/api/backends")
    assert answer.status_code == 200, answer.text
    servers: list[dict[str, Any]] = answer.json()["servers"]
    return servers


async def seen_with(
    world: DashboardWorld, browser: Browser, script: Script, **options: Any
) -> list[dict[str, Any]]:
    async with scripted_server(script) as server:
        use_policy(world.gateway, policy_text({"own": f"{server.url}/v1"}, **options))
        return await read(browser)


async def test_a_real_server_tells_its_work_its_drafts_and_their_reasons(
    world: DashboardWorld, browser: Browser, backend: RunningBackend
) -> None:
    use_policy(world.gateway, policy_text({"own": backend.v1, "twin": backend.v1}))
    world.gateway.fleet.report_load("own/m", MachineLoad(num_running=3))

    [server] = (await browser.http.get("/admin/api/backends")).json()["servers"]
    page = (await browser.get("/admin/backend")).text

    told = backend.get("/v1/load")
    assert server["problem"] is None
    assert (server["endpoints"], server["models"]) == (["own/m", "twin/m"], ["words"])
    assert (server["is_named"], server["is_old"]) == (True, False)
    assert server["load"]["speculation"]["method"] == "ngram"
    assert server["load"]["kv_blocks_total"] == told["kv_blocks_total"]
    assert server["health"]["status"] == "ready"
    assert server["health"]["kernels"]["doctor"] == "not examined"
    [worth] = server["worth"]
    [figures] = told["speculation"]["figures"]
    assert worth["places"][0] == {
        "at_risk": figures["num_at_risk"][0], "accepted": figures["num_accepted"][0]
    }  # fmt: skip
    assert worth["acceptance_length"] == pytest.approx(figures["mean_acceptance_length"])
    assert worth["speed_up"] == pytest.approx(figures["speed_up"])
    assert worth["num_rounds"] >= ROUNDS_MIN
    assert server["costs"]["drafts"] == [*range(NUM_DRAFTS + 1)]
    plain = server["costs"]["rows"][0]["cells"][0]
    assert (plain["num_drafts"], plain["cost"]) == (0, None)
    assert plain["step_s"] == pytest.approx(told["speculation"]["step_s"]["1"]["0"])
    assert [each["what"] for each in server["decisions"]] == ["plain_steps", "drafts", "method"]
    assert server["reasons"][0]["num_steps"] >= server["reasons"][-1]["num_steps"]
    assert server["history"]["running"][0] == 3.0
    for shown in ("asked for with --drafts", "ngram", 'id="costs-0"', 'class="n h', "spelling"):
        assert shown in page
    assert "<script>" not in page
    assert 'style="' not in page


@pytest.mark.parametrize(
    ("script", "code", "seen"),
    [
        (pages(b"<html>hello</html>"), "not_ours", "invalid character"),
        (pages({"num_running": 1, "num_waiting": 0}), "not_ours", "model"),
        (pages({**LOAD, "num_running": -1}), "not_ours", "num_running"),
        (pages(b"x" * 300_000), "not_ours", "longer than"),
        (pages(b"{}", status=404), "not_ours", "HTTP 404"),
        (pages(b"{}", status=401), "refused", "HTTP 401"),
        (pages(b"{}", {"status": "loading", "model": "big"}, status=503), "loading", "big"),
        (pages(b"{}", {"status": "failed", "error": "no GPU"}, status=503), "failed", "no GPU"),
        (pages(b"{}", b"broken", status=500), "failed", "HTTP 500"),
    ],
)
async def test_what_is_wrong_with_a_server_is_said_with_what_mends_it(
    world: DashboardWorld, browser: Browser, script: Script, code: str, seen: str
) -> None:
    async with scripted_server(script) as server:
        use_policy(world.gateway, policy_text({"own": f"{server.url}/v1"}))
        [told] = (await browser.http.get("/admin/api/backends")).json()["servers"]
        page = await browser.get("/admin/backend")

    assert told["problem"]["code"] == code
    assert seen in told["problem"]["seen"]
    assert (told["load"], told["worth"], told["costs"]) == (None, [], None)
    assert page.status_code == 200
    assert 'class="problem"' in page.text


async def test_a_server_that_is_away_or_hangs_or_has_no_key(
    world: DashboardWorld, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_policy(world.gateway, policy_text({"own": f"http://127.0.0.1:{free_port()}/v1"}))
    [away] = await read(browser)
    monkeypatch.setattr("gateway.dashboard.backend_watch.ANSWER_S_MAX", 0.05)
    world.pass_time(2.0)
    [slow] = await seen_with(world, browser, pages(wait_s=5.0))
    world.pass_time(2.0)
    [no_key] = await seen_with(world, browser, pages(), key_env="ABSENT")

    assert [each["problem"]["code"] for each in (away, slow, no_key)] == [
        "unreachable", "slow", "no_key",
    ]  # fmt: skip
    assert no_key["problem"]["seen"] == "ABSENT"


async def test_an_older_server_is_shown_with_what_it_has(
    world: DashboardWorld, browser: Browser
) -> None:
    old = {key: value for key, value in LOAD.items() if key != "speculation"}
    async with scripted_server(pages(old, b"{}")) as server:
        use_policy(world.gateway, policy_text({"own": f"{server.url}/v1"}))
        [told] = (await browser.http.get("/admin/api/backends")).json()["servers"]
        page = (await browser.get("/admin/backend")).text

    assert (told["is_old"], told["problem"], told["health"]) == (True, None, None)
    # Its plain steps are known all the same.
    assert [row["cells"][0]["step_s"] for row in told["costs"]["rows"]] == [0.01]
    assert "This server is of version 1.0" in page
    assert "keeps no log of decisions" in page


async def test_without_a_server_the_page_says_how_to_have_one(
    world: DashboardWorld, browser: Browser
) -> None:
    """The world's own endpoint is near, but not ours."""
    page = await browser.get("/admin/backend")

    assert await read(browser) == []
    assert page.status_code == 200
    assert "looprouter-backend serve smollm2" in page.text
    assert "board.js" not in page.text
    assert (await world.browser().http.get("/admin/api/backends")).status_code == 401
    assert (await world.browser().http.get("/admin/events/backend")).status_code == 303


async def test_an_unnamed_server_is_shown_only_if_it_is_ours_and_others_are_left_alone(
    world: DashboardWorld,
    browser: Browser,
) -> None:
    [ours] = await seen_with(world, browser, pages(), own="")
    async with scripted_server(pages(b"{}", status=404)) as other:
        use_policy(world.gateway, policy_text({"own": f"{other.url}/v1"}, own=""))
        watch = BackendWatch(world.gateway)
        for _ in range(5):
            assert await watch.answers() == []
            world.pass_time(OTHER_EVERY_S / 4)

    assert (ours["is_named"], ours["load"]["num_waiting"]) == (False, 2)
    assert len(other.requests) == 2


async def test_a_server_is_asked_once_a_second_however_many_look(world: DashboardWorld) -> None:
    async with scripted_server(pages(wait_s=0.05)) as server:
        use_policy(world.gateway, policy_text({"own": f"{server.url}/v1"}))
        watch = BackendWatch(world.gateway)
        await asyncio.gather(*(watch.answers() for _ in range(20)))
        await watch.answers()
        first = [each.target for each in server.requests if each.header("accept")].count("/v1/load")
        world.pass_time(1.0)
        await watch.answers()
        keys = {each.header("authorization") for each in server.requests}
        asked = [each.target for each in server.requests].count("/v1/load")

    assert first <= 2  # one of the page, and perhaps one of the router's own
    assert asked <= first + 2
    assert asked > first
    assert keys == {f"Bearer {SECRET}"}


async def test_servers_are_one_an_address_and_never_in_public(world: DashboardWorld) -> None:
    text = policy_text({"a": "http://127.0.0.1:1/v1", "b": "http://127.0.0.1:2/v1"}, own="")
    public = text.replace(b"network: private", b"network: public").replace(
        b"http://127.0.0.1:", b"https://example.com:"
    )
    use_policy(world.gateway, text)
    near = servers_of(world.gateway.policy())
    use_policy(world.gateway, public)

    assert [each.endpoint_ids for each in near] == [("a/m",), ("b/m",)]
    assert servers_of(world.gateway.policy()) == []


HOSTILE = '<img src=x onerror="alert(1)">'


async def test_whatever_a_server_says_is_text(world: DashboardWorld, browser: Browser) -> None:
    load = with_speculation(
        method=HOSTILE,
        why_now=HOSTILE,
        num_steps_by_why={HOSTILE: 5},
        figures=[{**FIGURES, "workload": HOSTILE}],
        acceptance_checks=[{"workload": HOSTILE, "found": 0.1, "recorded": 1.0, "is_low": True}],
        decisions=[{"at_unix_s": 1e14, "what": HOSTILE, "method": HOSTILE, "why": HOSTILE}],
    )
    hostile = {**load, "model": HOSTILE, "version": HOSTILE, "status": HOSTILE}
    kernels = {"doctor": HOSTILE, "served_by": {HOSTILE: HOSTILE}, "withheld": {HOSTILE: HOSTILE}}
    health = {**HEALTH, "device": HOSTILE, "error": HOSTILE, "kernels": kernels}
    async with scripted_server(pages(hostile, health)) as server:
        use_policy(world.gateway, policy_text({"own": f"{server.url}/v1"}))
        page = (await browser.get("/admin/backend")).text
        events = backend_events(world.gateway, BackendWatch(world.gateway), LOOK)
        parts = await _first_parts(events)

    assert "<img" not in page
    assert page.count("&lt;img") >= 14
    assert parts.keys() == {
        f"{each}-0" for each in ("figures", "why", "places", "costs", "reasons", "decisions")
    }
    assert not any("<img" in html for html in parts.values())


async def _first_parts(events: AsyncIterator[bytes]) -> dict[str, str]:
    async for event in events:
        found = re.match(rb"event: board\ndata: (.*)\n\n", event)
        if found is not None:
            parts: dict[str, str] = json.loads(found[1])
            return parts
    raise AssertionError("the stream ended")


async def test_stream_sends_what_changed_and_asks_for_a_new_page_when_the_server_is_gone(
    world: DashboardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.dashboard.backend_page.TICK_S", 0.0)
    said = dict(LOAD)
    async with scripted_server(pages(said)) as server:
        use_policy(world.gateway, policy_text({"own": f"{server.url}/v1"}))
        events = backend_events(world.gateway, BackendWatch(world.gateway, every_s=0.0), LOOK)
        first = await _first_parts(events)
        quiet = await anext(events)
        said["num_waiting"] = 11
        second = await _first_parts(events)
        use_policy(world.gateway, policy_text({"own": f"http://127.0.0.1:{free_port()}/v1"}))
        last = [event async for event in events]

    assert len(first) == 6
    assert quiet == b": still here\n\n"
    assert second.keys() == {"figures-0"}
    assert ">11<" in second["figures-0"]
    assert last == [b"event: reload\ndata: {}\n\n"]


async def test_history_is_of_the_last_minutes_and_no_longer(
    world: DashboardWorld, browser: Browser
) -> None:
    use_policy(world.gateway, policy_text({"own": f"http://127.0.0.1:{free_port()}/v1"}))
    for num in range(SAMPLES_MAX + 20):
        load = MachineLoad(num_running=num, kv_blocks_total=4, kv_blocks_used=1, tokens_per_s=0.5)
        world.gateway.fleet.report_load("own/m", load)
        world.gateway.fleet.report_load("own/m", load)  # at the same instant: one sample
        world.pass_time(1.0)

    [server] = await read(browser)

    history = server["history"]
    assert history["running"] == [float(num) for num in range(20, SAMPLES_MAX + 20)]
    assert set(history["cache_use"]) == {0.25}
    assert {len(values) for values in history.values()} == {SAMPLES_MAX}
