"""Lines that fill an endpoint make each other late, and are not cut for it; one that hangs is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from gateway.batch.line_client import LineClient
from gateway.batch.line_runner import LineRun, PutBack
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile
from gateway.store.batch_work import ClaimedLine, LineCost, LineResult
from tests.support.batch_world import chat_line, joined_lines, wait_for_end
from tests.support.crowded_provider import crowded_provider
from tests.support.gateway_process import running_gateway
from tests.support.gateway_world import rows_of, status_of
from tests.support.simulator_process import BRISK
from tests.support.virtual_gateway import CALLER, VirtualGateway, virtual_gateway, virtual_policy
from tests.support.virtual_loop import run_virtual

pytestmark = [pytest.mark.e2e]

ALONE_S = 1.8
NUM_LINES = 7  # together they take longer than an answer is waited for that somebody waits for
POLICY = """
version: 1
providers:
  own: {{base_url: "{base_url}", network: private}}
models:
  chat: [{{provider: own, model: m, context: 8192, price: {{input: 0.1, output: 0.4}}}}]
"""


@pytest.mark.slow
def test_lines_that_are_late_together_are_each_answered_once(tmp_path: Path) -> None:
    with (
        crowded_provider(ALONE_S) as provider,
        running_gateway(POLICY.format(base_url=provider.v1), tmp_path) as gateway,
        OpenAI(base_url=gateway.v1, api_key=gateway.key, max_retries=0) as client,
    ):
        told: Any = [{"role": "user", "content": "alone"}]
        client.chat.completions.create(model="chat", messages=told, max_tokens=16)
        lines = [chat_line(f"c-{at}", "chat", f"line {at}") for at in range(NUM_LINES)]
        file = client.files.create(file=("in.jsonl", joined_lines(lines)), purpose="batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        done = wait_for_end(lambda: client.batches.retrieve(made.id), wait_s=90.0)
        found = client.files.content(str(done.output_file_id)).text.splitlines()
        (row,) = status_of(gateway.base_url)["endpoints"]

    assert provider.most_at_once == NUM_LINES
    assert NUM_LINES * ALONE_S > 10.0  # the time-out of an answer that somebody waits for
    asked = {"alone", *(f"line {at}" for at in range(NUM_LINES))}
    assert provider.num_begun == provider.num_answered == dict.fromkeys(asked, 1)
    assert (done.status, done.error_file_id) == ("completed", None)
    texts = {each["custom_id"]: _text(each) for each in map(json.loads, found)}
    assert texts == {f"c-{at}": f"so: line {at}" for at in range(NUM_LINES)}
    attempts = rows_of(tmp_path, "SELECT state, failure, is_estimated FROM attempts")
    assert len(attempts) == NUM_LINES + 1
    assert all(each["state"] == "settled" and not each["failure"] for each in attempts)
    assert not any(each["is_estimated"] for each in attempts)
    assert row["breaker"] == "closed", row
    assert row["capacity"] >= NUM_LINES, row


def _text(line: dict[str, Any]) -> str:
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


@pytest.mark.parametrize(("left_s", "cut_after_s"), [(86_400.0, 300.0), (240.0, 120.0)])
def test_a_line_at_an_endpoint_that_hangs_is_put_back_in_bounded_time(
    tmp_path: Path, left_s: float, cut_after_s: float
) -> None:
    """On virtual time, by everything from a line's text to the simulated provider."""
    hangs = Fault(mode=FaultMode.HANG_BEFORE_HEADERS)
    profile = ProviderProfile(name="hung", model="m", faults=(hangs,), **BRISK)

    async def main() -> tuple[PutBack | None, float]:
        async with virtual_gateway([profile], tmp_path, virtual_policy([profile])) as world:
            began_s = world.gateway.clock()
            back = await sent(world, left_s)
            return back, world.gateway.clock() - began_s

    back, took_s = run_virtual(main())

    assert back is not None
    assert back.is_a_try
    assert back.error.code == "upstream_timeout"
    assert took_s == pytest.approx(cut_after_s, abs=1.0)


async def sent(world: VirtualGateway, left_s: float) -> PutBack | None:
    """One line, `left_s` before its batch's deadline."""
    line = ClaimedLine(
        batch_id="b", line_no=1, custom_id="c", offset_bytes=0, num_bytes=0, model="chat",
        lane="hung/m#standard", num_tries=1, tenant_id=CALLER.tenant_id, key_id=CALLER.key_id,
        surface="chat", input_file_id="f", deadline_at=world.gateway.wall_clock() + left_s,
    )  # fmt: skip

    async def keep(result: LineResult) -> None:
        raise AssertionError(result)

    def note_cost(cost: LineCost) -> None:
        raise AssertionError(cost)

    text = json.dumps(chat_line("c", "chat", "hi")).encode()
    run = LineRun(world.gateway, keep, note_cost)
    return await asyncio.wait_for(run.send(line, text, CALLER, LineClient()), 3_600.0)
