"""Writes a messages stream from the pieces of a chat stream.

The messages grammar has one content block open at a time, chat may interleave everything. So
what arrives is put in line as blocks: the first is live, later ones wait until it is complete.
A text is complete when something else begins, a tool call when its arguments are one JSON
object, everything when the finish reason comes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from gateway.wire.errors import sse_error
from gateway.wire.pieces import Piece, PieceKind, Surface, WireError
from gateway.wire.translate.endings import messages_usage, stop_reason
from gateway.wire.translate.shapes import encode_said, encode_text, is_json_object
from gateway.wire.translate.spoken import (
    ChatAnswer,
    ChatCall,
    ChatSaid,
    arguments_text,
    content_texts,
    decode_answer,
    first_choice,
    plain_text,
    signed_details,
    text,
    tool_id,
)
from gateway.wire.usage import Usage

WAITING_CHARS_MAX = 4 << 20  # of blocks in line and of open tool calls
BLOCKS_MAX = 4096  # in one answer
COMPLETE_CHECKS_MAX = 32  # a call; then it waits for the end of the stream
_META, _USAGE = PieceKind.META, PieceKind.USAGE  # an enum's members cost a lookup each time
_DONE, _ERROR = PieceKind.DONE, PieceKind.ERROR
TOO_MUCH = WireError(
    message="The upstream interleaves more output than the gateway can put in order.",
    type="api_error",
    code="stream_too_large",
)


@dataclass(slots=True)
class _Block:
    kind: str  # "text" | "thinking" | "redacted_thinking" | "tool_use"
    pending: list[str] = field(default_factory=list)  # not yet written
    ident: str = ""
    given_id: str = ""  # as the upstream wrote it; "" = it gave none
    name: str = ""
    signature: str = ""  # of a thinking block; the data of a redacted one
    arguments: list[str] = field(default_factory=list)  # all of a tool call's, until it closes
    checks_left: int = COMPLETE_CHECKS_MAX
    is_closed: bool = False

    def may_close(self) -> bool:
        return self.kind != "tool_use" or self.is_complete()

    def is_complete(self) -> bool:
        """Whether the tool call's arguments are whole: what may follow cannot belong to it."""
        if not self.arguments or self.checks_left == 0:
            return False
        if not self.arguments[-1].rstrip().endswith("}"):
            return False
        self.checks_left -= 1
        whole = "".join(self.arguments)
        self.arguments = [whole]
        return is_json_object(whole.strip().encode())


