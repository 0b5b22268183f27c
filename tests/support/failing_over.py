"""What tests of failures before the first token check: the stand-by answer, or the refusal."""

from __future__ import annotations

from typing import Any

from tests.support.ears import Heard
from tests.support.hostile_provider import Chunking, Script
from tests.support.hostile_scripts import STAND_BY, good
from tests.support.hostile_world import SECRET, HostileWorld, Talk, nanos


def check_falls_over(
    world: HostileWorld, talk: Talk, bad: Script, chunking: Chunking, *, stream: bool = True
) -> tuple[str, dict[str, Any]]:
    """The stand-by's answer and nothing else. → (model, record)."""
    model = world.model(talk)
    world.provider.play(talk.first, model, bad, chunking=chunking)
    world.provider.play(talk.second, model, good(talk, *STAND_BY), chunking=chunking)
    heard = world.ask(talk, model, stream=stream)
    row = world.check_good(talk, model, heard, "".join(STAND_BY), provider=talk.second)
    assert heard.headers["x-looprouter-attempts"] == "2"
    assert heard.headers["x-looprouter-endpoint"] == f"{talk.second}/{model}"
    return model, row


def check_costs_nothing_more(row: dict[str, Any]) -> None:
    assert nanos(row["provider_cost"]) == nanos(row["cost"])


def error_json(talk: Talk, kind: str, code: str | None = None) -> dict[str, Any]:
    if talk.family == "n":
        return {"type": "error", "error": {"type": kind, "message": "said upstream"}}
    return {"error": {"message": "said upstream", "type": kind, "code": code, "param": None}}


def check_refused(world: HostileWorld, heard: Heard, status: int) -> dict[str, Any]:
    """One error that the caller's SDK understands and does not repeat; nothing is paid."""
    assert heard.status == status
    assert heard.error is not None
    assert heard.error["type"] == ("api_error" if heard.surface == "messages" else "server_error")
    assert SECRET.encode() not in heard.body
    assert heard.headers["x-should-retry"] == "false"
    row = world.row(heard.request_id)
    assert (row["status"], nanos(row["cost"])) == (status, 0)
    return row
