"""A batch and its line in the audit log: made together, or neither of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.batch import creating, service
from gateway.batch.batch_handlers import CreateBody, wish_of
from gateway.keys.service import set_budget
from gateway.keys.wanted import Budget
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.batch_world import chat_line
from tests.support.lane_world import LaneWorld, lane_world
from tests.support.ledgers import CENT

pytestmark = pytest.mark.anyio

PROFILE = ProviderProfile(name="one", model="sim", price=SimulatedPrice(input=1, output=1))
AUDIT = "SELECT action, subject, detail FROM audit_events WHERE action LIKE 'batch.%' ORDER BY id"


def world(home: Path) -> Any:
    return lane_world(home, [PROFILE], {"m": ("one",)})


def lines(num: int = 3) -> list[dict[str, Any]]:
    return [chat_line(f"c-{at}", "m", f"Say {at}.") for at in range(num)]


async def actions(here: LaneWorld) -> list[tuple[str, str]]:
    return [(row["action"], row["subject"]) for row in await here.rows(AUDIT)]


async def test_making_and_cancelling_are_in_the_audit_log_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        batch_id = await here.make(lines())
        for _ in range(2):
            await service.cancel(here.lane, here.caller, batch_id, dialect="openai")

        assert await actions(here) == [("batch.create", batch_id), ("batch.cancel", batch_id)]


async def test_a_batch_whose_audit_line_cannot_be_written_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise OSError("no room")

    async with world(tmp_path) as here:
        monkeypatch.setattr(creating, "append_events", full)
        with pytest.raises(OSError, match="no room"):
            await here.make(lines())

        assert await here.rows("SELECT id FROM batches") == []
        assert await here.rows("SELECT line_no FROM batch_lines") == []
        assert await actions(here) == []


async def test_without_an_endpoint_a_batch_is_for_what_its_lines_ask(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        file = await here.upload(lines())
        wish = wish_of(file, CreateBody(input_file_id=file.id))
        assert wish.surface is None

        made = await service.create(here.lane, here.caller, wish, file, dialect="openai")

    assert made.surface == "chat"


async def test_a_plan_that_a_budget_will_not_carry_is_warned_of_and_still_made(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        now, tenant_id = time.time(), here.caller.tenant_id
        for kind, scope_id, cents in (("key", here.caller.key_id, 1), ("tenant", tenant_id, 500)):
            budget = Budget(limit_nanos=cents * CENT, period="total")
            await set_budget(
                here.store, tenant_id, budget, scope_kind=kind, scope_id=scope_id, now=now
            )
        ids = tuple(row["id"] for row in await here.rows("SELECT id FROM budgets"))
        caller = structs.replace(here.caller, budget_ids=ids)
        fits = await service.budget_warning(here.lane, caller, "0.01")
        told = await service.budget_warning(here.lane, caller, "0.010000001")
        unlimited = await service.budget_warning(here.lane, here.caller, "1000")

    assert fits == unlimited == ""
    assert told.startswith("the key's total budget has $0.01 left of $0.01, and this plan costs")
    assert "about $0.010000001: lines beyond it will be refused" in told
