"""F11: three times the load that fits. Goodput stays, answers stay quick, batch is shed first.

The bounds are asserted on virtual time, through everything from the pipeline to the simulated
provider; a real gateway then shows the same order with looser ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.profile import ProviderProfile
from tests.support.gateway_process import running_gateway
from tests.support.open_loop import (
    Kind,
    Sent,
    arrivals,
    closed_loop,
    crowd,
    per_second,
    quantile_s,
)
from tests.support.simulator_process import BRISK, policy_over, simulator_processes
from tests.support.virtual_gateway import VirtualGateway, virtual_gateway, virtual_policy
from tests.support.virtual_loop import run_virtual

SLOTS = 8
SERVICE_S = 0.4
OVERLOAD = 3.0
GOODPUT_MIN = 0.9  # of the peak
SLOWER_MAX = 2.0  # interactive p99 over that of the peak
WARM_S, LASTING_S = 10.0, 16.0
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
BATCH = {"x-looprouter-lane": "batch"}


def providers(num: int, slots: int = SLOTS, service_s: float = SERVICE_S) -> list[ProviderProfile]:
    """Each serves so many requests at once and answers 503 to more."""
    return [
        ProviderProfile(
            name=f"narrow{idx}",
            model="m",
            seed=idx + 1,
            **{**BRISK, "ttft_base_s": service_s, "ttft_sigma": 0.15, "concurrency_max": slots},
        )
        for idx in range(num)
    ]


def kinds(
    capacity_per_s: float, batch_share: float, headers: dict[str, str] | None = None
) -> list[Kind]:
    offered, headers = OVERLOAD * capacity_per_s, headers or {}
    found = [Kind("interactive", offered * (1.0 - batch_share), BODY, headers)]
    if batch_share:
        found.append(Kind("batch", offered * batch_share, BODY, {**headers, **BATCH}))
    return found


def shed(sent: Sequence[Sent], kind: str) -> float:
    mine = [one for one in sent if one.kind == kind]
    return sum(one.status != 200 for one in mine) / len(mine)


def only(sent: Sequence[Sent], kind: str) -> list[Sent]:
    return [one for one in sent if one.kind == kind]


async def peak_of(world: VirtualGateway, num_clients: int) -> list[Sent]:
    loop, sent = asyncio.get_running_loop(), list[Sent]()
    origin_s = loop.time()

    async def client() -> None:
        while loop.time() - origin_s < WARM_S:
            sent.append(await world.ask(Kind("interactive", 0.0, BODY, {}), origin_s))
            if sent[-1].status != 200:
                await asyncio.sleep(0.1)

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return sent


async def flood(world: VirtualGateway, mix: Sequence[Kind]) -> list[Sent]:
    loop = asyncio.get_running_loop()
    origin_s, tasks = loop.time(), []
    for at_s, kind in arrivals(mix, LASTING_S, seed=3):
        await asyncio.sleep(max(0.0, origin_s + at_s - loop.time()))
        tasks.append(asyncio.create_task(world.ask(kind, origin_s)))
    return list(await asyncio.gather(*tasks))


def overloaded(home: Path, num_providers: int, batch_share: float) -> dict[str, Any]:
    """Peak, then overload; what the test compares. The first seconds of each are learning."""
    profiles = providers(num_providers)

    async def main() -> dict[str, Any]:
        async with virtual_gateway(profiles, home, virtual_policy(profiles)) as world:
            peak = await peak_of(world, SLOTS * num_providers)
            full = num_providers * SLOTS / SERVICE_S
            sent = await flood(world, kinds(full, batch_share))
            refusals = {
                name: each.stats()["statuses"].get("503", 0)
                for name, each in world.providers.items()
            }
            return {"peak": peak, "sent": sent, "refusals": refusals}

    found = run_virtual(main())
    peak, sent = found["peak"], found["sent"]
    steady = [one for one in sent if one.began_s >= 5.0]
    found["goodput"] = per_second(sent, 5.0, LASTING_S) / per_second(peak, 5.0, WARM_S)
    # The peak's own tail once its first refusals are over.
    calm = [one for one in peak if one.began_s >= 4.0]
    found["slower"] = quantile_s(only(steady, "interactive"), 0.99) / quantile_s(calm, 0.99)
    found["shed"] = {kind: shed(steady, kind) for kind in {one.kind for one in sent}}
    return found


@pytest.mark.parametrize("num_providers", [1, 3])
def test_f11_mixed_overload_keeps_goodput_and_sheds_batch_first(
    tmp_path: Path, num_providers: int
) -> None:
    found = overloaded(tmp_path, num_providers, batch_share=0.75)

    assert found["goodput"] >= GOODPUT_MIN
    assert found["slower"] <= SLOWER_MAX
    assert found["shed"]["interactive"] < 0.05
    assert found["shed"]["batch"] > 0.5
    # Learned, not bounced off: hardly any request is sent only to be refused.
    assert all(num <= 40 for num in found["refusals"].values())


def test_f11_overload_by_those_who_wait_alone_keeps_goodput_and_their_tail(
    tmp_path: Path,
) -> None:
    found = overloaded(tmp_path, 1, batch_share=0.0)

    assert found["goodput"] >= GOODPUT_MIN
    assert found["slower"] <= SLOWER_MAX


def test_f11_batch_gets_nothing_while_those_who_wait_fill_everything(tmp_path: Path) -> None:
    found = overloaded(tmp_path, 1, batch_share=0.5)

    assert found["goodput"] >= GOODPUT_MIN
    assert found["shed"]["batch"] > 0.97
    assert found["shed"]["interactive"] < 0.5


@pytest.mark.e2e
def test_f11_real_gateway_sheds_batch_first_and_says_when_to_come_back(tmp_path: Path) -> None:
    slots, service_s, lasting_s = 4, 1.0, 12.0
    profiles = providers(1, slots, service_s)
    with (
        simulator_processes(profiles, tmp_path / "simulator") as running,
        running_gateway(policy_over(running, {"chat": ["narrow0"]}), tmp_path / "home") as gateway,
    ):
        url = f"{gateway.v1}/chat/completions"
        one = Kind("interactive", 0.0, BODY, gateway.headers)
        peak = asyncio.run(closed_loop(url, one, slots, until=lambda _, seconds: seconds > 5.0))
        mix = kinds(slots / service_s, 0.75, gateway.headers)
        sent = asyncio.run(crowd(url, mix, lasting_s))

    goodput = per_second(sent, 3.0, lasting_s) / per_second(peak, 1.0, 5.0)
    assert goodput >= 0.6
    assert shed(sent, "batch") > 0.5
    assert shed(sent, "interactive") < 0.3
    slower = quantile_s(only(sent, "interactive"), 0.99) / quantile_s(peak, 0.99)
    assert slower <= 10 * SLOWER_MAX
    refused = [one for one in sent if one.status != 200]
    assert {one.status for one in refused} == {503}
    for answer in refused:
        assert answer.headers is not None
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.code in ("overloaded", "upstream_overloaded")
