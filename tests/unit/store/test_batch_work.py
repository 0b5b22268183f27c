"""Claims, results and moves of batch lines, on both databases: nobody's line is another's."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.batch_tables import batch_lines
from gateway.store.batch_work import (
    ClaimedLine,
    LineCost,
    LineResult,
    claim_lines,
    end_open_lines,
    ended_lines,
    free_claims,
    keep_costs,
    keep_results,
    move_lines,
    put_back,
    renew_claims,
    unended_groups,
)
from gateway.store.batches import (
    BatchRow,
    NewLine,
    find_batch,
    insert_batch,
    insert_lines,
    line_counts,
    list_batches,
    move_batch,
    unended_of,
)
from gateway.store.engine import Store
from gateway.store.native_batches import (
    NativeRow,
    gather_lines,
    lanes_due,
    leave_natives,
    members_of,
    native_history,
    native_in,
    reopen_members,
    take_natives,
    update_native,
)

pytestmark = pytest.mark.anyio
LANE = "p/m#standard"


def batch(batch_id: str = "batch_1", **fields: Any) -> BatchRow:
    given: dict[str, Any] = {
        "id": batch_id,
        "tenant_id": "t",
        "team_id": "team",
        "key_id": "k",
        "dialect": "openai",
        "surface": "chat",
        "state": "in_progress",
        "input_file_id": "file-1",
        "deadline_at": 1_000.0,
        "created_at": 10.0,
        **fields,
    }
    return BatchRow(**given)


def new_line(number: int, lane: str = LANE, **fields: Any) -> NewLine:
    given: dict[str, Any] = {
        "line_no": number,
        "custom_id": f"c{number}",
        "offset_bytes": 100 * number,
        "num_bytes": 99,
        "model": "m",
        "prompt_tokens": 10,
        "output_tokens": number,
        "lane": lane,
        **fields,
    }
    return NewLine(**given)


async def filled(store: Store, num_lines: int, **fields: Any) -> BatchRow:
    row = batch(num_lines=num_lines, **fields)
    async with store.begin() as connection:
        await insert_batch(connection, row)
        await insert_lines(connection, row.id, [new_line(1 + at) for at in range(num_lines)])
    return row


async def claimed(store: Store, owner: str, limit: int, now: float = 100.0) -> list[ClaimedLine]:
    async with store.begin() as connection:
        return await claim_lines(
            connection, owner=owner, lane=LANE, now=now, until=now + 60.0, limit=limit
        )


async def states(store: Store, batch_id: str = "batch_1") -> dict[int, str]:
    c = batch_lines.c
    query = sa.select(c.line_no, c.state).where(c.batch_id == batch_id)
    async with store.read() as connection:
        return {row.line_no: row.state for row in await connection.execute(query)}


def result(number: int, state: str = "succeeded", body: bytes = b"{}") -> LineResult:
    return LineResult(
        batch_id="batch_1",
        line_no=number,
        state=state,
        status_code=200,
        body=body,
        request_id=f"req_{number}",
        endpoint_id="p/m",
        ended_at=5.0,
    )


async def test_claims_go_by_deadline_and_are_taken_once(store: Store) -> None:
    await filled(store, 3)
    async with store.begin() as connection:
        await insert_batch(connection, batch("batch_0", deadline_at=500.0, num_lines=1))
        await insert_lines(connection, "batch_0", [new_line(1)])
    first = await claimed(store, "a", 2)
    assert [(each.batch_id, each.line_no) for each in first] == [("batch_0", 1), ("batch_1", 1)]
    assert first[1].num_tries == 1
    assert first[1].offset_bytes == 100
    second = await claimed(store, "b", 10)
    assert [each.line_no for each in second] == [2, 3]
    assert await claimed(store, "c", 10) == []


async def test_owners_side_by_side_never_share_a_line(store: Store) -> None:
    await filled(store, 60)
    found = await asyncio.gather(*(claimed(store, f"o{at}", 5) for at in range(20)))
    numbers = [each.line_no for lines in found for each in lines]
    assert len(numbers) == len(set(numbers))
    rest = await claimed(store, "last", 100)
    assert sorted(numbers + [each.line_no for each in rest]) == list(range(1, 61))


async def test_lines_wait_for_their_time_their_lane_and_their_batch(store: Store) -> None:
    row = batch(num_lines=3)
    async with store.begin() as connection:
        await insert_batch(connection, row)
        lines = [new_line(1, not_before=150.0), new_line(2, lane="other#standard"), new_line(3)]
        await insert_lines(connection, row.id, lines)
    assert [each.line_no for each in await claimed(store, "a", 9, now=149.0)] == [3]
    assert [each.line_no for each in await claimed(store, "a", 9, now=150.0)] == [1]
    async with store.begin() as connection:
        assert await move_batch(connection, row.id, to="cancelling", out_of=("in_progress",))
        assert not await move_batch(connection, row.id, to="cancelling", out_of=("in_progress",))
        moved = await move_lines(
            connection,
            (await unended_groups(connection, [row.id]))[0],
            lane=LANE,
            not_before=None,
            count=1,
            now=999.0,
        )
    assert moved == 1
    assert await claimed(store, "a", 9, now=999.0) == []  # it is being cancelled


async def test_a_dead_owners_claims_are_freed_and_a_living_ones_renewed(store: Store) -> None:
    await filled(store, 2)
    await claimed(store, "dead", 1)
    await claimed(store, "alive", 1)
    async with store.begin() as connection:
        # A line of its own that its owner does not name runs out of time as a dead one's does.
        await renew_claims(connection, [("batch_1", 2)], owner="alive", until=400.0)
        assert await free_claims(connection, now=161.0) == 1
    assert await states(store) == {1: "open", 2: "leased"}
    async with store.begin() as connection:
        assert await free_claims(connection, now=161.0, owner_not="me") == 1
    assert set((await states(store)).values()) == {"open"}


async def test_an_end_is_written_once_and_a_line_put_back_is_sent_again(store: Store) -> None:
    await filled(store, 3)
    lines = await claimed(store, "a", 3)
    async with store.begin() as connection:
        await keep_results(connection, [result(1), result(2)], out_of=("leased",))
        # A second answer to a line that has ended changes nothing.
        late = result(1, state="errored", body=b"other")
        await keep_results(connection, [late], out_of=("leased",))
        await put_back(connection, lines, owner="a", not_before=None, is_a_try=False)
    assert await states(store) == {1: "succeeded", 2: "succeeded", 3: "open"}
    (again,) = await claimed(store, "b", 3)
    assert (again.line_no, again.num_tries) == (3, 1)
    async with store.read() as connection:
        kept = await ended_lines(connection, "batch_1", after_line=0, is_good=True)
    assert [(each.line_no, each.body) for each in kept] == [(1, b"{}"), (2, b"{}")]


async def test_costs_and_counts_add_up(store: Store) -> None:
    await filled(store, 4)
    await claimed(store, "a", 2)
    async with store.begin() as connection:
        await keep_results(connection, [result(1)], out_of=("leased",))
        cost = LineCost(
            batch_id="batch_1",
            line_no=1,
            attempt_id="att",
            cost_nanos=7,
            billed_nanos=6,
            list_nanos=14,
            is_estimated=True,
        )
        await keep_costs(connection, [cost])
        assert await end_open_lines(connection, "batch_1", state="expired", now=9.0) == 2
        counts = (await line_counts(connection, ["batch_1", "none"]))["batch_1"]
    assert counts.by_state == {"succeeded": 1, "leased": 1, "expired": 2}
    assert (counts.cost_nanos, counts.billed_nanos, counts.list_nanos) == (7, 6, 14)
    assert (counts.num_estimated, counts.num_unended, counts.num_lines) == (1, 1, 4)


async def test_part_of_a_group_moves_and_the_rest_stays(store: Store) -> None:
    await filled(store, 5)
    async with store.begin() as connection:
        (group,) = await unended_groups(connection, ["batch_1"])
        assert (group.count, group.prompt_tokens, group.output_tokens) == (5, 10.0, 3.0)
        await move_lines(connection, group, lane="q/m#native", not_before=7.0, count=2, now=1.0)
        found = {each.lane: each.count for each in await unended_groups(connection, ["batch_1"])}
        due = await lanes_due(connection, ["batch_1"], now=8.0)
        early = await lanes_due(connection, ["batch_1"], now=6.0)
    assert found == {LANE: 3, "q/m#native": 2}
    assert {each.lane: each.count for each in due} == found
    assert [each.lane for each in early] == [LANE]


async def test_a_providers_batch_takes_lines_and_gives_back_what_it_did_not_do(
    store: Store,
) -> None:
    await filled(store, 4)
    row = NativeRow(
        id="nb_1",
        batch_id="batch_1",
        endpoint_id="p/m",
        state="submitting",
        submitted_at=100.0,
    )
    async with store.begin() as connection:
        members = await gather_lines(connection, row, lane=LANE, now=100.0, limit=3)
        assert [each.line_no for each in members] == [1, 2, 3]
        assert [each.id for each in await native_in(connection, "submitting")] == ["nb_1"]
        await keep_results(connection, [result(2)], out_of=("submitted",))
        left = await members_of(connection, row)
        assert [each.line_no for each in left] == [1, 3]
        assert await reopen_members(connection, row, [1], state="expired", now=9.0) == 1
        assert await reopen_members(connection, row) == 1
        await update_native(connection, "nb_1", state="collected", ended_at=130.0)
        history = await native_history(connection, "p/m")
        empty = await gather_lines(
            connection,
            NativeRow(id="nb_2", batch_id="batch_1", endpoint_id="p/m", state="submitting"),
            lane="none#native",
            now=1.0,
            limit=9,
        )
    assert [each.ended_at for each in history] == [130.0]
    assert empty == []
    assert await states(store) == {1: "expired", 2: "succeeded", 3: "open", 4: "open"}


async def test_batches_are_found_by_their_tenant_only_and_page(store: Store) -> None:
    async with store.begin() as connection:
        for number in range(5):
            await insert_batch(connection, batch(f"b{number}", created_at=float(number // 2)))
        await insert_batch(connection, batch("foreign", tenant_id="other"))
        assert await find_batch(connection, "t", "foreign") is None
        first = await list_batches(connection, "t", limit=2)
        rest = await list_batches(connection, "t", limit=9, after=first[-1])
        before = await list_batches(connection, "t", limit=1, before=rest[0])
    assert [each.id for each in [*first, *rest]] == ["b4", "b3", "b2", "b1", "b0"]
    assert [each.id for each in before] == ["b3"]


async def test_a_late_answer_leaves_no_body_behind_for_the_answer_that_counts(store: Store) -> None:
    await filled(store, 1)
    await claimed(store, "slow", 1)
    async with store.begin() as connection:
        await free_claims(connection, now=900.0)  # its owner was taken for dead
        late = result(1, state="errored", body=b"late")
        await keep_results(connection, [late], out_of=("leased",))
    assert await states(store) == {1: "open"}
    await claimed(store, "quick", 1)
    async with store.begin() as connection:
        good = msgspec.structs.replace(result(1, body=b"good"), request_id="req_2")
        await keep_results(connection, [good], out_of=("leased",))
        (kept,) = await ended_lines(connection, "batch_1", after_line=0, is_good=True)
    assert (kept.request_id, kept.body) == ("req_2", b"good")


async def test_a_plan_that_changes_nothing_writes_nothing_and_lets_retries_wait(
    store: Store,
) -> None:
    await filled(store, 3)
    lines = await claimed(store, "a", 1)
    async with store.begin() as connection:
        await put_back(connection, lines, owner="a", not_before=190.0, is_a_try=True)
        (group,) = await unended_groups(connection, ["batch_1"])
        at: dict[str, Any] = {"not_before": None, "count": 3, "now": 100.0}
        assert await move_lines(connection, group, lane=LANE, **at) == 0
        assert await _due(connection, 189.0) == [2, 3]
        assert await move_lines(connection, group, lane=LANE, **{**at, "not_before": 9e9}) == 3
        assert await move_lines(connection, group, lane=LANE, **at) == 3
        assert await _due(connection, 101.0) == [1, 2, 3]


async def test_a_providers_batch_belongs_to_one_process_until_that_falls_silent(
    store: Store,
) -> None:
    await filled(store, 1)
    row = NativeRow(
        id="nb_1",
        batch_id="batch_1",
        endpoint_id="p/m",
        state="submitting",
        owner="a",
        submitted_at=100.0,
    )
    async with store.begin() as connection:
        await gather_lines(connection, row, lane=LANE, now=100.0, limit=1)
        assert await take_natives(connection, owner="b", now=130.0, silent_since=90.0) == []
        (mine,) = await take_natives(connection, owner="a", now=130.0, silent_since=90.0)
        assert (mine.id, mine.polled_at) == ("nb_1", 130.0)
        (taken,) = await take_natives(connection, owner="b", now=300.0, silent_since=180.0)
        assert taken.owner == "b"
        assert await take_natives(connection, owner="a", now=301.0, silent_since=181.0) == []
        await leave_natives(connection, owner="b")
        assert await take_natives(connection, owner="a", now=302.0, silent_since=182.0)


async def test_batches_with_lines_to_do_are_told_from_those_without(store: Store) -> None:
    await filled(store, 2)
    async with store.begin() as connection:
        await insert_batch(connection, batch("batch_2"))
        assert await unended_of(connection, ["batch_1", "batch_2"]) == {"batch_1"}
        await end_open_lines(connection, "batch_1", state="cancelled", now=1.0)
        assert await unended_of(connection, ["batch_1"]) == set()


async def _due(connection: AsyncConnection, now: float) -> list[int]:
    """Line numbers that a worker would get; given back as they were."""
    found = await claim_lines(connection, owner="look", lane=LANE, now=now, until=now, limit=9)
    await put_back(connection, found, owner="look", not_before=None, is_a_try=False)
    return [each.line_no for each in found]
