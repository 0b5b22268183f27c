"""One streamed answer of an OpenAI-compatible server: its stamps, its tokens, or why it failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from backend.cli.measuring.http_client import ConnectionBroken, HttpClient
from backend.cli.measuring.questions import Question
from backend.errors import SetupError
from gateway.stats.timeline import Stamps
from gateway.wire.errors import read_error
from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.readers import stream_reader
from gateway.wire.usage import Usage

ERROR_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Ask:
    """What every request of a run has in common."""

    model: str
    max_tokens: int
    is_eos_ignored: bool = False
    temperature: float = 0.0
    timeout_s: float = 300.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)  # members of the body, server by server

    def body(self, question: Question) -> bytes:
        members: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": question.text}],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        # OpenAI itself refuses members that it does not know.
        if self.is_eos_ignored:
            members["ignore_eos"] = True
        return msgspec.json.encode({**members, **self.extra})


@dataclass(frozen=True, slots=True)
class Answer:
    """`failure` is empty for a whole answer. Stamps count from when the request was due."""

    question: str
    stamps: Stamps
    text: str = ""
    usage: Usage | None = None
    finish: str = ""
    failure: str = ""

    @property
    def num_tokens(self) -> int:
        """As the server counts; where it does not, events with text."""
        return self.usage.output_total if self.usage is not None else self.stamps.num_frames


async def ask_once(
    client: HttpClient, ask: Ask, question: Question, *, due_at_s: float | None = None
) -> Answer:
    """Never raises for what a server does: that is an answer with a failure."""
    heard = _Heard()
    dispatched_at_s = time.monotonic()
    status = 0
    failure = ""
    path = f"{client.address.path}/chat/completions"
    headers = {"accept": "text/event-stream", **ask.headers}
    try:
        async with asyncio.timeout(ask.timeout_s):
            status = await client.request("POST", path, headers, ask.body(question), heard.on_body)
    except ConnectionBroken as error:
        failure = str(error)
    except TimeoutError:
        failure = f"no end within {ask.timeout_s:.0f} s"
    if not failure:
        failure = heard.failure_of(status)
    return Answer(
        question=question.name,
        stamps=heard.stamps(dispatched_at_s if due_at_s is None else due_at_s),
        text=heard.text(),
        usage=heard.usage,
        finish=heard.finish,
        failure=failure,
    )


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


class _Heard:
    """The body of one answer while it comes."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.finish = ""
        self._reader = stream_reader(Surface.CHAT)
        self._frames_s: list[float] = []
        self._first_visible_at_s: float | None = None
        self._payloads: list[bytes] = []
        self._error = ""
        self._is_done = False
        self._ended_at_s: float | None = None
        self._plain = bytearray()

    def on_body(self, data: bytes, at_s: float) -> None:
        self._ended_at_s = at_s
        if len(self._plain) < 4096:
            self._plain += data[:4096]
        for piece in self._reader.feed(data):
            self._take(piece, at_s)

    def _take(self, piece: Piece, at_s: float) -> None:
        if piece.usage is not None:
            self.usage = piece.usage
        self.finish = piece.finish or self.finish
        if piece.kind is PieceKind.GENERATED:
            self._frames_s.append(at_s)
            self._payloads.append(piece.payload)
            if piece.visible_chars and self._first_visible_at_s is None:
                self._first_visible_at_s = at_s
        elif piece.kind is PieceKind.ERROR:
            self._error = piece.error.message if piece.error is not None else "an error in band"
        elif piece.kind is PieceKind.DONE:
            self._is_done = True

    def failure_of(self, status: int) -> str:
        if status != 200:
            error = read_error(bytes(self._plain), status)
            return f"{status}: {error.message[:ERROR_CHARS_MAX]}"
        for piece in self._reader.close():
            self._take(piece, self._ended_at_s or 0.0)
        if self._error:
            return self._error[:ERROR_CHARS_MAX]
        return "" if self._is_done else "the stream ended without [DONE]"

    def stamps(self, began_at_s: float) -> Stamps:
        times = self._frames_s
        return Stamps(
            dispatched_at_s=began_at_s,
            first_generated_at_s=times[0] if times else None,
            first_visible_at_s=self._first_visible_at_s,
            last_generated_at_s=times[-1] if times else None,
            ended_at_s=self._ended_at_s,
            frame_stamps_s=tuple(times),
            num_frames=len(times),
        )

    def text(self) -> str:
        parts = []
        for payload in self._payloads:
            try:
                chunk = msgspec.json.decode(payload, type=_Chunk)
            except msgspec.DecodeError:  # content as a list of parts: counted, not shown
                continue
            for choice in chunk.choices[:1]:
                parts.append(choice.delta.reasoning_content or "")
                parts.append(choice.delta.content or "")
        return "".join(parts)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def find_model(client: HttpClient, headers: Mapping[str, str]) -> str:
    """The one model that the server lists. Raises SetupError when there are more, or none."""
    body = bytearray()
    url = client.address.url
    try:
        async with asyncio.timeout(30.0):
            path = f"{client.address.path}/models"
            status = await client.request(
                "GET", path, headers, b"", lambda data, _: body.extend(data)
            )
    except (ConnectionBroken, TimeoutError) as error:
        raise SetupError(f"{url} does not answer: {error or 'nothing within 30 s'}") from error
    if status != 200:
        message = read_error(bytes(body), status).message[:ERROR_CHARS_MAX]
        hint = "; give the key with --api-key-env" if status in (401, 403) else ""
        raise SetupError(f"{url}/models answered {status}: {message}{hint}")
    try:
        names = [each.id for each in msgspec.json.decode(body, type=_Models).data]
    except msgspec.DecodeError as error:
        raise SetupError(
            f"{url}/models is no list of models ({error}); name one: --model"
        ) from error
    if len(names) != 1:
        shown = ", ".join(names[:8]) or "none"
        raise SetupError(f"{url} serves {len(names)} models ({shown}); choose one: --model NAME")
    return names[0]
