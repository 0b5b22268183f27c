"""Bytes that arrive in any pieces → lines, with their place in the file, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """`data` without its end of line. `number` counts all lines from 1, empty ones too."""

    number: int
    offset_bytes: int
    data: bytes


class LineTooLong(ValueError):
    """`number` is the line's, of which `line_bytes_max` bytes came without an end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} is too long")
        self.number = number


class LineSplitter:
    """Feed it pieces, take whole lines; empty ones are left out. LF and CRLF end a line."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()
        self._offset_bytes = 0  # of `_rest` in the file
        self._number = 0
        self._searched = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        """Raises LineTooLong."""
        self._rest += piece
        start = 0
        while True:
            end = self._rest.find(b"\n", max(start, self._searched))
            if end < 0:
                break
            yield from self._line(start, end)
            start = end + 1
            self._searched = start
        self._offset_bytes += start
        del self._rest[:start]
        self._searched = len(self._rest)
        if len(self._rest) > self._line_bytes_max:
            raise LineTooLong(self._number + 1)

    def end(self) -> Iterator[Line]:
        """What stands behind the last end of line."""
        if self._rest:
            yield from self._line(0, len(self._rest))

    def _line(self, start: int, end: int) -> Iterator[Line]:
        self._number += 1
        if end - start > self._line_bytes_max:
            raise LineTooLong(self._number)
        if self._number == 1 and self._rest.startswith(_BOM):
            start += len(_BOM)
        data = bytes(self._rest[start:end]).removesuffix(b"\r")
        if data.strip():
            yield Line(self._number, self._offset_bytes + start, data)
