"""Reads an export of any size row by row: finds its format by the header, hashes what it reads."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from gateway.ledger.exports import (
    anthropic_costs,
    anthropic_usage,
    openai_costs,
    openai_usage,
    openrouter_activity,
    plain,
)
from gateway.ledger.exports.rows import ExportError, ExportRow, Format, shown

FORMATS: tuple[Format, ...] = tuple(
    module.FORMAT
    for module in (
        openai_usage, openai_costs, anthropic_usage, anthropic_costs, openrouter_activity, plain,
    )
)  # fmt: skip
FILE_BYTES_MAX = 16 * 1024**3
LINE_BYTES_MAX = 64 * 1024
COLUMNS_MAX = 200


class ExportReader:
    """
    An open export. Iterate it once; `sha256` is of the whole file when that is done.

    Raises ExportError with the line's number; a byte order mark is allowed.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        self._hash = sha256()
        self._num_lines = 0
        self._num_bytes = 0
        self._csv = csv.reader(self._lines(), strict=True)
        self.columns = self._header()
        self.format = find_format(self.columns, where=name)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def error(self, message: str) -> ExportError:
        """An error at the line that was read last."""
        return ExportError(f"{self.name}, line {self._num_lines}: {message}")

    def __iter__(self) -> Iterator[ExportRow]:
        columns, read = self.columns, self.format.read
        while (cells := self._next()) is not None:
            if not cells:
                continue  # a blank line
            if len(cells) != len(columns):
                raise self.error(
                    f"{len(cells)} cells where the header has {len(columns)} columns; export the "
                    "file again"
                )
            try:
                yield read(dict(zip(columns, cells, strict=True)))
            except ValueError as error:
                raise self.error(str(error)) from None

    def _header(self) -> tuple[str, ...]:
        cells = self._next()
        if not cells:
            raise ExportError(f"{self.name} has no header; {_expected(FORMATS)}")
        if len(cells) > COLUMNS_MAX:
            raise self.error(f"{len(cells)} columns; at most {COLUMNS_MAX} are read")
        columns = tuple(cell.strip() for cell in cells)
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            raise self.error(f"the column {shown(twice[0])} stands twice in the header")
        return columns

    def _next(self) -> list[str] | None:
        try:
            return next(self._csv, None)
        except csv.Error as error:
            raise self.error(f"no CSV: {error}") from None

    def _lines(self) -> Iterator[str]:
        while line := self._file.readline(LINE_BYTES_MAX + 1):
            self._num_lines += 1
            self._num_bytes += len(line)
            if len(line) > LINE_BYTES_MAX:
                raise self.error(f"longer than {LINE_BYTES_MAX} bytes; this is no export")
            if self._num_bytes > FILE_BYTES_MAX:
                raise self.error(f"more than {FILE_BYTES_MAX} bytes; export fewer days at a time")
            self._hash.update(line)
            try:
                yield line.decode("utf-8-sig" if self._num_lines == 1 else "utf-8")
            except UnicodeDecodeError:
                raise self.error("not UTF-8; save the export as it was downloaded") from None


def open_export(path: Path) -> ExportReader:
    """Raises ExportError when it cannot be opened or no format has its header."""
    try:
        # Its reader closes it with itself: it is read once, to the end, by one command.
        file = path.open("rb")
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from None
    return ExportReader(file, path.name)


def find_format(columns: tuple[str, ...], *, where: str) -> Format:
    """The one format with this header. ExportError says what was expected."""
    has = frozenset(columns)
    found = [each for each in FORMATS if has.issuperset(each.required)]
    if len(found) > 1:
        both = " and of ".join(each.title for each in found)
        raise ExportError(f"{where} has the columns of {both}; reconcile one export at a time")
    if not found:
        # By the share that is there: `model` alone is a third of the plain one, a sixth of another.
        nearest = max(
            FORMATS, key=lambda each: len(has.intersection(each.required)) / len(each.required)
        )
        if has.isdisjoint(nearest.required):
            raise ExportError(f"{where} has the header of no export known; {_expected(FORMATS)}")
        missing = ", ".join(each for each in nearest.required if each not in has)
        raise ExportError(f"{where} looks like {nearest.title}, but has no column {missing}")
    allowed = found[0].optional
    if allowed is not None:
        unknown = sorted(has.difference(found[0].required, allowed))
        if unknown:
            raise ExportError(
                f"{where} has a column {shown(unknown[0])}, which {found[0].title} has not; it may "
                f"have {', '.join((*found[0].required, *allowed))}"
            )
    return found[0]


def _expected(formats: tuple[Format, ...]) -> str:
    told = "; ".join(f"{each.title}: {', '.join(each.required)}" for each in formats)
    return f"expected the columns of one of these. {told}"
