"""A second policy beside the pipeline: it sees every decision, and no decision sees it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway import pipeline
from gateway.app.shadowing import shadowing
from gateway.errors import SetupError
from gateway.measure.shadow import Shadow
from gateway.pipeline import Gateway
from gateway.simulator.profile import ProviderProfile
from tests.support.open_loop import Kind
from tests.support.simulator_process import BRISK
from tests.support.virtual_gateway import virtual_gateway, virtual_policy
from tests.support.virtual_loop import run_virtual

NUM_REQUESTS = 40
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
PROFILES = (
    ProviderProfile(name="quick", model="m", **{**BRISK, "ttft_base_s": 0.05}),
    ProviderProfile(name="lame", model="m", **{**BRISK, "ttft_base_s": 2.0}),
)
LIVE = virtual_policy(PROFILES, "routes: [{name: all, prefer: {by: fastest}}]\n")
# It prices the quick one out, and knows an endpoint that the live policy does not.
SHADOW = LIVE.replace("by: fastest", "by: price").replace(
    "provider: quick, model: m, canonical: simulated, price: {input: 0.1, output: 0.4}",
    "provider: quick, model: m, canonical: simulated, price: {input: 5, output: 5}",
)
Attach = Callable[[Gateway, AsyncExitStack], Any]


def served(home: Path, monkeypatch: pytest.MonkeyPatch, attach: Attach) -> dict[str, Any]:
    """(status, endpoint) of each request, one after the other, and what the shadow says."""
    monkeypatch.setattr(pipeline, "_SEEDS", random.Random(5))
    home.mkdir()

    async def main() -> dict[str, Any]:
        async with virtual_gateway(PROFILES, home, LIVE) as world, AsyncExitStack() as stack:
            await attach(world.gateway, stack)
            sent = [await world.ask(Kind("k", 0.0, BODY, {}), 0.0) for _ in range(NUM_REQUESTS)]
            await asyncio.sleep(1.0)
            rows = world.gateway.recorder.newest(NUM_REQUESTS)
            shadow = world.gateway.shadow
            return {
                "statuses": [each.status for each in sent],
                "rows": [(row.endpoint_id, row.route, row.candidates) for row in rows],
                "summary": shadow.summary() if shadow is not None else None,
            }

    return run_virtual(main())


async def nothing(gateway: Gateway, stack: AsyncExitStack) -> None:
    assert gateway.shadow is None


async def raising(gateway: Gateway, stack: AsyncExitStack) -> None:
    def judge(*_: Any) -> Any:
        raise RuntimeError("the shadow is broken")

    gateway.shadow = Shadow(
        judge,
        gateway.metrics.registry,
        version=lambda: "v",
        source="broken",
        wall_clock=gateway.wall_clock,
    )
    task = asyncio.ensure_future(gateway.shadow.run())
    stack.callback(task.cancel)


def test_nothing_but_its_counters_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shadow.yaml"
    path.write_text(SHADOW)

    async def pricing(gateway: Gateway, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(shadowing(gateway, path))

    alone = served(tmp_path / "alone", monkeypatch, nothing)
    beside = served(tmp_path / "beside", monkeypatch, pricing)
    broken = served(tmp_path / "broken", monkeypatch, raising)

    assert alone["statuses"] == [200] * NUM_REQUESTS
    for other in (beside, broken):
        assert other["statuses"] == alone["statuses"]
        assert other["rows"] == alone["rows"]
    assert broken["summary"]["failed"] == NUM_REQUESTS
    assert broken["summary"]["last_error"] == "RuntimeError: the shadow is broken"
    found = beside["summary"]
    to_lame = sum(endpoint == "lame/m" for endpoint, _, _ in alone["rows"])
    assert found["agreed"] == to_lame
    assert found["disagreed"] == NUM_REQUESTS - to_lame > NUM_REQUESTS / 2
    assert found["failed"] == found["skipped"] == found["refused"] == 0
    (pair,) = found["disagreements"]
    assert (pair["route"], pair["live"], pair["shadow"]) == ("all", "quick/m", "lame/m")
    assert pair["predicted"]["seconds_difference"]["mean"] > 0.0  # lame is predicted slower
    # Each side by its own prices: to the live policy both cost the same, but for what is believed
    # of waste; by the shadow's price the quick one would be $0.00005 dearer.
    assert pair["predicted"]["dollars_difference"]["mean"] == pytest.approx(0.0, abs=2e-6)


def test_a_shadow_that_does_not_load_is_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "shadow.yaml"
    path.write_text("version: 1\ncolour: red\n")

    async def main() -> None:
        home = tmp_path / "home"
        async with (
            virtual_gateway(PROFILES, home, LIVE) as world,
            shadowing(world.gateway, path),
        ):
            raise AssertionError("it came up")

    (tmp_path / "home").mkdir()
    with pytest.raises(SetupError, match=r"shadow policy does not load: .*colour"):
        run_virtual(main())
