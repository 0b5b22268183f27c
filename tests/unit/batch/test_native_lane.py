"""Providers' batches through the worker, with every fault that a simulated provider knows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.batch import service
from gateway.batch.native.api import NativeError
from gateway.batch.native.openai_form import OpenAIForm
from gateway.errors import FailureClass
from gateway.keys.wanted import NewKey
from gateway.simulator.native_profile import BatchFault, BatchFaultMode, BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from gateway.store.batches import update_batch
from tests.support.batch_world import chat_line
from tests.support.gateway_world import budget
from tests.support.lane_world import LaneWorld, lane_world, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NUM_LINES = 60  # more than a native batch waits for
BRISK: dict[str, Any] = {
    "ttft_base_s": 0.02,
    "ttft_sigma": 0.0,
    "tokens_per_s": 2_000.0,
    "answer_tokens_median": 12,
}


def profile(*faults: BatchFault, **batch: Any) -> ProviderProfile:
    api = BatchProfile(
        **{"turnaround_median_s": 0.5, "turnaround_sigma": 0.1, "faults": faults, **batch}
    )
    price = SimulatedPrice(input=333_333, output=777_777)
    return ProviderProfile(name="nat", model="sim", price=price, batch=api, **BRISK)


def lines(num: int = NUM_LINES, **fields: Any) -> list[dict[str, Any]]:
    return [chat_line(f"c-{at}", "m", f"Say {at}.", **fields) for at in range(num)]


def world(home: Path, *faults: BatchFault, key: NewKey | None = None, **batch: Any) -> Any:
    return lane_world(home, [profile(*faults, **batch)], {"m": ("nat",)}, key=key)


async def num_natives(world: LaneWorld) -> dict[str, int]:
    rows = await world.rows("SELECT state, COUNT(*) AS n FROM native_batches GROUP BY state")
    return {row["state"]: row["n"] for row in rows}


async def test_lines_come_back_at_the_batch_price_to_the_nano(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.working():
        row, counts = await here.ended(await here.make(lines()))
        assert (row.state, counts.by_state) == ("completed", {"succeeded": NUM_LINES})
        books = await here.books()
        assert (books.ours, books.num_exact) == (books.theirs, NUM_LINES)
        assert counts.cost_nanos == books.ours
        assert await num_natives(here) == {"collected": 1}


async def test_a_submission_whose_answer_was_lost_is_found_and_not_made_twice(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, BatchFault(mode=BatchFaultMode.LOST_SUBMIT)) as here:
        async with here.working():
            row, counts = await here.ended(await here.make(lines()))
        assert (row.state, counts.by_state) == ("completed", {"succeeded": NUM_LINES})
        assert await num_natives(here) == {"collected": 1}
        books = await here.books()
        assert (books.ours, books.num_estimated) == (books.theirs, 0)


@pytest.mark.parametrize(
    "fault",
    [
        BatchFault(mode=BatchFaultMode.MISSING_RESULTS, every=7, ends_s=3.0),
        BatchFault(mode=BatchFaultMode.LINE_ERRORS, every=7, status=500, ends_s=3.0),
        BatchFault(mode=BatchFaultMode.DUPLICATE_RESULTS, every=3),
        BatchFault(mode=BatchFaultMode.EXPIRING, done_share=0.5, ends_s=3.0),
    ],
    ids=lambda fault: fault.mode.value,
)
async def test_what_a_provider_left_undone_is_sent_again_and_nothing_is_paid_twice(
    tmp_path: Path, fault: BatchFault
) -> None:
    async with world(tmp_path, fault) as here, here.working():
        batch_id = await here.make(lines())
        row, counts = await ended_soon(here, batch_id)
        assert (row.state, counts.by_state) == ("completed", {"succeeded": NUM_LINES})
        books = await here.books()
        assert (books.ours, books.num_exact) == (books.theirs, NUM_LINES)


async def ended_soon(here: LaneWorld, batch_id: str) -> Any:
    """Few lines wait ten minutes for company in a provider's batch; a test does not."""

    async def is_whole() -> bool:
        async with here.store.begin() as connection:
            await connection.exec_driver_sql(
                "UPDATE batch_lines SET not_before = NULL WHERE state = 'open'"
            )
        return (await here.look(batch_id))[0].is_ended

    await until(is_whole, "the batch to end", wait_s=60.0)
    return await here.look(batch_id)


async def test_a_line_that_is_wrong_ends_with_the_providers_words_and_costs_nothing(
    tmp_path: Path,
) -> None:
    fault = BatchFault(mode=BatchFaultMode.LINE_ERRORS, every=10, status=400)
    async with world(tmp_path, fault) as here, here.working():
        row, counts = await here.ended(await here.make(lines()))
        assert row.state == "completed"
        assert counts.by_state == {"succeeded": 54, "errored": 6}
        books = await here.books()
        assert (books.ours, books.num_exact) == (books.theirs, 54)


