"""When a process was last alive, and what that says of the answers it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.ledger import alive
from gateway.ledger.alive import ALIVE_NAME, STAMP_SLACK_S, AliveMark, alive_until
from gateway.ledger.journal import JournalWriter, encode
from gateway.ledger.records import CRASHED, NOTHING_SETTLED, Hold, ended_record, sent_record
from gateway.ledger.recovery import generated_shares
from tests.support.ledgers import CENT, attempt_rows, bench, cost_of, die, request_of

WAIT_S = 5.0


def wait_until(holds: Callable[[], bool]) -> None:
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < WAIT_S
        time.sleep(0.005)


def stamped(folder: Path, at_s: float) -> None:
    mark = AliveMark(folder, unix_now=lambda: at_s, is_needed=lambda: True)
    mark.start()
    mark.begin()
    mark.stop()


def test_stamps_follow_the_clock_while_something_is_held_and_rest_when_not(tmp_path: Path) -> None:
    now_s, is_held = [100.0], [True]
    mark = AliveMark(tmp_path, unix_now=lambda: now_s[0], is_needed=lambda: is_held[0])
    mark.start()
    try:
        assert alive_until(tmp_path) is None  # nothing was ever held
        mark.begin()
        assert alive_until(tmp_path) == 100.0 + STAMP_SLACK_S  # at once, not with the next tick
        now_s[0] = 107.0
        wait_until(lambda: alive_until(tmp_path) == 107.0 + STAMP_SLACK_S)
        is_held[0] = False
        wait_until(lambda: not mark._wanted.is_set())
        now_s[0] = 120.0
        time.sleep(0.06)
        assert alive_until(tmp_path) == 107.0 + STAMP_SLACK_S
        is_held[0] = True
        mark.begin()
        assert alive_until(tmp_path) == 120.0 + STAMP_SLACK_S
    finally:
        mark.stop()


def test_a_stamp_of_another_boot_or_half_a_stamp_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamped(tmp_path, 100.0)
    whole = (tmp_path / ALIVE_NAME).read_bytes()
    (tmp_path / ALIVE_NAME).write_bytes(whole[:-1])
    assert alive_until(tmp_path) is None
    (tmp_path / ALIVE_NAME).write_bytes(whole)
    assert alive_until(tmp_path) is not None

    other = tmp_path / "boot_id"
    other.write_text("another-boot\n")
    monkeypatch.setattr(alive, "BOOT_ID", other)
    assert alive_until(tmp_path) is None


def test_where_the_system_has_no_boot_id_nothing_is_stamped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alive, "BOOT_ID", tmp_path / "none")
    stamped(tmp_path, 100.0)

    assert not (tmp_path / ALIVE_NAME).exists()


def test_a_share_of_time_is_known_of_whole_answers_that_were_under_way(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "holder", 1)
    for attempt_id, unseen_s, sent_s in (
        ("half", 10.0, 95.0),
        ("over", 2.0, 90.0),
        ("unknown", 0.0, 95.0),
        ("ended", 10.0, 95.0),
    ):
        request = request_of(attempt_id, 1_000, stream=False, unseen_s=unseen_s)
        writer.append(encode(sent_record(request, (), sent_s)))
    end = ended_record(Hold("ended", 1_000, ()), cost_of(5), NOTHING_SETTLED, 99.0)
    writer.append(encode(end))
    writer.close()
    assert generated_shares(tmp_path) == {}  # without a stamp nothing is known

    stamped(tmp_path, 100.0)

    assert generated_shares(tmp_path) == {"half": pytest.approx(0.51), "over": 1.0}


@pytest.mark.anyio
async def test_a_killed_ledger_books_by_the_time_that_its_attempt_had(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        dead = at.ledger("dead")
        await dead.start()
        dead._alive.start()
        request = request_of("a", 10 * CENT, stream=False, unseen_tokens=1_000, unseen_s=50.0)
        await dead.reserve(request)
        at.clock.turn(5.0)
        wait_until(lambda: (alive_until(tmp_path / "journal" / "dead") or 0.0) > 1_700_000_005.0)
        dead._alive.stop()
        die(dead)
        at.clock.turn(600.0)  # however long until somebody comes
        await at.ledger("next").start()
        row = (await attempt_rows(at.store))["a"]

    assert (row.state, row.is_estimated, row.failure) == ("settled", True, CRASHED)
    assert (row.input_tokens, row.output_tokens) == (100, 102)  # 5.1 of 50 s
    assert not (tmp_path / "journal" / "dead").exists()
