"""The backtest of the page Policy: the real command over a real log, and the ends of its limits."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.dashboard import policy_backtest
from tests.support.dashboard_world import Browser, DashboardWorld, dashboard

pytestmark = pytest.mark.anyio
ASKED = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
NUM_REQUESTS = 3


async def backtest(browser: Browser, text: str, **wanted: Any) -> Any:
    return await browser.send("POST", "/admin/api/policy/backtest", {"text": text, **wanted})


async def text_of(world: DashboardWorld, browser: Browser) -> str:
    text: str = (await browser.send("GET", "/admin/api/policy")).json()["text"]
    return text


def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A command in place of the real one."""
    path = tmp_path / "command"
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


async def test_recorded_requests_are_decided_again_and_told_as_predicted(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        for _ in range(NUM_REQUESTS):
            assert (await world.edge.ask("/v1/chat/completions", ASKED)).status == 200
        await world.gateway.recorder.flush()
        before = await text_of(world, browser)
        more = before.replace(
            "providers:\n", 'providers:\n  z: {base_url: "https://z.example/v1"}\n'
        )
        more += (
            "    - {provider: z, model: m, canonical: m, quantisation: fp8, "
            "price: {input: 0.1, output: 0.2}}\n"
            "routes: [{name: all, prefer: {by: cheapest}}]\n"
        )
        await browser.get("/admin/policy")
        # Both at once: one of them is told that one runs.
        both = await asyncio.gather(*(backtest(browser, more, against="live") for _ in range(2)))
        found, busy = sorted(both, key=lambda answer: int(answer.status_code))
        page = await browser.post(
            "/admin/policy/backtest", {"text": before, "against": "happened", "hours": "24"}
        )
        bad = await backtest(browser, before.replace("models:", "modles:"))

    assert found.status_code == 200, found.text
    comparison = found.json()["comparison"]
    assert comparison["num_requests"] == comparison["num_changed"] == NUM_REQUESTS
    assert comparison["new"]["num_predicted"] == NUM_REQUESTS
    assert comparison["old"]["num_predicted"] == 0
    assert comparison["new"]["shares"]["z/m"]["value"] == 1.0
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "backtest_running")
    assert f"{NUM_REQUESTS} requests decided again, 0 of them otherwise" in page.text
    assert page.text.count("all real") == 2
    assert "too few to tell" in page.text
    assert '<circle class="new"' in page.text
    assert bad.status_code == 400


async def test_without_requests_it_says_so(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        await browser.get("/admin/policy")
        page = await browser.post(
            "/admin/policy/backtest", {"text": await text_of(world, browser), "hours": "1"}
        )

    assert page.status_code == 200
    assert "There was no request in this time" in page.text


async def test_a_run_ends_with_its_time_and_with_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    script(
        tmp_path,
        monkeypatch,
        f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)",
    )
    monkeypatch.setattr(policy_backtest, "TIME_S_MAX", 1.5)
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        text = await text_of(world, browser)
        late = await backtest(browser, text)
        first = int(pid.read_text())
        pid.unlink()
        leaving = asyncio.create_task(backtest(browser, text))
        while not pid.exists() or not pid.read_text():
            await asyncio.sleep(0.02)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        second = int(pid.read_text())

    assert (late.status_code, late.json()["error"]["code"]) == (503, "backtest_too_long")
    for each in (first, second):
        assert not Path(f"/proc/{each}").exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('the log is away')", "the log is away"),
        ("print('{}')", "without a result"),
        ("print('[' * 3000)", "without a result"),
        ("print('x' * 5000)", "answer is too long"),
    ],
)
async def test_what_a_run_may_say_is_bounded_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    script(tmp_path, monkeypatch, code)
    monkeypatch.setattr(policy_backtest, "ANSWER_BYTES_MAX", 4000)
    async with dashboard(tmp_path, roles=("operator",)) as world:
        browser = await world.logged_in("operator")
        found = await backtest(browser, await text_of(world, browser))

    assert found.status_code == 503
    assert says in found.json()["error"]["message"]
