"""The append-only journal: framing, writing with one `write()` a record, reading back, damage.

A frame is MAGIC, payload length, CRC-32 of the payload, payload (MessagePack of a `Record`).
A frame cut short at the end of a file is a torn write: whoever wrote it was never answered, so it
is dropped. A frame that is wrong with a good one after it is damage, and is reported as such.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from gateway.ledger.alive import ALIVE_NAME
from gateway.ledger.records import Opened, Record

MAGIC = b"LRJ\x01"
RECORD_BYTES_MAX = 64 << 10
FILE_BYTES_MAX = 16 << 20
READ_BYTES = 256 << 10
LOCK_NAME = "lock"
SUFFIX = ".journal"
FORMAT_VERSION = 1

_HEADER = struct.Struct("<4sII")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


class JournalError(Exception):
    """The journal cannot be written: disk full, file system gone, record too large."""


class Position(NamedTuple):
    """A place in a holder's journal; ordered as written."""

    file_no: int
    offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes in the middle of a file that are no record any more."""

    path: Path
    offset: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.offset}: {self.num_bytes} bytes unreadable"


def encode(record: Record) -> bytes:
    """The frame of one record, as it lies in the file."""
    payload = _ENCODER.encode(record)
    if len(payload) > RECORD_BYTES_MAX:
        raise JournalError(f"a record of {len(payload)} bytes is over {RECORD_BYTES_MAX}")
    return _HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def decode_at(frames: bytes, offset: int) -> tuple[Record, int] | None:
    """The record at `offset` and where the next begins; None when no whole, sound one is there."""
    start = offset + _HEADER.size
    if start > len(frames):
        return None
    magic, length, crc = _HEADER.unpack_from(frames, offset)
    end = start + length
    if magic != MAGIC or length > RECORD_BYTES_MAX or end > len(frames):
        return None
    payload = frames[start:end]
    if zlib.crc32(payload) != crc:
        return None
    try:
        return _DECODER.decode(payload), end
    except msgspec.MsgspecError:
        return None


def next_sound(frames: bytes, offset: int) -> int | None:
    """Where the first sound record at or after `offset` begins; None when none follows."""
    at = frames.find(MAGIC, offset)
    while at >= 0:
        if decode_at(frames, at) is not None:
            return at
        at = frames.find(MAGIC, at + 1)
    return None


def file_path(directory: Path, file_no: int) -> Path:
    return directory / f"{file_no:010d}{SUFFIX}"


def file_numbers(directory: Path) -> list[int]:
    """The journal files present, oldest first."""
    names = (path.name for path in directory.glob(f"*{SUFFIX}"))
    return sorted(int(stem) for name in names if (stem := name.removesuffix(SUFFIX)).isdigit())


class JournalWriter:
    """
    Appends to the newest file of one holder. Used by one event loop; `sync` may run in a thread.

    `position` is the end of the last whole record. After `append` returns, the record survives
    the death of the process; after `sync`, a power loss.
    """

    def __init__(
        self, directory: Path, holder_id: str, file_no: int, *, file_bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        self.directory = directory
        self.position = Position(file_no, 0)
        self._holder_id = holder_id
        self._file_bytes_max = file_bytes_max
        self._fd = -1
        self._offset = 0
        self._retired: list[int] = []  # full files, not yet synced
        self._must_rotate = False
        self._open(file_no)

    def append(self, frame: bytes) -> None:
        """One `write()` of one whole record. JournalError: nothing of it counts."""
        if self._must_rotate or self._offset >= self._file_bytes_max:
            self._rotate()
        try:
            num_written = os.write(self._fd, frame)
        except OSError as e:
            self._cut_back()
            raise JournalError(f"cannot write {self.path}: {e.strerror}") from e
        if num_written != len(frame):
            self._cut_back()
            raise JournalError(f"cannot write {self.path}: the disk is full")
        self._offset += num_written
        self.position = Position(self.position.file_no, self._offset)

    @property
    def path(self) -> Path:
        return file_path(self.directory, self.position.file_no)

    def sync(self) -> None:
        """Force what was appended before this call to the disk; blocks, so call it in a thread."""
        retired, self._retired = self._retired, []
        try:
            for fd in retired:
                os.fdatasync(fd)
            if self._fd >= 0:
                os.fdatasync(self._fd)
        except OSError as e:
            # After a failed sync the kernel may drop the pages: nothing here can be trusted on.
            self._must_rotate = True
            raise JournalError(f"cannot sync {self.path}: {e.strerror}") from e
        finally:
            for fd in retired:
                os.close(fd)

    def drop_before(self, file_no: int) -> None:
        """Delete the files that are wholly in SQL."""
        for number in file_numbers(self.directory):
            if number < min(file_no, self.position.file_no):
                file_path(self.directory, number).unlink(missing_ok=True)

    def close(self) -> None:
        for fd in [*self._retired, self._fd]:
            if fd >= 0:
                os.close(fd)
        self._retired, self._fd = [], -1

    def _open(self, file_no: int) -> None:
        path = file_path(self.directory, file_no)
        frame = encode(Opened(FORMAT_VERSION, self._holder_id, file_no))
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            if os.write(fd, frame) != len(frame):
                os.close(fd)
                path.unlink()
                raise JournalError(f"cannot write {path}: the disk is full")
            _sync_directory(self.directory)
        except OSError as e:
            path.unlink(missing_ok=True)
            raise JournalError(f"cannot open {path}: {e.strerror}; free the disk") from e
        self._fd = fd
        self._offset = len(frame)
        self.position = Position(file_no, self._offset)
        self._must_rotate = False

    def _rotate(self) -> None:
        full, self._fd = self._fd, -1
        try:
            self._open(self.position.file_no + 1)
        except JournalError:
            self._fd = full
            raise
        self._retired.append(full)

    def _cut_back(self) -> None:
        # What was partly written must not stand before the next record.
        try:
            os.ftruncate(self._fd, self._offset)
        except OSError:
            self._must_rotate = True


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class JournalReader:
    """Reads one holder's records in order; keeps the damage it had to step over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.damage: list[Damage] = []

    def batch(
        self, start: Position, end: Position | None, *, records_max: int
    ) -> tuple[list[Record], Position]:
        """
        Up to `records_max` records from `start` on, and the position after them.

        `end` is how far a living writer has come; None reads to the end of the last file. An
        empty list means that nothing is left.
        """
        position = start
        records: list[Record] = []
        while len(records) < records_max:
            frames = self._read(position, end, READ_BYTES)
            if not frames:
                following = self._file_after(position.file_no, end)
                if following is None:
                    break
                position = Position(following, 0)
                continue
            at = 0
            while len(records) < records_max and (found := decode_at(frames, at)):
                record, at = found
                records.append(record)
            if at == 0:
                at = self._step_over(position, end)
            position = Position(position.file_no, position.offset + at)
        return records, position

    def _read(self, position: Position, end: Position | None, num_bytes: int) -> bytes:
        if end is not None and position.file_no == end.file_no:
            num_bytes = min(num_bytes, end.offset - position.offset)
        if num_bytes <= 0:
            return b""
        try:
            with file_path(self._directory, position.file_no).open("rb", buffering=0) as file:
                file.seek(position.offset)
                return file.read(num_bytes)
        except FileNotFoundError:
            return b""

    def _file_after(self, file_no: int, end: Position | None) -> int | None:
        last = end.file_no if end is not None else None
        for number in file_numbers(self._directory):
            if number > file_no and (last is None or number <= last):
                return number
        return None

    def _step_over(self, position: Position, end: Position | None) -> int:
        """How many bytes to skip: to the next sound record (damage) or to the end (torn)."""
        rest = self._read(position, end, 2 * FILE_BYTES_MAX)
        sound = next_sound(rest, 1)
        if sound is not None or end is not None:
            path = file_path(self._directory, position.file_no)
            self.damage.append(Damage(path, position.offset, sound or len(rest)))
        return sound or len(rest)


def lock_directory(directory: Path) -> int | None:
    """
    An open file that holds the directory's lock, to be closed by the caller; None while another
    process (or another ledger of this one) lives in it. The lock ends with its holder's process.
    """
    path = directory / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_same = os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        is_same = False
    if not is_same:  # taken, or deleted by whoever had it before us
        os.close(fd)
        return None
    return fd


def remove_directory(directory: Path) -> None:
    """Delete a journal that is wholly in SQL; the caller holds its lock."""
    for number in file_numbers(directory):
        file_path(directory, number).unlink(missing_ok=True)
    for name in (ALIVE_NAME, LOCK_NAME):
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # damaged files were kept in it
        directory.rmdir()
