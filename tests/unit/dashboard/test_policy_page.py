"""The page Policy and its API: one source of truth, whoever changes it and by whatever way."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.app.policy_home import why_not_writable
from gateway.dashboard.policy_data import NOTE_CHARS_MAX
from gateway.policy.load import version_of
from gateway.policy.yaml_guard import TEXT_BYTES_MAX
from gateway.store.audit import list_all_events
from tests.support.dashboard_world import Browser, DashboardWorld, dashboard

pytestmark = pytest.mark.anyio
XSS = "</textarea><script>alert(1)</script><img src=x onerror=alert(2)>"


def live_text(world: DashboardWorld) -> str:
    assert world.gateway.policy_home is not None
    return world.gateway.policy_home.text.decode()


async def publish(browser: Browser, text: str, base: str, note: str = "a reason") -> Any:
    return await browser.send(
        "POST", "/admin/api/policy/publish", {"text": text, "base": base, "note": note}
    )


async def reloaded(world: DashboardWorld, version: str) -> None:
    for _ in range(400):
        if world.gateway.policy().version == version:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(world.gateway.policy_error())


async def test_an_edit_is_published_into_the_file_verbatim_and_rolled_back(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with dashboard(tmp_path) as world:
        before = live_text(world)
        file.chmod(0o640)
        browser = await world.logged_in("operator")
        shown = (await browser.send("GET", "/admin/api/policy")).json()
        # A comment, odd spacing and a quote are the operator's own and stay.
        text = before + "# mine:   'kept'\nretry:   {max: 1}\n"
        done = await publish(browser, text, shown["version"], "fewer tries")
        file_then, policy_then = file.read_text(), world.gateway.policy()
        again = await publish(browser, text, policy_then.version)
        back = await browser.send(
            "POST",
            f"/admin/api/policy/versions/{shown['version']}/rollback",
            {"base": policy_then.version, "note": "no better"},
        )
        history = (await browser.send("GET", "/admin/api/policy/versions")).json()
        events = (await browser.send("GET", "/admin/api/audit?subject=policy")).json()["events"]

    assert (shown["kind"], shown["place"]) == ("file", str(file))
    assert shown["text"] == before
    assert done.json() == {"version": version_of(text.encode()), "is_in_force": True}
    assert file_then == text
    assert policy_then.retry.attempts_max == 1
    assert list(policy_then.models) == ["chat"]
    assert again.status_code == 400
    assert "nothing to publish" in again.text
    assert back.json() == {"version": shown["version"], "is_in_force": True}
    assert file.read_text() == before
    assert file.stat().st_mode & 0o777 == 0o640
    assert [name for name in os.listdir(tmp_path) if name.endswith(".draft")] == []
    told = [
        (each["change"]["actor"], each["change"]["action"], each["change"]["note"])
        for each in history["versions"]
    ]
    owner = file.owner()
    assert told == [
        ("admin:operator", "policy.rollback", "no better"),
        ("admin:operator", "policy.publish", "fewer tries"),
        (f"file:{owner}", "policy.file", ""),
    ]
    assert [each["is_live"] for each in history["versions"]] == [True, False, True]
    assert events[1]["detail"]["before"] == {"version": shown["version"]}
    assert events[1]["detail"]["after"] == {"version": version_of(text.encode())}


async def test_a_hand_on_the_file_and_an_edit_here_never_fight(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before = live_text(world)
        base = world.gateway.policy().version
        by_hand = before + "# by hand\n"
        file.write_text(by_hand)
        # At once: before anybody here has seen that the file is another. It is when this ends, so
        # that who is refused can compare.
        raced = await publish(browser, before + "# from the page\n", base)
        version_then, file_then = world.gateway.policy().version, file.read_text()
        await reloaded(world, version_of(by_hand.encode()))
        late = await publish(browser, before + "# from the page\n", base)
        page = await browser.post(
            "/admin/policy/publish",
            {"text": before + "# from the page\n", "base": base, "note": "mine"},
        )
        on_top = await browser.post(
            "/admin/policy/publish",
            {
                "text": by_hand + "# from the page\n",
                "base": base,
                "on": version_of(by_hand.encode()),
                "note": "mine",
            },
        )
        history = (await browser.send("GET", "/admin/api/policy/versions")).json()

    for refused in (raced, late):
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "policy_changed"
    assert file_then == by_hand
    assert version_then == version_of(by_hand.encode())
    assert page.status_code == 409
    assert "# from the page" in page.text  # what was typed is still there
    assert '<del><span class="sign">−</span># by hand</del>' in page.text
    assert f'name="on" value="{version_of(by_hand.encode())}"' in page.text
    assert on_top.status_code == 303
    assert file.read_text() == by_hand + "# from the page\n"
    actions = [each["change"]["action"] for each in history["versions"]]
    assert actions == ["policy.publish", "policy.file", "policy.file"]


async def test_a_broken_file_is_told_shown_to_operators_and_mended_here(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with dashboard(tmp_path) as world:
        operator, viewer = await world.logged_in("operator"), await world.logged_in("viewer")
        before = live_text(world)
        base = world.gateway.policy().version
        broken = before.replace("models:", "modles:")
        file.write_text(broken)
        for _ in range(400):
            if world.gateway.policy_error():
                break
            await asyncio.sleep(0.02)
        page = await operator.get("/admin/policy")
        opened = await operator.get("/admin/policy?open=held")
        not_opened = await viewer.get("/admin/policy?open=held")
        blind = await publish(operator, before + "# over it\n", base)
        mended = await publish(operator, before + "# mended\n", version_of(broken.encode()))
        fault = (await operator.send("GET", "/admin/api/policy")).json()["fault"]

    assert "modles: unknown field; did you mean `models`?" in page.text
    assert "modles:" not in re.findall(r"<textarea.*?</textarea>", page.text, re.DOTALL)[0]
    assert "modles:" in re.findall(r"<textarea.*?</textarea>", opened.text, re.DOTALL)[0]
    assert "modles:" not in re.findall(r"<textarea.*?</textarea>", not_opened.text, re.DOTALL)[0]
    assert blind.status_code == 409
    assert mended.json()["is_in_force"] is True
    assert fault == ""


async def test_every_problem_is_told_with_its_line_and_column(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before = live_text(world)
        wrong = before + "retry: {max: many}\nroutes:\n  - {name: r, prefer: {by: best}}\n"
        found = (await browser.send("POST", "/admin/api/policy/check", {"text": wrong})).json()
        part = await browser.http.post(
            "/admin/policy/check",
            data={"text": wrong},
            headers={
                "origin": "http://localhost", "x-csrf-token": browser.csrf, "hx-request": "true",
            },
        )  # fmt: skip
        refused = await publish(browser, wrong, world.gateway.policy().version)
        removed = before.replace("  chat:", "  talk:") + "drain: 5m\n"
        good = (await browser.send("POST", "/admin/api/policy/check", {"text": removed})).json()

    num_lines = before.count("\n")
    places = [(at["path"], at["line"], at["column"]) for at in found["problems"]]
    assert places == [("retry.max", num_lines + 1, 9), ("routes[0].prefer.by", num_lines + 3, 24)]
    assert f'data-line="{num_lines + 3}" data-column="24"' in part.text
    assert "<html" not in part.text
    assert refused.status_code == 400
    assert "'best' is unknown; use fastest" in refused.json()["error"]["message"]
    assert good["is_valid"] is True
    assert good["changes"]["models"] == {
        "added": ["talk"], "removed": ["chat"], "changed": [], "num_more": 0,
    }  # fmt: skip
    assert good["changes"]["is_other_besides"] is True
    kinds = [line["kind"] for line in good["diff"]["lines"]]
    assert (kinds.count("added"), kinds.count("removed")) == (2, 1)


async def test_limits_of_text_note_and_sample(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before, base = live_text(world), world.gateway.policy().version
        long = before + "#" * TEXT_BYTES_MAX
        too_long = await browser.send("POST", "/admin/api/policy/check", {"text": long})
        refused = await publish(browser, long, base)
        notes = [
            await publish(browser, before + "# x\n", base, note)
            for note in ("", "  ", "x" * (NOTE_CHARS_MAX + 1), "two\nlines")
        ]
        sample = await browser.send(
            "POST",
            "/admin/api/policy/explain",
            {"text": before, "request": {"model": "chat", "messages": [], "user": "x" * 70_000}},
        )
        trials = [
            await browser.send("POST", "/admin/api/policy/backtest", {"text": before, **more})
            for more in ({"hours": 0}, {"hours": 169}, {"rows_max": 0}, {"rows_max": 10_001})
        ]

    assert too_long.json()["is_valid"] is False
    assert too_long.json()["diff"]["lines"] == []
    assert "at most 262,144 are read" in too_long.json()["problems"][0]["message"]
    assert refused.status_code == 400
    assert [answer.status_code for answer in notes] == [400] * 4
    assert sample.status_code == 400
    assert "a sample has at most 65,536" in sample.text
    assert [answer.status_code for answer in trials] == [400] * 4
    assert world.gateway.policy().version == base


async def test_a_request_is_explained_under_a_text_that_nobody_serves(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before = live_text(world)
        text = before.replace("price: {input: 1, output: 2}}", "price: {input: 1, output: 2}}\n"
                              "    - {provider: z, model: m, canonical: m, quantisation: fp8, "
                              "price: {input: 0.1, output: 0.2}}")  # fmt: skip
        text = text.replace("providers:\n", 'providers:\n  z: {base_url: "https://z.example/v1"}\n')
        text += "routes: [{name: all, prefer: {by: cheapest}}]\n"
        asked = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}
        found = (
            await browser.send(
                "POST", "/admin/api/policy/explain", {"text": text, "request": asked}
            )
        ).json()
        nothing = await browser.send(
            "POST",
            "/admin/api/policy/explain",
            {"text": text, "request": {**asked, "model": "no-such"}},
        )
        wrong = await browser.post(
            "/admin/policy/explain", {"text": text, "request": "{", "surface": "chat"}
        )

    assert found["decision"]["order"][0] == "z/m"
    assert {each["endpoint"] for each in found["decision"]["candidates"]} == {"z/m", "a/m"}
    assert found["live_choice"] == "a/m"
    assert nothing.json()["decision"] is None
    assert "no-such" in nothing.json()["refusal"]
    assert wrong.status_code == 200
    assert "request: " in wrong.text
    assert text.splitlines()[1] in wrong.text.replace("&#34;", '"')  # the edit is still there


async def test_new_addresses_inside_the_network_take_an_owner(tmp_path: Path) -> None:
    more = '  b: {base_url: "http://10.1.2.3/v1", network: private}\n'
    async with dashboard(tmp_path) as world:
        operator, owner = await world.logged_in("operator"), await world.logged_in("owner")
        base = world.gateway.policy().version
        text = live_text(world).replace("models:\n", f"{more}models:\n")
        refused = await publish(operator, text, base)
        done = await publish(owner, text, base)

    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "needs_owner"
    assert done.json()["is_in_force"] is True


async def test_a_file_that_cannot_be_written_is_only_compared(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before, base = live_text(world), world.gateway.policy().version
        file.chmod(0o444)
        page = await browser.get("/admin/policy")
        refused = await publish(browser, before + "# x\n", base)
        checked = await browser.send("POST", "/admin/api/policy/check", {"text": before + "# x\n"})

    assert why_not_writable(file) == f"{file} is read-only"
    assert f"{file} is read-only" in page.text
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "policy_not_writable"
    assert file.read_text() == before
    assert checked.json()["diff"]["num_added"] == 1


async def test_a_symlink_stays_and_its_target_is_written(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        file, target = tmp_path / "policy.yaml", tmp_path / "there.yaml"
        file.rename(target)
        file.symlink_to(target)
        text = live_text(world) + "# x\n"
        done = await publish(browser, text, world.gateway.policy().version)

    assert done.json()["is_in_force"] is True
    assert file.is_symlink()
    assert target.read_text() == text


async def test_viewers_read_and_nothing_of_a_policy_is_html(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        owner, viewer = await world.logged_in("owner"), await world.logged_in("viewer")
        before = live_text(world)
        text = f"# {XSS}\n" + before.replace("model: m,", f'model: "{XSS}",')
        base = world.gateway.policy().version
        done = await publish(owner, text, base, XSS)
        pages = [
            await viewer.get("/admin/policy"),
            await viewer.get(f"/admin/policy/versions/{done.json().get('version')}"),
            await viewer.get(f"/admin/policy/versions/{base}"),
            await owner.post(
                "/admin/policy/check",
                {"text": text.replace("version: 1", f'"{XSS}": 1'), "note": XSS, "request": XSS},
            ),
            await owner.post("/admin/policy/explain", {"text": text, "request": f'"{XSS}"'}),
        ]
        gone = await viewer.get("/admin/policy/versions/nothing")
        schema = await viewer.send("GET", "/admin/api/policy/schema")

    assert done.status_code == 200, done.text
    for page in pages:
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert "<img" not in page.text
        assert "alert(1)" in page.text
    assert '<button class="primary" id="publish"' not in pages[0].text
    assert "readonly" in pages[0].text
    assert gone.status_code == 404
    assert "providers" in schema.json()["properties"]


async def test_line_ends_of_forms_are_not_taken_for_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before = live_text(world)
        text = (before + "# x\n").replace("\n", "\r\n")  # as browsers send a text
        await browser.get("/admin/policy")
        base = world.gateway.policy().version
        first = await browser.post(
            "/admin/policy/publish", {"text": text, "base": base, "note": "n"}
        )
        unix = file.read_bytes()
        file.write_bytes(text.encode())
        await reloaded(world, version_of(text.encode()))
        base = world.gateway.policy().version
        more = text + "# y\r\n"
        second = await browser.post(
            "/admin/policy/publish", {"text": more, "base": base, "note": "n"}
        )

    assert (first.status_code, second.status_code) == (303, 303)
    assert unix == (before + "# x\n").encode()
    assert file.read_bytes() == more.encode()


async def test_everything_of_it_is_in_the_audit_log(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        before, base = live_text(world), world.gateway.policy().version
        await publish(browser, before + "# x\n", base, "why not")
        async with world.gateway.store.read() as connection:
            event = (await list_all_events(connection, subject="policy"))[0]
        page = await browser.get("/admin/settings?action=policy.")

    assert (event.actor, event.action) == ("admin:operator", "policy.publish")
    assert event.detail["note"] == "why not"
    assert f"<del>{base}</del>" in page.text