class MessagesFromChat:
    """A StreamWriter. `model` and `request_id` stand in where the upstream names none.

    `include_usage` changes nothing: that dialect always tells the usage. `failed` is set when
    the stream passed a limit.
    """

    def __init__(
        self, *, include_usage: bool, model: str = "", request_id: str = "", created: int = 0
    ) -> None:
        del include_usage, created  # the dialect has no room for either
        self.protocol_faults = 0
        self.failed: WireError | None = None
        self._model, self._request_id = model, request_id
        self._id = ""
        self._usage: Usage | None = None
        self._line: deque[_Block] = deque()
        self._is_live = False  # whether the first block in line has been started
        self._live_head = b""  # its delta frame up to the text
        self._num_started = 0
        self._num_blocks = 0
        self._calls: dict[int, _Block] = {}
        self._last_call: _Block | None = None
        self._num_calls = 0
        self._waiting_chars = 0
        self._finish_word = ""
        self._stop_sequence: object = None
        self._is_refusal = False
        self._has_started = False
        self._is_over = False

    def write(self, piece: Piece) -> bytes:
        kind = piece.kind
        if self._is_over or kind is _ERROR:
            return b""
        if piece.usage is not None:
            self._usage = piece.usage
        if not piece.payload or kind is _USAGE or kind is _DONE:
            return b""
        try:
            chunk = decode_answer(piece.payload)
        except msgspec.DecodeError:
            self.protocol_faults += 1
            return b""
        frames = self._begin(chunk, is_late=kind is not _META) if not self._has_started else b""
        choice = first_choice(chunk)
        if choice is None:
            return frames
        if self._is_live and len(self._line) == 1 and self._line[0].kind == "text":
            said = plain_text(choice)
            if said:  # the usual case by far: more of the text that is being written
                return self._live_head + encode_text(said) + b"}}\n\n"
        if choice.delta is not None:
            self._hear(choice.delta)
        ends = bool(choice.finish_reason)
        if ends and not self._finish_word:
            self._finish_word = text(choice.finish_reason)
            self._stop_sequence = choice.stop_reason
        if self._waiting_chars > WAITING_CHARS_MAX or self._num_blocks > BLOCKS_MAX:
            self.failed = TOO_MUCH
            return frames + self.error(TOO_MUCH, self._request_id)
        return frames + self._advance(is_last=ends)

    def error(self, error: WireError, request_id: str) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        return sse_error(Surface.MESSAGES, error, request_id)

    def finish(self, extra: dict[str, object] | None, usage: Usage | None = None) -> bytes:
        if self._is_over:
            return b""
        frames = b"" if self._has_started else self._begin(ChatAnswer(), is_late=True)
        frames += self._advance(is_last=True)
        self._is_over = True
        reason = stop_reason(
            self._finish_word,
            has_tools=self._num_calls > 0,
            is_refusal=self._is_refusal,
            stop_sequence=self._stop_sequence,
        )
        met = self._stop_sequence if reason == "stop_sequence" else None
        delta: dict[str, object] = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": met},
            "usage": messages_usage(self._usage or usage or Usage(), extra),
        }
        return (
            frames
            + _frame(b"message_delta", delta)
            + _frame(b"message_stop", {"type": "message_stop"})
        )

    def _begin(self, chunk: ChatAnswer, *, is_late: bool) -> bytes:
        """message_start, once an id is known or cannot be waited for (Azure's first has none)."""
        self._id = text(chunk.id)
        if not self._id and not is_late:
            return b""
        self._has_started = True
        self._id = self._id or self._request_id
        message: dict[str, object] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": text(chunk.model) or self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": messages_usage(self._usage or Usage()),
        }
        return _frame(b"message_start", {"type": "message_start", "message": message})

    def _hear(self, said: ChatSaid) -> None:
        thought, visible = content_texts(said)
        details = signed_details(said)
        thought = text(said.reasoning_content) or text(said.reasoning) or thought
        if not thought:
            thought = "".join(text(d.get("text")) for d in details)
        if thought:
            self._add("thinking", thought)
        for detail in details:
            self._sign(detail)
        if visible:
            self._add("text", visible)
        if refusal := text(said.refusal):
            self._is_refusal = True
            self._add("text", refusal)
        for call in said.tool_calls or ():
            self._call(call)

    def _new(self, block: _Block) -> _Block:
        self._line.append(block)
        self._num_blocks += 1
        return block

    def _add(self, kind: str, said: str) -> None:
        last = self._line[-1] if self._line else None
        if last is None or last.kind != kind:
            last = self._new(_Block(kind))
        last.pending.append(said)
        self._waiting_chars += len(said)

    def _sign(self, detail: dict[str, object]) -> None:
        """OpenRouter's details carry what a signing provider wants to see again."""
        if detail.get("type") == "reasoning.encrypted" and (data := text(detail.get("data"))):
            self._new(_Block("redacted_thinking", signature=data))
        elif signature := text(detail.get("signature")):
            last = self._line[-1] if self._line else None
            if last is None or last.kind != "thinking" or last.signature:
                last = self._new(_Block("thinking"))
            last.signature = signature

    def _call(self, call: ChatCall) -> None:
        name = text(call.function.name) if call.function is not None else ""
        block = self._call_block(call, name)
        block.name = block.name or name
        fragment = arguments_text(call.function)
        if not fragment:
            return
        if block.is_closed:  # its arguments were whole: more would spoil them
            self.protocol_faults += bool(fragment.strip())
            return
        block.pending.append(fragment)
        block.arguments.append(fragment)
        self._waiting_chars += len(fragment)

    def _call_block(self, call: ChatCall, name: str) -> _Block:
        """Which call a fragment belongs to.

        By index; where that is missing, by id, else the last. One index for several complete
        calls (seen with Gemini) begins a new one; a mere change of id does not.
        """
        given_id = text(call.id)
        if isinstance(call.index, int):
            known = self._calls.get(call.index)
            is_next = (
                known is not None
                and bool(name)
                and given_id not in ("", known.given_id)
                and (known.is_closed or known.is_complete())
            )
        else:
            known = self._last_call
            is_next = known is not None and (
                given_id not in ("", known.given_id)
                or (not given_id and bool(name) and (known.is_closed or known.is_complete()))
            )
        if known is None or is_next:
            ident = tool_id(given_id, self._id, self._num_calls)
            known = self._new(_Block("tool_use", ident=ident, given_id=given_id, name=name))
            self._num_calls += 1
        if isinstance(call.index, int):
            self._calls[call.index] = known
        self._last_call = known
        return known

    def _advance(self, *, is_last: bool) -> bytes:
        """Writes what the first block in line has, and closes it if it is complete."""
        frames: list[bytes] = []
        while self._line:
            block = self._line[0]
            if not self._is_live:
                if block.kind == "tool_use" and not block.name and not is_last:
                    break  # a start must name the tool
                frames.append(self._start_frame(block))
            self._delta_frames(block, frames)
            if not is_last and (len(self._line) == 1 or not block.may_close()):
                break
            self._close(block, frames)
        return b"".join(frames)

    def _start_frame(self, block: _Block) -> bytes:
        content: dict[str, object] = {"type": block.kind}
        if block.kind == "text":
            content["text"] = ""
        elif block.kind == "thinking":
            content.update(thinking="", signature="")
        elif block.kind == "tool_use":
            content.update(id=block.ident, name=block.name, input={})
        else:
            content["data"] = block.signature
        index = self._num_started
        self._num_started += 1
        self._is_live = True
        self._live_head = _delta_head(index, block.kind)
        event = {"type": "content_block_start", "index": index, "content_block": content}
        return _frame(b"content_block_start", event)

    def _delta_frames(self, block: _Block, frames: list[bytes]) -> None:
        if not block.pending:
            return
        said = "".join(block.pending)
        block.pending.clear()
        if block.kind != "tool_use":
            self._waiting_chars -= len(said)
        frames.append(self._live_head + encode_text(said) + b"}}\n\n")

    def _close(self, block: _Block, frames: list[bytes]) -> None:
        index = self._num_started - 1
        if block.kind == "thinking" and block.signature:
            head = _delta_head(index, "signature")
            frames.append(head + encode_text(block.signature) + b"}}\n\n")
        event = {"type": "content_block_stop", "index": index}
        frames.append(_frame(b"content_block_stop", event))
        self._line.popleft()
        self._is_live = False
        block.is_closed = True
        self._waiting_chars -= sum(map(len, block.arguments))
        block.arguments.clear()


_DELTA_KINDS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "signature": ("signature_delta", "signature"),
    "tool_use": ("input_json_delta", "partial_json"),
    "redacted_thinking": ("", ""),  # has none
}


def _delta_head(index: int, kind: str) -> bytes:
    """A delta frame up to what it says."""
    name, member = _DELTA_KINDS[kind]
    return (
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":'
        f'{index},"delta":{{"type":"{name}","{member}":'
    ).encode()


def _frame(name: bytes, event: dict[str, object]) -> bytes:
    return b"event: " + name + b"\ndata: " + encode_said(event) + b"\n\n"
