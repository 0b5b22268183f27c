"""What becomes of the ledger when processes end, die, disagree or run out of disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.errors import BudgetExhausted, LedgerUnavailable, SetupError
from gateway.ledger.ledger import STOP_WAIT_S
from gateway.ledger.options import LedgerOptions
from gateway.ledger.verify import verify
from gateway.wire.usage import Usage
from tests.support.ledgers import (
    CENT,
    DOLLAR,
    add_budget,
    attempt_rows,
    bench,
    cost_of,
    die,
    file_size_limit,
    lease_states,
    only_window,
    request_of,
    set_limit,
    windows,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_after_an_orderly_end_nothing_is_leased_and_no_journal_is_left(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        ledger.settle(await ledger.reserve(request_of("a1", 10 * CENT, "b")), cost_of(CENT))
        await ledger.close()

        window = await only_window(at.store, "b")
        assert (window.spent, window.leased) == (CENT, 0)
        assert list((tmp_path / "journal").iterdir()) == []
        with pytest.raises(LedgerUnavailable, match="not running"):
            await ledger.reserve(request_of("a2", CENT, "b"))


async def test_an_attempt_that_nobody_settled_is_billed_by_estimate_after_a_crash(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        mute = await ledger.reserve(request_of("mute", 10 * CENT, "b"))
        streaming = await ledger.reserve(request_of("streaming", 10 * CENT, "b"))
        await ledger.reserve(
            request_of("unpriced", 3 * CENT, "b", rows=(), prompt_tokens_estimate=7)
        )
        ledger.progress(streaming, Usage(output=10))
        at.clock.turn(0.5)
        ledger.progress(streaming, Usage(output=20))  # too soon after the last
        at.clock.turn(0.6)
        ledger.progress(streaming, Usage(output=40))
        assert mute.is_open
        die(ledger)

        again = at.ledger()
        await again.start()
        rows = await attempt_rows(at.store)
        # 100 prompt tokens at 1 micro-dollar; 40 generated ones at 2.
        assert tuple(rows[name].billed_nanos for name in ("mute", "streaming", "unpriced")) == (
            100_000,
            180_000,
            3 * CENT,
        )
        assert {"settled"} == {row.state for row in rows.values()}
        assert all(row.is_estimated for row in rows.values())
        assert (await only_window(at.store, "b")).spent == 280_000 + 3 * CENT
        assert await verify(at.store, tmp_path / "journal") == []
        await again.close()


async def test_the_journal_of_a_dead_holder_is_adopted_by_another_of_the_same_home(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        dead = at.ledger("dead")
        await dead.start()
        dead.settle(await dead.reserve(request_of("a1", DOLLAR, "b")), cost_of(10 * CENT))
        die(dead)

        heir = at.ledger("heir")
        await heir.start()
        await heir.reserve(request_of("a2", 90 * CENT, "b"))
        await heir.flush()
        assert not (tmp_path / "journal" / "dead").exists()
        assert (await only_window(at.store, "b")).spent == 10 * CENT
        assert await verify(at.store, tmp_path / "journal") == []
        await heir.close()


async def test_a_lease_that_expires_without_its_journal_counts_as_spent_by_nobody_known(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        lost = at.ledger("lost", home=tmp_path / "other-machine")
        await lost.start()
        known = await lost.reserve(request_of("known", 20 * CENT, "b"))
        await lost.flush()
        lost.settle(known, cost_of(5 * CENT))
        await lost.reserve(request_of("unknown", 40 * CENT, "b"))
        die(lost)
        one = at.ledger("one")
        await one.start()
        at.clock.turn(29)
        await one.tend()
        assert await lease_states(at.store) == ["open"]

        at.clock.turn(2)
        await one.tend()
        window = await only_window(at.store, "b")
        leased = window.spent
        assert 45 * CENT <= leased < DOLLAR
        # The attempt that SQL knew of is settled by estimate, the rest is nobody's.
        assert (leased - 100_000, 0) == (window.unattributed, window.leased)
        assert "unattributed" in at.alert_kinds
        assert await verify(at.store, tmp_path / "journal") == []

        # The machine comes back: what its journal says is claimed, nothing is returned.
        back = at.ledger("lost", home=tmp_path / "other-machine")
        await back.start()
        window = await only_window(at.store, "b")
        assert (leased, leased - 100_000 - 100_000) == (window.spent, window.unattributed)
        assert await verify(at.store, tmp_path / "journal") == []
        await back.close()
        await one.close()


async def test_a_holder_that_was_given_up_goes_on_with_a_new_lease(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", 10 * DOLLAR)
        cut_off = at.ledger("cut-off", home=tmp_path / "other-machine")
        one = at.ledger("one")
        await cut_off.start()
        await one.start()
        running = await cut_off.reserve(request_of("a1", 10 * CENT, "b"))
        at.clock.turn(31)
        await one.tend()
        assert await lease_states(at.store) == ["expired"]

        cut_off.settle(running, cost_of(7 * CENT))
        await cut_off.flush()
        await cut_off.tend()
        cut_off.settle(await cut_off.reserve(request_of("a2", CENT, "b")), cost_of(CENT))
        await cut_off.flush()
        assert await lease_states(at.store) == ["expired", "open"]
        assert (await attempt_rows(at.store))["a1"].billed_nanos == 7 * CENT
        assert await verify(at.store, tmp_path / "journal") == []
        at.clock.turn(31)  # and is watched as before
        await one.tend()
        assert await lease_states(at.store) == ["expired", "expired"]
        await cut_off.close()
        await one.close()


async def test_a_damaged_journal_is_reported_and_its_leases_count_as_spent(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        first = await ledger.reserve(request_of("a1", 10 * CENT, "b"))
        begin = ledger._committer.writer.position.offset  # type: ignore[union-attr]
        ledger.settle(first, cost_of(CENT))
        ledger.settle(await ledger.reserve(request_of("a2", 10 * CENT, "b")), cost_of(2 * CENT))
        path = ledger._committer.writer.path  # type: ignore[union-attr]
        (granted,) = [lease.granted_nanos for lease in ledger._holdings.leases]
        die(ledger)
        content = bytearray(path.read_bytes())
        content[begin + 20] ^= 1
        path.write_bytes(content)

        again = at.ledger()
        await again.start()
        window = await only_window(at.store, "b")
        assert "journal_damaged" in at.alert_kinds
        assert (await attempt_rows(at.store))["a2"].billed_nanos == 2 * CENT
        assert (window.spent, window.leased) == (granted, 0)
        assert granted - 2 * CENT - 100_000 == window.unattributed
        problems = await verify(at.store, tmp_path / "journal")
        assert len(problems) == 1
        assert "was damaged" in problems[0]
        await again.close()


async def test_a_full_disk_refuses_new_requests_and_keeps_the_ends_of_running_ones(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        ledger.release(await ledger.reserve(request_of("big", 60 * CENT, "b")), "done")
        running = await ledger.reserve(request_of("a1", 10 * CENT, "b"))
        held = await ledger.reserve(request_of("a0", 10 * CENT, "b"))
        (lease,) = ledger._holdings.leases
        end = ledger._committer.writer.position.offset  # type: ignore[union-attr]

        with file_size_limit(end + 3):
            with pytest.raises(LedgerUnavailable, match="free disk"):
                await ledger.reserve(request_of("a2", CENT, "b"))
            assert lease.held_nanos == 20 * CENT
            ledger.settle(running, cost_of(CENT))
            ledger.release(held, "refused")
            with pytest.raises(LedgerUnavailable, match="free disk"):
                await ledger.reserve(request_of("a3", CENT))
        assert at.alert_kinds == ["journal_unwritable"]
        ledger.release(await ledger.reserve(request_of("a4", CENT, "b")), "done")
        await ledger.flush()
        states = {name: row.state for name, row in (await attempt_rows(at.store)).items()}
        assert set(states) == {"big", "a1", "a0", "a4"}
        assert (states["a1"], states["a0"]) == ("settled", "released")
        await ledger.close()


async def test_open_holds_and_unbooked_journal_have_a_limit(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        options = LedgerOptions(open_holds_max=2, journal_bytes_max=1_500)
        ledger = at.ledger(options=options)
        await ledger.start()
        holds = [await ledger.reserve(request_of(f"a{i}", CENT)) for i in range(2)]
        with pytest.raises(LedgerUnavailable, match="hold money already"):
            await ledger.reserve(request_of("a2", CENT))

        ledger.release(holds[0], "done")
        for i in range(3, 20):
            if ledger.backlog_bytes > 1_500:
                break
            ledger.release(await ledger.reserve(request_of(f"a{i}", CENT)), "done")
        with pytest.raises(LedgerUnavailable, match="for too long"):
            await ledger.reserve(request_of("late", CENT))
        await ledger.flush()
        ledger.release(await ledger.reserve(request_of("later", CENT)), "done")
        ledger.release(holds[1], "done")
        await ledger.close()


async def test_a_second_ledger_of_the_same_name_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        first = at.ledger("same")
        await first.start()

        with pytest.raises(SetupError, match="another process keeps"):
            await at.ledger("same").start()
        with pytest.raises(SetupError, match="letters"):
            at.ledger("../up")
        await first.close()


async def test_a_journal_of_another_database_is_left_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        stranger = at.ledger("stranger")
        await stranger.start()
        await stranger.reserve(request_of("a1", CENT))
        die(stranger)
        (tmp_path / "new").mkdir()
        async with bench(tmp_path / "new") as other:
            ledger = other.ledger(home=tmp_path)
            await ledger.start()
            await ledger.tend()

            assert other.alert_kinds == ["journal_foreign"]
            assert (tmp_path / "journal" / "stranger").is_dir()
            problems = await verify(other.store, tmp_path / "journal")
            assert any("no server of this database" in each for each in problems)
            await ledger.close()


async def test_a_commit_whose_answer_was_lost_is_not_booked_twice(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        committer = ledger._committer
        assert committer is not None
        before = committer.applied
        ledger.settle(await ledger.reserve(request_of("a1", 10 * CENT, "b")), cost_of(CENT))
        await ledger.flush()
        after = committer.applied

        committer.applied = before  # as if the answer to COMMIT had never come
        ledger.settle(await ledger.reserve(request_of("a2", 10 * CENT, "b")), cost_of(CENT))
        await ledger.flush()
        assert committer.applied > after
        assert (await only_window(at.store, "b")).spent == 2 * CENT
        assert at.alerts == []
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_background_tasks_book_without_being_asked(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger(runs_in_background=True)
        await ledger.start()
        ledger.settle(await ledger.reserve(request_of("a1", 10 * CENT, "b")), cost_of(CENT))
        async with asyncio.timeout(5):
            while "a1" not in await attempt_rows(at.store):
                await asyncio.sleep(0.005)

        assert (await attempt_rows(at.store))["a1"].state == "settled"
        await ledger.close()


async def test_close_in_the_middle_of_a_commit_ends_at_once(tmp_path: Path) -> None:
    closing: list[asyncio.Task[None]] = []
    is_due = asyncio.Event()

    def at_point(name: str) -> None:
        if name == "before_settle_commit" and is_due.is_set() and not closing:
            closing.append(asyncio.get_running_loop().create_task(ledger.close()))

    async with bench(tmp_path) as at:
        ledger = at.ledger(runs_in_background=True, at_point=at_point)
        await ledger.start()
        ledger.settle(await ledger.reserve(request_of("a1", CENT)), cost_of(CENT))
        is_due.set()
        async with asyncio.timeout(5):
            while not closing:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(STOP_WAIT_S / 2):
            await closing[0]

        assert (await attempt_rows(at.store))["a1"].state == "settled"


async def test_records_over_many_files_are_booked_and_the_files_deleted(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        ledger = at.ledger(options=LedgerOptions(journal_file_bytes_max=600, records_per_commit=5))
        await ledger.start()
        for i in range(30):
            ledger.settle(await ledger.reserve(request_of(f"a{i}", CENT)), cost_of(CENT))
        assert len(list((tmp_path / "journal" / "one").glob("*.journal"))) > 5
        await ledger.flush()

        assert len(await attempt_rows(at.store)) == 30
        assert len(list((tmp_path / "journal" / "one").glob("*.journal"))) == 1
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_processes_whose_clocks_differ_by_minutes_agree_by_database_time(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR, period="day")
        early = at.ledger("early", clock=lambda: at.clock() - 300)
        late = at.ledger("late", clock=lambda: at.clock() + 300)
        await early.start()
        await late.start()
        running = await early.reserve(request_of("a1", 40 * CENT, "b"))
        other = await late.reserve(request_of("a2", 40 * CENT, "b"))
        at.clock.turn(29)
        await late.tend()
        await early.tend()
        assert await lease_states(at.store) == ["open", "open"]

        early.settle(running, cost_of(CENT))
        late.settle(other, cost_of(CENT))
        await early.flush()
        await late.flush()
        sent_at = {row.sent_at for row in (await attempt_rows(at.store)).values()}
        assert len(sent_at) == 1
        assert len(await windows(at.store)) == 1
        await early.close()
        await late.close()


async def test_a_lowered_limit_is_obeyed_at_the_next_heartbeat_without_being_told(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", 10 * DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        ledger.release(await ledger.reserve(request_of("a1", DOLLAR, "b")), "done")
        await set_limit(at.store, "b", 0)

        await ledger.tend()
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a2", CENT, "b"))
        await ledger.close()
