"""A batch file while it arrives: checked line by line, written down, and indexed.

The index (place, model and size of each line) lies beside the file, so that creating a batch need
not read two hundred megabytes again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from gateway.batch.line_check import (
    PROBLEMS_MAX,
    CheckedLine,
    LineChecker,
    LineProblem,
    LineRefused,
    problems_text,
    refused,
)
from gateway.batch.line_splitter import Line, LineSplitter, LineTooLong
from gateway.batch.storage import FileStorage, Writing
from gateway.errors import InvalidRequest
from gateway.wire.pieces import Surface

LINES_MAX = 50_000
FILE_BYTES_MAX = 200 * 1024 * 1024
INDEX_BYTES_MAX = 64 * 1024 * 1024
LINES_A_TURN = 64  # checked before others get the processor


class FileIndex(msgspec.Struct, frozen=True, array_like=True):
    """What a whole file holds."""

    surface: Surface
    lines: list[CheckedLine]


class BadBatchFile(InvalidRequest):
    """400 with every problem found, by line; nothing of the file was kept."""

    code = "invalid_batch_file"

    def __init__(self, problems: list[LineProblem]) -> None:
        super().__init__(
            f"the file was not accepted, and nothing of it was kept: {problems_text(problems)}",
            param="file",
            detail=[msgspec.structs.asdict(each) for each in problems],
        )
        self.problems = problems


class Intake:
    """Feed it the file's bytes, then `finish`. Raises BadBatchFile once enough is known."""

    def __init__(self, writing: Writing, *, line_bytes_max: int) -> None:
        self._writing = writing
        self._line_bytes_max = line_bytes_max
        self._splitter = LineSplitter(line_bytes_max)
        self._checker = LineChecker()
        self._hash = hashlib.sha256()
        self._problems: list[LineProblem] = []
        self.lines: list[CheckedLine] = []

    @property
    def num_bytes(self) -> int:
        return self._writing.num_bytes

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def feed(self, piece: bytes) -> None:
        self._hash.update(piece)
        if self.num_bytes + len(piece) > FILE_BYTES_MAX:
            too_large = f"the file is larger than {FILE_BYTES_MAX} bytes; split it"
            raise BadBatchFile([*self._problems, LineProblem(code="too_large", message=too_large)])
        try:
            for place, line in enumerate(self._splitter.feed(piece), 1):
                self._take(line)
                if place % LINES_A_TURN == 0:
                    await asyncio.sleep(0)
        except LineTooLong as error:
            message = (
                f"the line is longer than {self._line_bytes_max} bytes (`limits.body_bytes_max` "
                "of the policy)"
            )
            problem = LineProblem(code="line_too_long", message=message, line=error.number)
            raise BadBatchFile([*self._problems, problem]) from None
        await self._writing.write(piece)

    def finish(self) -> FileIndex:
        for line in self._splitter.end():
            self._take(line)
        if self._problems:
            raise BadBatchFile(self._problems)
        surface = self._checker.surface
        if surface is None or not self.lines:
            raise BadBatchFile([LineProblem(code="empty_file", message="the file has no lines")])
        return FileIndex(surface, self.lines)

    def _take(self, line: Line) -> None:
        try:
            if len(self.lines) == LINES_MAX:
                raise refused(
                    "too_many_lines",
                    f"the file has more than {LINES_MAX} lines; split it",
                    line.number,
                )
            self.lines.append(self._checker.check(line))
        except LineRefused as error:
            self._problems.append(error.problem)
            if len(self._problems) >= PROBLEMS_MAX or error.problem.code == "too_many_lines":
                raise BadBatchFile(self._problems) from None


@asynccontextmanager
async def taking_in(
    storage: FileStorage, key: str, *, line_bytes_max: int
) -> AsyncIterator[Intake]:
    """An intake into `key`. Where the block raises, neither file nor index exists."""
    async with storage.writing(key) as writing:
        yield Intake(writing, line_bytes_max=line_bytes_max)


async def write_index(storage: FileStorage, key: str, index: FileIndex) -> None:
    async with storage.writing(index_key(key)) as writing:
        await writing.write(msgspec.msgpack.encode(index))


async def read_index(storage: FileStorage, key: str) -> FileIndex:
    """Raises FileNotFoundError where the file has none."""
    parts = bytearray()
    async for part in storage.read(index_key(key)):
        parts += part
        assert len(parts) <= INDEX_BYTES_MAX
    return msgspec.msgpack.decode(bytes(parts), type=FileIndex)


def index_key(key: str) -> str:
    return f"{key}.lines"
