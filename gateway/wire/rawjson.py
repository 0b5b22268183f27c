"""A JSON object's top level as raw members: scanned once, put together again byte for byte.

Gateway and provider must not read different values from one body. So a top-level duplicate is
refused, and what goes upstream is made of the very bytes that were checked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

DEPTH_MAX = 64
NODES_MAX = 100_000
MEMBERS_MAX = 1_000
CHUNK_BYTES = 64 * 1024

_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING_DECODER = msgspec.json.Decoder(str)
_SURROGATE_HINT = re.compile(rb"\\u[dD][89a-fA-F]")
_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_SEPARATOR = re.compile(rb"[ \t\r\n]*([,}])")
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class WireFormatError(ValueError):
    """The bytes are not the JSON that we take. `offset` is where, -1 when that is unknown."""

    def __init__(self, message: str, offset: int = -1) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


# Where one member lies in the body: start of its name, start and end of its value.
_Span = tuple[int, int, int]


class Members:
    """The top-level members of one JSON object, in order, each as the bytes received."""

    __slots__ = ("_gap", "_raws", "_spans", "body")

    def __init__(
        self, body: bytes, raws: dict[str, msgspec.Raw], spans: list[_Span] | None, gap: int = 0
    ) -> None:
        self.body = body
        self._raws = raws
        self._spans = spans  # None: `gap` spaces after each colon and comma, so lengths tell
        self._gap = gap

    def names(self) -> tuple[str, ...]:
        return tuple(self._raws)

    def __contains__(self, name: str) -> bool:
        return name in self._raws

    def raw(self, name: str) -> bytes | None:
        """The member's value as received, None when absent. A JSON null is `b"null"`."""
        value = self._raws.get(name)
        return None if value is None else bytes(value)

    def sent_names(self) -> frozenset[str]:
        """Names whose value is not null."""
        return frozenset(
            name for name, raw in self._raws.items() if len(raw) != 4 or bytes(raw) != b"null"
        )

    def rewrite(self, changes: Mapping[str, bytes | None]) -> bytes:
        """The object with these values put in, or taken out (None); new names go to the end.

        All other members stay byte for byte and in order. Without an effective change the
        original body itself comes back.
        """
        effective = {name: value for name, value in changes.items() if self._differs(name, value)}
        if not effective:
            return self.body
        body = self.body
        parts: list[bytes] = []
        for name, (key_start, value_start, value_end) in zip(
            self._raws, self._locate(), strict=True
        ):
            if name not in effective:
                parts.append(body[key_start:value_end])
            elif (value := effective.pop(name)) is not None:
                parts.append(body[key_start:value_start] + value)
        for name, value in effective.items():
            if value is not None:
                parts.append(msgspec.json.encode(name) + b":" + value)
        return b"{" + b",".join(parts) + b"}"

    def _differs(self, name: str, value: bytes | None) -> bool:
        raw = self._raws.get(name)
        if raw is None or value is None:
            return raw is not value
        return len(raw) != len(value) or bytes(raw) != value

    def _locate(self) -> list[_Span]:
        if self._spans is None:
            start = 1
            head_len = 3 + self._gap
            next_len = 1 + self._gap
            self._spans = []
            for name, raw in self._raws.items():
                value_start = (
                    start + head_len + (len(name) if name.isascii() else len(name.encode()))
                )
                value_end = value_start + len(raw)
                self._spans.append((start, value_start, value_end))
                start = value_end + next_len
        return self._spans


def parse_members(
    body: bytes, *, depth_max: int = DEPTH_MAX, nodes_max: int = NODES_MAX
) -> Members:
    """Check a JSON object and take it apart. Raises WireFormatError.

    Refused: what is not UTF-8 or not RFC 8259 JSON (NaN, Infinity, lone surrogates, trailing
    bytes, a byte order mark), not an object, nested deeper than `depth_max`, made of more than
    `nodes_max` values (an empty container counts twice), or with a top-level name used twice.
    """
    _check_utf8(body)
    # Before the parse, so that a bomb of values costs a count and not a million objects.
    structure = _check_nodes(body, depth_max, nodes_max)
    try:
        raws = _DECODER.decode(body)
    except msgspec.ValidationError:
        raise WireFormatError('the body must be a JSON object, such as {"model": …}', 0) from None
    except msgspec.DecodeError as error:
        raise _syntax_error(body, error) from None
    except RecursionError:
        raise _too_deep(depth_max) from None
    if structure is not None:
        _check_depth(structure, depth_max)
    if len(raws) > MEMBERS_MAX:
        raise WireFormatError(f"the body has more than {MEMBERS_MAX} members; send fewer")
    return _unique(body, raws)


