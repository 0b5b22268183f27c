"""A JSON object of one large array, in any pieces → the array's elements, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A whole string, a bracket, or the beginning of a string whose end has not come yet.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|"', re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")


class NotThatArray(ValueError):
    """The bytes are not an object with such an array of objects; the message says what is wrong."""


class ArraySplitter:
    """Yields the objects of the array that the member `name` of the outermost object holds.

    An element comes as its bytes and is not checked beyond its brackets; other members are
    skipped. `element_bytes_max` bounds what is kept.
    """

    def __init__(self, name: str, element_bytes_max: int) -> None:
        self._name = b'"%s"' % name.encode()
        self._element_bytes_max = element_bytes_max
        self._rest = bytearray()
        self._scanned = 0
        self._open = bytearray()  # the brackets that are open
        self._last_string = b""  # in the outermost object: a member's name, or a value
        self._begin = -1  # of an element, in `_rest`
        self._gap_from = 0  # in the array: where the element before ended
        self._num_elements = 0
        self._is_in_array = False
        self._root_end = -1  # in `_rest`, once the outermost object is whole
        self.is_found = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Raises NotThatArray."""
        self._rest += piece
        for match in _TOKEN.finditer(self._rest, self._scanned):
            token = match[0]
            if token == b'"':
                self._scanned = match.start()
                break
            self._scanned = match.end()
            if len(token) > 1:
                if len(self._open) == 1:
                    self._last_string = token
                elif self._is_in_array and len(self._open) == 2:
                    raise NotThatArray(f"{self._name.decode()} must hold objects only")
            elif token in b"{[":
                self._opened(token, match.start())
            else:
                element = self._closed(token, match.end())
                if element is not None:
                    yield element
        else:
            self._scanned = len(self._rest)
        self._forget()
        if len(self._rest) > self._element_bytes_max:
            raise NotThatArray(f"one of its elements has over {self._element_bytes_max} bytes")

    def finish(self) -> None:
        """Raises NotThatArray where the object is not whole or lacks the array."""
        if self._open or self._rest.strip():
            raise NotThatArray("the JSON ends too early, or something stands behind its end")
        if not self.is_found:
            raise NotThatArray(f"the member {self._name.decode()} is missing")

    def _opened(self, token: bytes, at: int) -> None:
        depth = len(self._open)
        if depth == 0 and (token != b"{" or self._root_end >= 0 or self._rest[:at].strip()):
            raise NotThatArray("the body must be a JSON object, and nothing beside it")
        if depth == 1 and token == b"[" and self._last_string == self._name:
            if self.is_found:
                raise NotThatArray(f"{self._name.decode()} is given twice")
            self.is_found = self._is_in_array = True
            self._gap_from = at + 1
        elif depth == 2 and self._is_in_array:
            if token != b"{":
                raise NotThatArray(f"{self._name.decode()} must hold objects only")
            self._check_gap(at, _COMMA if self._num_elements else _BLANK)
            self._begin = at
        self._open += token

    def _closed(self, token: bytes, end: int) -> bytes | None:
        if not self._open or bytes(self._open[-1:]) != (b"{" if token == b"}" else b"["):
            raise NotThatArray("the brackets of the JSON do not match")
        del self._open[-1]
        if not self._open:
            self._root_end = end
        if not self._is_in_array:
            return None
        if len(self._open) == 1:
            self._check_gap(end - 1, _BLANK)
            self._is_in_array = False
        elif len(self._open) == 2:
            element = bytes(self._rest[self._begin : end])
            self._begin, self._gap_from = -1, end
            self._num_elements += 1
            return element
        return None

    def _check_gap(self, at: int, wanted: re.Pattern[bytes]) -> None:
        """Between elements stands one comma and nothing else: no number may go unseen."""
        if wanted.fullmatch(self._rest, self._gap_from, at) is None:
            raise NotThatArray(
                f"{self._name.decode()} must hold objects only, with a comma between them"
            )

    def _forget(self) -> None:
        """Drop what was looked at and is not part of an element or gap under way."""
        keep_from = self._scanned
        if not self._open and self._root_end < 0 and self._rest[:keep_from].strip():
            raise NotThatArray("the body must be a JSON object, and nothing beside it")
        if self._root_end >= 0:
            if self._rest[self._root_end :].strip():
                raise NotThatArray("something stands behind the end of the JSON object")
            self._root_end = 0
        elif self._begin >= 0:
            keep_from = self._begin
        elif self._is_in_array:
            keep_from = self._gap_from
        del self._rest[:keep_from]
        self._scanned -= keep_from
        self._begin = 0 if self._begin >= 0 else -1
        self._gap_from = 0
