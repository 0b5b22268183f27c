"""Writes a chat stream from the pieces of a messages stream."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gateway.wire.errors import sse_error
from gateway.wire.pieces import Piece, PieceKind, Surface, WireError
from gateway.wire.translate.endings import chat_usage, finish_reason
from gateway.wire.translate.shapes import decode_said, encode, encode_said, encode_text
from gateway.wire.translate.turns_to_chat import SIGNATURE_FORMAT
from gateway.wire.usage import Usage

DONE_FRAME = b"data: [DONE]\n\n"
THOUGHT_CHARS_MAX = 4 << 20  # longer thinking is streamed, but not repeated with its signature


class StopDetails(msgspec.Struct):
    explanation: str | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None


_EVENT = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class _Call:
    index: int
    input: bytes  # what the block began with, sent if no fragment follows
    has_arguments: bool = False


@dataclass(slots=True)
class _Thought:
    index: int
    texts: list[str] = field(default_factory=list)
    signature: str = ""
    num_chars: int = 0


class ChatFromMessages:
    """A StreamWriter. `model` and `request_id` stand in where the upstream names none."""

    def __init__(
        self, *, include_usage: bool, model: str = "", request_id: str = "", created: int = 0
    ) -> None:
        self.failed: WireError | None = None
        self.protocol_faults = 0
        self._include_usage = include_usage
        self._model, self._id, self._created = model, request_id, created
        self._usage: Usage | None = None
        self._blocks: dict[int, _Call | _Thought] = {}
        self._num_calls = 0
        self._num_details = 0
        self._before = b""  # a frame up to its delta; empty until the role frame is out
        self._after = b""
        self._has_finish = False
        self._is_over = False

    def write(self, piece: Piece) -> bytes:
        if self._is_over or piece.kind is PieceKind.ERROR:
            return b""
        if piece.usage is not None:
            self._usage = piece.usage
        if not piece.payload:
            return b""
        try:
            event = decode_said(_EVENT, piece.payload)
        except msgspec.DecodeError:
            self.protocol_faults += 1
            return b""
        if event.type == "content_block_delta" and event.delta is not None:
            return self._delta(event.index, event.delta)
        if event.type == "content_block_start" and event.content_block is not None:
            return self._start(event.index, event.content_block)
        if event.type == "content_block_stop":
            return self._stop(event.index)
        if event.type == "message_start" and event.message is not None:
            self._id = event.message.id or self._id
            self._model = event.message.model or self._model
            return self._role()
        if event.type == "message_delta" and event.delta is not None:
            return self._finish(event.delta)
        return b""

    def error(self, error: WireError, request_id: str) -> bytes:
        self._is_over = True
        return sse_error(Surface.CHAT, error, request_id)

    def finish(self, extra: dict[str, object] | None, usage: Usage | None = None) -> bytes:
        if self._is_over:
            return b""
        frames = b"" if self._has_finish else self._finish(_Delta(stop_reason="end_turn"))
        self._is_over = True
        said = self._usage or usage
        if self._include_usage and said is not None:  # unknown is not zero
            head = self._before[: self._before.index(b',"choices":')]
            frames += head + b',"choices":[],"usage":' + encode(chat_usage(said, extra)) + b"}\n\n"
        return frames + DONE_FRAME

    def _role(self) -> bytes:
        if self._before:
            return b""
        self._before = b"".join((
            b'data: {"id":', encode_text(self._id), b',"object":"chat.completion.chunk","created":',
            str(self._created).encode(), b',"model":', encode_text(self._model),
            b',"choices":[{"index":0,"delta":',
        ))  # fmt: skip
        usage = b',"usage":null' if self._include_usage else b""
        self._after = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        return self._before + b'{"role":"assistant","content":""}' + self._after

    def _frame(self, delta: bytes) -> bytes:
        if self._before:
            return self._before + delta + self._after
        return self._role() + self._before + delta + self._after

    def _say(self, name: bytes, said: str | None) -> bytes:
        return self._frame(b'{"' + name + b'":' + encode_text(said) + b"}") if said else b""

    def _start(self, index: int, block: _Block) -> bytes:
        if block.type == "tool_use":
            call = _Call(self._num_calls, bytes(block.input))
            self._blocks[index] = call
            self._num_calls += 1
            function = {"name": block.name or "", "arguments": ""}
            entry = {
                "index": call.index,
                "id": block.id or "",
                "type": "function",
                "function": function,
            }
            return self._frame(encode_said({"tool_calls": [entry]}))
        if block.type == "thinking":
            thought = _Thought(self._num_details, signature=block.signature or "")
            self._blocks[index] = thought
            self._num_details += 1
            return self._think(thought, block.thinking)
        if block.type == "redacted_thinking":
            detail = {
                "type": "reasoning.encrypted", "data": block.data or "",
                "format": SIGNATURE_FORMAT, "index": self._num_details,
            }  # fmt: skip
            self._num_details += 1
            return self._frame(encode_said({"reasoning_details": [detail]}))
        return self._say(b"content", block.text)

    def _delta(self, index: int, delta: _Delta) -> bytes:
        if delta.type == "text_delta":
            return self._say(b"content", delta.text)
        block = self._blocks.get(index)
        if delta.type == "input_json_delta" and isinstance(block, _Call):
            return self._arguments(block, delta.partial_json)
        if delta.type == "thinking_delta" and isinstance(block, _Thought):
            return self._think(block, delta.thinking)
        if delta.type == "signature_delta" and isinstance(block, _Thought):
            block.signature = delta.signature or ""
        return b""

    def _arguments(self, call: _Call, fragment: str | None) -> bytes:
        if not fragment:
            return b""
        call.has_arguments = True
        entry = {"index": call.index, "function": {"arguments": fragment}}
        return self._frame(encode_said({"tool_calls": [entry]}))

    def _think(self, thought: _Thought, said: str | None) -> bytes:
        if not said:
            return b""
        thought.num_chars += len(said)
        if thought.num_chars <= THOUGHT_CHARS_MAX:
            thought.texts.append(said)
        return self._say(b"reasoning_content", said)

    def _stop(self, index: int) -> bytes:
        """A thought is repeated whole with its signature: clients send that back unchanged."""
        block = self._blocks.pop(index, None)
        if isinstance(block, _Call) and not block.has_arguments:
            return self._arguments(block, block.input.decode())
        if isinstance(block, _Thought) and block.signature:
            if block.num_chars > THOUGHT_CHARS_MAX:
                return b""
            detail = {
                "type": "reasoning.text", "text": "".join(block.texts),
                "signature": block.signature, "format": SIGNATURE_FORMAT, "index": block.index,
            }  # fmt: skip
            return self._frame(encode_said({"reasoning_details": [detail]}))
        return b""

    def _finish(self, delta: _Delta) -> bytes:
        """The first reason wins."""
        if self._has_finish or not delta.stop_reason:
            return b""
        self._has_finish = True
        frames = [self._role()]
        if delta.stop_reason == "refusal" and delta.stop_details is not None:
            frames.append(self._say(b"refusal", delta.stop_details.explanation))
        end = b'{},"logprobs":null,"finish_reason":' + encode(finish_reason(delta.stop_reason))
        if delta.stop_sequence is not None:
            end += b',"stop_reason":' + encode_text(delta.stop_sequence)
        usage = b',"usage":null' if self._include_usage else b""
        frames.append(self._before + end + b"}]" + usage + b"}\n\n")
        return b"".join(frames)