def _check_utf8(body: bytes) -> None:
    # msgspec.Raw steps over strings without looking at their encoding, so this is ours to do.
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise WireFormatError(
            f"the body is not UTF-8 at byte {error.start}; send JSON encoded as UTF-8", error.start
        ) from None


def _syntax_error(body: bytes, error: msgspec.DecodeError) -> WireFormatError:
    reason = str(error).removeprefix("JSON is malformed: ")
    found = re.search(r"\(byte (\d+)\)", reason)
    offset = int(found[1]) if found else -1
    if "surrogate" in reason or "hex escape" in reason or _SURROGATE_HINT.search(body[-16:]):
        reason = "a \\ud800…\\udfff escape stands alone; send whole surrogate pairs"
    elif not body.strip():
        reason = "it is empty"
    elif found is None:
        reason = "it ends too early"
    return WireFormatError(f"the body is not valid JSON: {reason}", offset)


def _check_nodes(body: bytes, depth_max: int, nodes_max: int) -> bytes | None:
    """Bound the number of values; the body without its strings, or None if it is surely flat."""
    # Brackets and commas inside strings only raise these counts, so most bodies end here.
    num_open = body.count(b"[") + body.count(b"{")
    if num_open <= depth_max and num_open + body.count(b",") < nodes_max:
        return None
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_nodes, parts, inside = 1, [], 0
    # Chunk by chunk, or a bomb of short strings would become a list of as many objects.
    for start in range(0, len(plain), CHUNK_BYTES):
        pieces = plain[start : start + CHUNK_BYTES].split(b'"')
        part = b"".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2
        num_nodes += part.count(b"[") + part.count(b"{") + part.count(b",")
        if num_nodes > nodes_max:
            raise _too_many(nodes_max)
        parts.append(part)
    return b"".join(parts)


def _check_depth(structure: bytes, depth_max: int) -> None:
    """Take away the innermost pairs, level by level; `structure` comes from valid JSON."""
    # Both kinds as one, or a pass would take an array and the object around it together.
    brackets = structure.translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(depth_max):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return
    raise _too_deep(depth_max)


def _unique(body: bytes, raws: dict[str, msgspec.Raw]) -> Members:
    """Prove that no top-level name occurs twice."""
    num = len(raws)
    # `raws` keeps one occurrence of each name, and a decoded name is never longer than its
    # escaped form. So if these lengths fill the body, nothing else can be in it.
    names_len = len("".join(raws).encode())
    missing = len(body) - (1 + 4 * num + names_len + sum(map(len, raws.values())))
    if missing == 0 and num:
        return Members(body, raws, None)
    if missing == 2 * num - 1:
        # As Python's json writes it, one space after colon and comma: build that and compare.
        spaced = b", ".join([b'"%b": %b' % (k.encode(), bytes(v)) for k, v in raws.items()])
        if body == b"{" + spaced + b"}":
            return Members(body, raws, None, gap=1)
    return Members(body, raws, _walk(body, raws))


def _walk(body: bytes, raws: dict[str, msgspec.Raw]) -> list[_Span]:
    """The place of every member. Raises at a name out of turn or a value that is not the last."""
    spans: list[_Span] = []
    expected = iter(raws.items())
    position = body.index(b"{") + 1
    while (key := _KEY.match(body, position)) is not None:
        wanted, raw = next(expected, (None, msgspec.Raw(b"")))
        value_end = key.end() + len(raw)
        separator = _SEPARATOR.match(body, value_end)
        if (
            _decode_name(key[1]) != wanted
            or separator is None
            or body[key.end() : value_end] != bytes(raw)
        ):
            name = _decode_name(key[1])[:64]
            raise WireFormatError(
                f"the member {name!r} occurs twice in the body; send it once", key.start(1)
            )
        spans.append((key.start(1) - 1, key.end(), value_end))
        position = separator.end()
    return spans


def _decode_name(raw: bytes) -> str:
    return _STRING_DECODER.decode(b'"' + raw + b'"') if b"\\" in raw else raw.decode()


def _too_deep(depth_max: int) -> WireFormatError:
    return WireFormatError(f"the body is nested deeper than {depth_max} levels; flatten it")


def _too_many(nodes_max: int) -> WireFormatError:
    return WireFormatError(f"the body holds more than {nodes_max} values; split the request")
