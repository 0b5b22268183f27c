"""How long rows are kept, as owners say it on the page and by the admin API."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gateway.app.retention_job import RetentionJob
from gateway.dashboard.settings_data import RetentionWanted
from gateway.retention import AGES
from gateway.settings import Settings
from gateway.store.audit import list_all_events
from tests.support.dashboard_world import DashboardWorld, dashboard
from tests.unit.dashboard.test_data_pages import log

pytestmark = pytest.mark.anyio
PATH = "/admin/api/settings/retention"
DAY_S = 86_400.0


async def left_of_the_log(world: DashboardWorld) -> list[str]:
    """After a round of the job, by virtual time."""
    gateway = world.gateway
    job = RetentionJob(
        gateway.store, gateway.settings.retention_days, wall_clock=gateway.wall_clock
    )
    await job.run()
    browser = await world.logged_in("viewer")
    answer = (await browser.get("/admin/api/requests")).json()
    return [line["id"] for line in answer["lines"]]


def test_every_age_can_be_said() -> None:
    assert {field.name for field in msgspec.structs.fields(RetentionWanted)} == set(AGES)


async def test_what_an_owner_says_on_the_page_is_deleted_and_told(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        await log(world, 3)
        world.pass_time(5 * DAY_S)
        before = await left_of_the_log(world)
        owner = await world.logged_in("owner")
        page = await owner.get("/admin/settings")
        same = await owner.post("/admin/settings/retention", {})
        done = await owner.post("/admin/settings/retention", {"requests": "4", "audit": "Forever"})
        after = await left_of_the_log(world)
        shown = (await owner.get("/admin/settings")).text
        async with world.gateway.store.read() as connection:
            [event] = await list_all_events(connection, action="retention.")

    assert len(before) == 3
    assert "7 days" in page.text
    assert (same.status_code, done.status_code) == (303, 303)
    assert after == []
    assert "an owner, here" in shown
    assert re.search(r'name="requests"[^>]* value="4"', shown)
    assert re.search(r'name="audit"[^>]* value="forever"', shown)
    assert re.search(r'name="hours"[^>]* value=""[^>]*placeholder="100"', shown)
    assert (event.actor, event.subject) == ("admin:owner", "retention")
    assert event.detail == {"before": {"requests": 7}, "after": {"requests": 4}}


async def test_the_page_goes_before_the_variable_and_null_takes_it_back(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        world.gateway.settings = Settings.from_environment(
            {"LOOPROUTER_HOME": str(tmp_path), "LOOPROUTER_RETENTION": "requests=2d"}
        )
        owner = await world.logged_in("owner")

        async def said(body: dict[str, int | None]) -> tuple[int, str, int]:
            answer = await owner.send("PUT", PATH, body)
            [found] = [each for each in answer.json() if each["name"] == "requests"]
            return found["days"], found["said_by"], found["default_days"]

        chosen, back = await said({"requests": 30}), await said({"requests": None})
        listed = (await owner.send("GET", "/admin/api/settings")).json()["retention"]

    assert chosen == (30, "dashboard", 2)
    assert back == (2, "variable", 2)
    assert [each["name"] for each in listed] == list(AGES)


async def test_wrong_ages_say_what_may_be_given(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        owner = await world.logged_in("owner")
        answers = [
            await owner.send("PUT", PATH, body)
            for body in ({"audit": 1}, {"minutes": 0}, {"requests": 1.5}, {"entries": 3})
        ]
        await owner.get("/admin/settings")
        forms = [
            await owner.post("/admin/settings/retention", {"requests": text})
            for text in ("soon", "0", "-3", "9999")
        ]
        operator = await world.logged_in("operator")
        refused = await operator.send("PUT", PATH, {"requests": 1})
        form = "/settings/retention" in (await operator.get("/admin/settings")).text

    assert [answer.status_code for answer in answers] == [400] * 4
    assert "audit can be kept 30 to 3650 days, or forever; not 1" in answers[0].text
    assert "minutes can be kept 1 to 31 days; not 0" in answers[1].text
    assert [answer.status_code for answer in forms] == [400] * 4
    assert "write forever to keep it for ever" in forms[1].text
    assert "requests can be kept 1 to 3650 days, or forever; not 9999" in forms[3].text
    assert (refused.status_code, form) == (403, False)
