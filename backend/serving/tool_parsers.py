"""Finds tool calls in what a model writes, as it writes it; `tool_calls` describes the formats.

A call goes out when it is complete and names a tool that was offered, its arguments in one piece:
only then is it known to be one. All else is text, character for character, but for blanks before
and between calls. However the text comes in pieces, the result is the same, and each character is
looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from backend.serving.tool_calls import CallReader, ToolCall, ToolFormat, id_maker

Piece = str | ToolCall

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class ToolCallParser(Protocol):
    """One answer. Pieces come in order; adjoining texts may come in any division."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]: ...


def make_parser(
    tool_format: ToolFormat, names: Collection[str], make_id: Callable[[], str] | None = None
) -> ToolCallParser:
    """`names`: of the tools that were offered. Ids are random unless `make_id` makes them."""
    reader = CallReader(frozenset(names), make_id or id_maker(tool_format))
    match tool_format:
        case ToolFormat.HERMES:
            return HermesParser(reader)
        case ToolFormat.LLAMA3:
            return Llama3Parser(reader)
        case ToolFormat.MISTRAL:
            return MistralParser(reader)


class JsonScanner:
    """Finds where an object or array ends; what is in between need not be JSON."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def end(self, text: str) -> int:
        """How many characters of `text` belong to it; -1: all of them, and more is to come."""
        at = 0
        if self._is_escaped and text:
            self._is_escaped, at = False, 1
        while found := (_INSIDE if self._is_in_string else _OUTSIDE).search(text, at):
            character, at = found[0], found.end()
            if character == "\\":
                self._is_escaped = at == len(text)
                at += 1
            elif character == '"':
                self._is_in_string = not self._is_in_string
            else:
                self._depth += 1 if character in "{[" else -1
                if self._depth <= 0:
                    return at
        return -1


class MarkerFinder:
    """Finds one marker in a text that comes in pieces."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What is settled as text before the marker, and what follows it; None: not found yet."""
        text, self._held = self._held + text, ""
        before, marker, after = text.partition(self._marker)
        if marker:
            return before, after
        for size in range(min(len(self._marker) - 1, len(text)), 0, -1):
            if self._marker.startswith(text[-size:]):
                self._held = text[-size:]
                return text[:-size], None
        return text, None

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class _Output:
    """Collects pieces; blanks wait until it is known whether a call follows them."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._blanks: list[str] = []
        self._is_fresh = True  # nothing but blanks since the start or the last call
        self._has_calls = False

    def text(self, text: str) -> None:
        if self._is_fresh and not text.strip():
            self._blanks.append(text)
            return
        self._is_fresh = False
        self._put("".join([*self._blanks, text]))
        self._blanks = []

    def calls(self, calls: Iterable[ToolCall]) -> None:
        self._pieces.extend(calls)
        self._blanks = []
        self._is_fresh = self._has_calls = True

    def end(self) -> None:
        """Blanks behind the last call are dropped, an answer of blanks alone is not."""
        if not self._has_calls:
            self._put("".join(self._blanks))
        self._blanks = []

    def take(self) -> list[Piece]:
        taken, self._pieces = self._pieces, []
        return taken

    def _put(self, text: str) -> None:
        if text and self._pieces and isinstance(self._pieces[-1], str):
            self._pieces[-1] += text
        elif text:
            self._pieces.append(text)


class HermesParser:
    """A tag opens a call if an object follows it; the first closing tag ends it."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._out = _Output()
        self._open = MarkerFinder(self.OPEN)
        self._close: MarkerFinder | None = None
        self._body: list[str] = []
        self._is_object = False  # the body is known to begin with {

    def feed(self, text: str) -> list[Piece]:
        rest: str | None = text
        while rest is not None:
            rest = self._read_text(rest) if self._close is None else self._read_body(rest)
        return self._out.take()

    def finish(self) -> list[Piece]:
        if self._close is None:
            self._out.text(self._open.finish())
        else:
            body = "".join([*self._body, self._close.finish()])
            # Some models end their answer instead of closing the tag.
            calls = self._reader.one(body)
            if calls:
                self._out.calls(calls)
            else:
                self._out.text(self.OPEN + body)
        self._out.end()
        return self._out.take()

    def _read_text(self, text: str) -> str | None:
        before, rest = self._open.feed(text)
        self._out.text(before)
        if rest is not None:
            self._close, self._body, self._is_object = MarkerFinder(self.CLOSE), [], False
        return rest

    def _read_body(self, text: str) -> str | None:
        if not self._is_object:
            text = "".join([*self._body, text])
            stripped = text.lstrip()
            if not stripped:
                self._body = [text]
                return None
            if not stripped.startswith("{"):
                self._close = None
                self._out.text(self.OPEN)
                return text
            self._body, self._is_object = [], True
        assert self._close is not None
        before, rest = self._close.feed(text)
        self._body.append(before)
        if rest is None:
            return None
        body = "".join(self._body)
        calls = self._reader.one(body)
        if calls:
            self._out.calls(calls)
        else:
            self._out.text(self.OPEN + body + self.CLOSE)
        self._close = None
        return rest