async def test_the_providers_copy_of_the_lines_goes_once_all_is_collected(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.working():
        await here.ended(await here.make(lines()))
        (row,) = await here.rows("SELECT provider_file_id FROM native_batches")
        root = here.providers["nat"].base_url

        async def is_gone() -> bool:
            async with httpx.AsyncClient() as http:
                kept = (await http.get(f"{root}/files")).json()["data"]
            return row["provider_file_id"] not in {each["id"] for each in kept}

        assert row["provider_file_id"]
        await until(is_gone, "the file to be deleted")


async def test_files_that_a_provider_does_not_delete_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise NativeError(FailureClass.SERVER_ERROR, "no")

    monkeypatch.setattr(OpenAIForm, "delete_files", refused)
    async with world(tmp_path) as here, here.working():
        row, counts = await here.ended(await here.make(lines()))
        assert (row.state, counts.by_state) == ("completed", {"succeeded": NUM_LINES})
        assert await num_natives(here) == {"collected": 1}


async def test_a_budget_too_small_for_all_pays_for_some_and_says_so_of_the_others(
    tmp_path: Path,
) -> None:
    key = NewKey(name="poor", budgets=budget(0.0006))
    async with world(tmp_path, key=key) as here, here.working():
        row, counts = await here.ended(await here.make(lines()))
        assert row.state == "completed"
        assert counts.count("succeeded") > 0
        assert counts.count("errored") > 0
        assert counts.num_lines == NUM_LINES
        kept = await here.rows("SELECT status_code FROM batch_lines WHERE state = 'errored'")
        assert {each["status_code"] for each in kept} == {429}
        books = await here.books()
        assert books.ours == books.theirs <= 600_000


async def test_a_budget_of_nothing_ends_all_lines_and_the_provider_hears_of_none(
    tmp_path: Path,
) -> None:
    key = NewKey(name="broke", budgets=budget(0.000001))
    async with world(tmp_path, key=key) as here, here.working():
        row, counts = await here.ended(await here.make(lines()))
        assert (row.state, counts.by_state) == ("completed", {"errored": NUM_LINES})
        assert here.providers["nat"].provider.books.lines == []
        assert row.output_file_id == ""


async def test_a_cancelled_batch_is_cancelled_at_its_provider_and_pays_for_what_was_done(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, turnaround_median_s=6.0) as here, here.working():
        batch_id = await here.make(lines())

        async def runs() -> bool:
            return await num_natives(here) == {"running": 1}

        await until(runs, "the provider to have it")
        await asyncio.sleep(2.0)
        await service.cancel(here.lane, here.caller, batch_id)
        row, counts = await here.ended(batch_id)
        assert row.state == "cancelled"
        assert counts.count("succeeded", "cancelled") == NUM_LINES
        assert counts.count("cancelled") > 0
        books = await here.books()
        assert books.ours == books.theirs


async def test_a_provider_that_refuses_a_whole_batch_rests_and_lines_in_a_hurry_go_at_once(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, BatchFault(mode=BatchFaultMode.FAIL_VALIDATION)) as here:
        async with here.working():
            batch_id = await here.make(lines())

            async def is_back() -> bool:
                return (await num_natives(here)).get("collected", 0) == 1

            await until(is_back, "the provider's refusal")
            facts = here.native.facts()
            assert facts.turnarounds["nat/sim"].opens_at_s > here.gateway.wall_clock()
            await asyncio.sleep(2.0)  # there is time: the lines wait for it to open again
            assert await num_natives(here) == {"collected": 1}
            now = here.gateway.wall_clock()
            async with here.store.begin() as connection:
                await update_batch(connection, batch_id, deadline_at=now + 700.0)
            row, _ = await here.look(batch_id)
            assert await here.planner.replan([row], now=now) == []
            row, counts = await here.ended(batch_id)
        assert counts.by_state == {"succeeded": NUM_LINES}
        lanes = await here.rows("SELECT DISTINCT lane FROM batch_lines")
        assert [each["lane"] for each in lanes] == ["nat/sim#standard"]
        books = await here.books()
        assert (books.ours, books.num_exact) == (books.theirs, NUM_LINES)


async def test_input_that_is_gone_fails_the_batch(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        batch_id = await here.make(lines())
        row, _ = await here.look(batch_id)
        await here.lane.storage.delete(row.input_file_id)
        async with here.working():
            row, _ = await here.ended(batch_id)
        assert row.state == "failed"
        assert "input_file_gone" in row.errors
        assert here.providers["nat"].provider.books.lines == []
