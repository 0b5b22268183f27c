"""A real gateway before simulated providers of which one is late, stalls or breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.core import dollars
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile
from tests.support.gateway_process import start_gateway
from tests.support.gateway_world import (
    Answered,
    Client,
    chat,
    issue_key,
    problems_of,
    rows_of,
    wait_until,
)
from tests.support.simulator_process import BRISK, SimulatorProcess, simulator_processes

pytestmark = pytest.mark.e2e

PROMPT = "Tell me a story. [[sim tokens=24]]"
GOOD: dict[str, Any] = {**BRISK, "tokens_per_event": 2}


@contextmanager
def two_providers(
    home: Path, rescue: str, *faults: Fault
) -> Iterator[tuple[Any, Client, dict[str, SimulatorProcess]]]:
    """A gateway with a faulty endpoint, which the request orders first, and a good one."""
    profiles = (
        ProviderProfile(**{**GOOD, "name": "shaky"}, faults=faults),
        ProviderProfile(**{**GOOD, "name": "steady"}),
    )
    with simulator_processes(profiles, home / "providers") as providers:
        lines = ["version: 1", "providers:"]
        lines += [
            f'  {name}: {{api: openai, base_url: "{one.base_url}", network: private}}'
            for name, one in providers.items()
        ]
        lines += ["models:", "  chat:"]
        lines += [
            f"    - {{provider: {name}, model: simulated-model, canonical: sim, "
            "price: {input: 1, output: 2}, assistant_prefill: message}"
            for name in providers
        ]
        policy = "\n".join([*lines, f"rescue: {rescue}", "exploration: {share: 0}", ""])
        gateway = start_gateway(policy, home, key=issue_key(home))
        client = Client(gateway.base_url, gateway.key)
        try:
            yield gateway, client, providers
        finally:
            client.close()
            assert gateway.stop() == 0, gateway.log()[-3000:]
    assert problems_of(home) == []


def ask(client: Client) -> Answered:
    order = {"order": ["shaky", "steady"]}
    options = {"include_usage": True}
    return client.ask(chat(PROMPT, stream=True, provider=order, stream_options=options))


def booked(home: Path, num: int) -> list[dict[str, Any]]:
    query = "SELECT endpoint_id, state, failure, cost_nanos, billed_nanos FROM attempts"
    wait_until(lambda: len(rows_of(home, query)) == num, "the attempts' rows")
    wait_until(lambda: all(r["state"] != "sent" for r in rows_of(home, query)), "their ends")
    found = {row["endpoint_id"].partition("/")[0]: row for row in rows_of(home, query)}
    assert set(found) == {"shaky", "steady"}
    return [found["shaky"], found["steady"]]


@pytest.mark.parametrize(
    ("mode", "rescue"),
    [
        (FaultMode.CUT_MID_STREAM, "{continue_by_prefill: true}"),
        (
            FaultMode.HANG_MID_STREAM,
            "{continue_by_prefill: true, decode_floor: {tokens_per_second: 10, grace: 500ms}}",
        ),
    ],
    ids=["broken", "stalled"],
)
def test_answer_is_continued_by_another_provider_and_both_are_paid(
    tmp_path: Path, mode: FaultMode, rescue: str
) -> None:
    fault = Fault(mode=mode, after_tokens=8)
    with two_providers(tmp_path, rescue, fault) as (_, client, providers):
        answer = ask(client)
        first, second = booked(tmp_path, 2)
        invoices = [providers[name].invoice() for name in ("shaky", "steady")]

    assert answer.status == 200, answer.text
    assert answer.text.count(": continued by steady/simulated-model") == 1
    assert answer.text.rstrip().endswith("data: [DONE]")
    before, after = answer.text.split(": continued by steady/simulated-model\n\n")
    assert before.count('"content":"') > 2
    assert after.count('"content":"') > 2
    assert [first["failure"], second["failure"]] == [
        "stream_broken" if mode is FaultMode.CUT_MID_STREAM else "too_slow",
        "",
    ]
    assert [row["billed_nanos"] for row in (first, second)] == [
        row["cost_nanos"] for row in (first, second)
    ]
    total = dollars(first["cost_nanos"] + second["cost_nanos"]).rstrip("0")
    assert f'"cost":{total}' in answer.text
    assert all(invoice for invoice in invoices)


def test_late_first_token_is_hedged_and_the_loser_is_ours_to_pay(tmp_path: Path) -> None:
    late = Fault(mode=FaultMode.SLOW_FIRST_TOKEN, factor=0.0005)  # ten seconds
    with two_providers(tmp_path, "{hedge: {share_max: 1}}", late) as (_, client, _):
        answer = ask(client)
        first, second = booked(tmp_path, 2)

    assert answer.headers["x-looprouter-endpoint"] == "steady/simulated-model"
    assert "continued" not in answer.text
    assert (first["failure"], second["failure"]) == ("outpaced", "")
    assert first["billed_nanos"] == 0
    assert second["billed_nanos"] == second["cost_nanos"] > 0