class Llama3Parser:
    """The answer is calls from its start on, or it is text."""

    TAG = "<|python_tag|>"

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._out = _Output()
        self._raw: list[str] = []  # since the last call; text if no other call follows
        self._scanner: JsonScanner | None = None
        self._object: list[str] = []
        self._may_have_tag = True
        self._is_text = False

    def feed(self, text: str) -> list[Piece]:
        rest: str | None = text
        while rest is not None:
            if self._is_text:
                self._out.text(rest)
                rest = None
            else:
                rest = self._between(rest) if self._scanner is None else self._in_object(rest)
        return self._out.take()

    def finish(self) -> list[Piece]:
        raw = "".join([*self._raw, *self._object])
        self._out.text("" if not raw.strip("; \t\r\n") and not self._may_have_tag else raw)
        self._out.end()
        return self._out.take()

    def _between(self, text: str) -> str | None:
        """Before the first object, or behind one."""
        text = "".join([*self._raw, text])
        self._raw = []
        blanks = text.lstrip() if self._may_have_tag else text.lstrip("; \t\r\n")
        if self._may_have_tag and self.TAG.startswith(blanks[: len(self.TAG)]):
            if len(blanks) >= len(self.TAG):
                after = blanks[len(self.TAG) :].lstrip()
                if after and not after.startswith("{"):
                    return self._give_up(text)
                if after:
                    return self._begin(text, after)
            self._raw = [text]
            return None
        if not blanks:
            self._raw = [text]
            return None
        if not blanks.startswith("{"):
            return self._give_up(text)
        return self._begin(text, blanks)

    def _begin(self, text: str, from_object: str) -> str:
        self._raw = [text[: len(text) - len(from_object)]]
        self._scanner, self._object = JsonScanner(), []
        return from_object

    def _in_object(self, text: str) -> str | None:
        assert self._scanner is not None
        end = self._scanner.end(text)
        if end < 0:
            self._object.append(text)
            return None
        self._object.append(text[:end])
        calls = self._reader.one("".join(self._object))
        if not calls:
            return self._give_up("".join([*self._raw, *self._object, text[end:]]))
        self._out.calls(calls)
        self._raw, self._object, self._scanner = [], [], None
        self._may_have_tag = False
        return text[end:]

    def _give_up(self, text: str) -> str:
        self._is_text, self._raw, self._object = True, [], []
        return text


class MistralParser:
    """A marker opens an array of calls, or the name of one call."""

    MARKER = "[TOOL_CALLS]"
    HEAD_LEN_MAX = 256
    HEAD = re.compile(r"\s*([\w.-]{1,64})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s*", re.ASCII)

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._out = _Output()
        self._marker = MarkerFinder(self.MARKER)
        self._is_open = False  # the marker was seen
        self._head = ""  # what stands between it and the JSON
        self._scanner: JsonScanner | None = None
        self._json: list[str] = []

    def feed(self, text: str) -> list[Piece]:
        rest: str | None = text
        while rest is not None:
            if self._scanner is not None:
                rest = self._read_json(self._scanner, rest)
            else:
                rest = self._read_head(rest) if self._is_open else self._read_text(rest)
        return self._out.take()

    def finish(self) -> list[Piece]:
        if self._is_open:
            self._out.text("".join([self.MARKER, self._head, *self._json]))
        else:
            self._out.text(self._marker.finish())
        self._out.end()
        return self._out.take()

    def _read_text(self, text: str) -> str | None:
        before, rest = self._marker.feed(text)
        self._out.text(before)
        if rest is not None:
            self._is_open, self._head, self._json = True, "", []
        return rest

    def _read_head(self, text: str) -> str | None:
        text = self._head + text
        stripped = text.lstrip()
        is_array = stripped.startswith("[")
        at = len(text) - len(stripped) if is_array else text.find("{")
        if at < 0 and len(text) <= self.HEAD_LEN_MAX:
            self._head = text
            return None
        is_head = is_array or self.HEAD.fullmatch(text, 0, max(at, 0))
        if not 0 <= at <= self.HEAD_LEN_MAX or not is_head:
            self._is_open = False
            self._out.text(self.MARKER)
            return text
        self._head = text[:at]
        self._scanner = JsonScanner()
        return text[at:]

    def _read_json(self, scanner: JsonScanner, text: str) -> str | None:
        end = scanner.end(text)
        self._json.append(text if end < 0 else text[:end])
        if end < 0:
            return None
        found = "".join(self._json)
        name = self.HEAD.fullmatch(self._head)
        calls = self._reader.named(name[1], found) if name else self._reader.several(found)
        if calls:
            self._out.calls(calls)
        else:
            self._out.text(self.MARKER + self._head + found)
        self._is_open, self._scanner = False, None
        return text[end:]
