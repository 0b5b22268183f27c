"""The journal: frames survive any cut, damage is seen, a full disk takes nothing half."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import PriceRow
from gateway.ledger.journal import (
    Damage,
    JournalError,
    JournalReader,
    JournalWriter,
    Position,
    encode,
    file_numbers,
    file_path,
    lock_directory,
    remove_directory,
)
from gateway.ledger.records import Dropped, Ended, Opened, Progress, Record, Sent
from gateway.wire.usage import Usage
from tests.support.ledgers import file_size_limit

START = Position(1, 0)
ROW = PriceRow(source="policy", input=1, output=2)

ids = st.text("abc-", max_size=8)
nanos = st.integers(0, 2**60)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Sent, ids, ids, ids, ids, ids, ids, ids, ids, ids, st.booleans(), st.booleans(), nanos,
        st.lists(ids, max_size=3).map(tuple), st.just((ROW,)), ids, st.integers(0, 10**6),
        st.floats(0, 2e9),
    ),
    st.builds(Progress, ids, st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9))),
    st.builds(
        Ended, ids, st.lists(ids, max_size=2).map(tuple), nanos, nanos, nanos, nanos,
        st.none() | st.just(Usage(output=3)), st.none() | st.just(ROW), st.booleans(), ids, ids,
        st.floats(0, 2e9),
    ),
    st.builds(Dropped, ids, ids, st.floats(0, 2e9)),
)  # fmt: skip


def written(directory: Path, what: list[Record], **more: int) -> JournalWriter:
    directory.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(directory, "h", 1, **more)
    for record in what:
        writer.append(encode(record))
    return writer


def read_all(
    directory: Path, start: Position = START, step: int = 7
) -> tuple[list[Record], list[Damage]]:
    reader = JournalReader(directory)
    found: list[Record] = []
    position = start
    while True:
        some, end = reader.batch(position, None, records_max=step)
        if end == position:
            return [each for each in found if not isinstance(each, Opened)], reader.damage
        found += some
        position = end


@settings(max_examples=25)
@given(what=st.lists(records, max_size=20), step=st.integers(1, 5))
def test_what_was_appended_is_read_back_in_order(
    what: list[Record], step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("j")
    written(directory, what, file_bytes_max=400).close()

    assert (what, []) == read_all(directory, step=step)


@settings(max_examples=25)
@given(what=st.lists(records, min_size=1, max_size=5), cut=st.integers(1, 60))
def test_a_record_cut_short_at_the_end_is_dropped_without_complaint(
    what: list[Record], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("j")
    writer = written(directory, what)
    writer.close()
    last = len(encode(what[-1]))
    os.truncate(writer.path, writer.position.offset - min(cut, last))

    assert (what[:-1], []) == read_all(directory)


@settings(max_examples=25)
@given(
    what=st.lists(records, min_size=3, max_size=6), at=st.integers(0, 40), flip=st.integers(1, 255)
)
def test_damage_before_a_sound_record_is_reported_and_the_rest_is_read(
    what: list[Record], at: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("j")
    writer = written(directory, what[:1])
    begin = writer.position.offset
    for record in what[1:]:
        writer.append(encode(record))
    writer.close()
    content = bytearray(writer.path.read_bytes())
    content[begin + at % len(encode(what[1]))] ^= flip
    writer.path.write_bytes(content)

    found, damage = read_all(directory)
    assert [what[0], *what[2:]] == found
    assert [begin] == [each.offset for each in damage]
    assert str(writer.path) in str(damage[0])


def test_a_tail_of_zeros_after_a_power_loss_is_dropped(tmp_path: Path) -> None:
    writer = written(tmp_path, [Dropped("a", "r", 1.0)])
    writer.close()
    with writer.path.open("ab") as file:
        file.write(bytes(4096))

    assert ([Dropped("a", "r", 1.0)], []) == read_all(tmp_path)


@pytest.mark.parametrize("room", [0, 5])
def test_a_full_disk_leaves_no_half_record_behind(tmp_path: Path, room: int) -> None:
    writer = written(tmp_path, [Dropped("a", "r", 1.0)])
    before = writer.position

    with file_size_limit(before.offset + room), pytest.raises(JournalError, match="cannot write"):
        writer.append(encode(Dropped("b", "r", 2.0)))

    assert before == writer.position
    writer.append(encode(Dropped("c", "r", 3.0)))
    writer.close()
    assert ([Dropped("a", "r", 1.0), Dropped("c", "r", 3.0)], []) == read_all(tmp_path)


def test_a_failed_sync_moves_on_to_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = written(tmp_path, [Dropped("a", "r", 1.0)])

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalError, match="cannot sync"):
        writer.sync()
    monkeypatch.undo()
    writer.append(encode(Dropped("b", "r", 2.0)))
    writer.sync()
    writer.close()

    assert file_numbers(tmp_path) == [1, 2]
    assert ([Dropped("a", "r", 1.0), Dropped("b", "r", 2.0)], []) == read_all(tmp_path)


def test_a_living_writer_is_read_only_as_far_as_asked(tmp_path: Path) -> None:
    writer = written(tmp_path, [Dropped("a", "r", 1.0)])
    middle = writer.position
    writer.append(encode(Dropped("b", "r", 2.0)))

    found, end = JournalReader(tmp_path).batch(START, middle, records_max=100)
    assert middle == end
    assert [Opened(1, "h", 1), Dropped("a", "r", 1.0)] == found


def test_files_wholly_in_sql_are_deleted_but_never_the_newest(tmp_path: Path) -> None:
    writer = written(tmp_path, [Dropped("a" * 50, "r", 1.0)] * 6, file_bytes_max=100)
    newest = writer.position.file_no
    assert newest == 3

    writer.drop_before(2)
    assert file_numbers(tmp_path) == [2, 3]
    writer.drop_before(newest + 5)
    assert [newest] == file_numbers(tmp_path)


def test_a_record_over_the_limit_is_refused() -> None:
    with pytest.raises(JournalError, match="over"):
        encode(Dropped("a", "r" * 100_000, 1.0))


def test_a_journal_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    file_path(tmp_path, 1).write_bytes(b"")

    with pytest.raises(JournalError, match="free the disk"):
        JournalWriter(tmp_path, "h", 1)


def test_a_directory_has_one_owner_until_it_lets_go(tmp_path: Path) -> None:
    first = lock_directory(tmp_path)
    assert first is not None

    assert lock_directory(tmp_path) is None
    os.close(first)
    second = lock_directory(tmp_path)
    assert second is not None
    remove_directory(tmp_path)
    os.close(second)
    assert not tmp_path.exists()
    assert lock_directory(tmp_path) is None
