"""Server-sent events by the WHATWG rules, incremental at any split of the bytes."""

from __future__ import annotations

import msgspec

EVENT_BYTES_MAX = 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event. `data` is valid UTF-8, its lines joined with LF."""

    event: str  # "" where the stream names none
    data: bytes


class SseLimitError(ValueError):
    """An event grew past the limit. `events` are those completed before it in the same feed."""

    def __init__(self, event_bytes_max: int, events: list[SseEvent]) -> None:
        super().__init__(f"an event of the stream is larger than {event_bytes_max} bytes")
        self.events = events


class SseDecoder:
    """Bytes in, events out. An event without its closing blank line is never dispatched."""

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.num_comments = 0
        self.num_faults = 0  # events whose bytes were not UTF-8
        self._event_bytes_max = event_bytes_max
        self._pending = bytearray()  # of the unfinished event, line ends already LF
        self._scanned = 0  # no blank line ends before here in _pending
        self._skips_lf = False  # the last byte fed was CR; an LF now belongs to it
        self._head: bytes | None = b""  # what may still be a byte order mark; None once decided

    def feed(self, data: bytes) -> list[SseEvent]:
        """Events completed by `data`. Raises SseLimitError."""
        if not data:
            return []
        if self._head is not None:
            data = self._strip_mark(data)
        if self._skips_lf or b"\r" in data:
            data = self._to_lf(data)
        # The common case: whole events in one read, nothing left over from the one before.
        if not self._pending:
            if data.endswith(b"\n\n"):
                return self._dispatch(data[:-2].split(b"\n\n"), [])
            *blocks, rest = data.split(b"\n\n")
            events = self._dispatch(blocks, [])
            self._pending += rest
        else:
            events = self._continue(data)
        self._scanned = max(0, len(self._pending) - 1)
        if len(self._pending) > self._event_bytes_max + 1:  # its last byte may be a line end
            raise SseLimitError(self._event_bytes_max, events)
        return events

    def _continue(self, data: bytes) -> list[SseEvent]:
        pending = self._pending
        pending += data
        # Looks at new bytes only, so that an event fed byte by byte is not searched over and over.
        end = pending.find(b"\n\n", self._scanned)
        if end < 0:
            return []
        first = bytes(pending[:end])
        *blocks, rest = bytes(pending[end + 2 :]).split(b"\n\n")
        self._pending = bytearray(rest)
        return self._dispatch([first, *blocks], [])

    def _dispatch(self, blocks: list[bytes], events: list[SseEvent]) -> list[SseEvent]:
        for block in blocks:
            if len(block) > self._event_bytes_max:
                raise SseLimitError(self._event_bytes_max, events)
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(SseEvent("", self._utf8(block[6:])))
            elif block:
                event = self._parse(block)
                if event is not None:
                    events.append(event)
        return events

    def _parse(self, block: bytes) -> SseEvent | None:
        """One event from its lines; `id`, `retry` and unknown fields mean nothing to us."""
        name = ""
        lines: list[bytes] = []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            if field == b"data":
                lines.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ").decode("utf-8", "replace")
            elif not field and line:
                self.num_comments += 1
        if not lines:
            return None
        return SseEvent(name, self._utf8(lines[0] if len(lines) == 1 else b"\n".join(lines)))

    def _utf8(self, data: bytes) -> bytes:
        if data.isascii():
            return data
        text = data.decode("utf-8", "replace")
        if "�" not in text:
            return data
        repaired = text.encode()
        if repaired != data:  # else the upstream itself sent U+FFFD
            self.num_faults += 1
        return repaired

    def _strip_mark(self, data: bytes) -> bytes:
        head = (self._head or b"") + data
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

    def _to_lf(self, data: bytes) -> bytes:
        if self._skips_lf and data:
            data = data.removeprefix(b"\n")
            self._skips_lf = False
        if data.endswith(b"\r"):
            self._skips_lf = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def encode_event(data: bytes, event: str = "") -> bytes:
    """One event, dispatched by the decoder as the same name and data (line ends as LF)."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    if event:
        return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"
