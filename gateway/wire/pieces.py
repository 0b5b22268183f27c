"""What a stream is made of once read: one piece an event, the same for every dialect."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from gateway.wire.usage import Usage


class Surface(enum.StrEnum):
    """One wire API. The value is its name in logs, metrics and the request table."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    MODELS = "models"


class Dialect(enum.StrEnum):
    """Whose conventions a surface follows; the `api` of a provider."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


SURFACE_DIALECT: dict[Surface, Dialect] = {
    Surface.CHAT: Dialect.OPENAI,
    Surface.COMPLETIONS: Dialect.OPENAI,
    Surface.RESPONSES: Dialect.OPENAI,
    Surface.EMBEDDINGS: Dialect.OPENAI,
    Surface.MODELS: Dialect.OPENAI,
    Surface.MESSAGES: Dialect.ANTHROPIC,
    Surface.COUNT_TOKENS: Dialect.ANTHROPIC,
}


class PieceKind(enum.IntEnum):
    META = 1  # role frame, created, ping: nothing generated
    GENERATED = 2  # carries text, reasoning, tool arguments, refusal or audio
    FINISH = 3  # a finish or stop reason; may carry usage too
    USAGE = 4  # usage and nothing else
    DONE = 5  # the dialect's own end mark
    ERROR = 6  # an error in band, or a stream that broke (see `WireError.code`)


class WireError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as the upstream said it, whatever its dialect."""

    message: str
    type: str = ""
    code: str = ""
    status: int = 0  # 0 when it came in band


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream event. `payload` is the event's JSON as received, never re-encoded.

    (But for a frame whose id changed or whose tool call has no index: readers_choices.py.)
    Any kind may carry `finish` and `usage`: some upstreams put all three in one frame.
    """

    kind: PieceKind
    event: str = ""  # the `event:` name, "" where the dialect has none
    payload: bytes = b""
    visible_chars: int = 0  # text and refusal the user sees
    reasoning_chars: int = 0
    tool_chars: int = 0
    finish: str = ""  # finish_reason / stop_reason as received
    usage: Usage | None = None  # cumulative; the last valid one wins
    cost_nanos: int | None = None  # price the provider reported in its answer
    tier: str = ""  # the service tier it says it served at; "" = it says none
    error: WireError | None = None


class StreamReader(Protocol):
    """Sans-I/O: bytes of one upstream answer in, pieces out, at any split."""

    protocol_faults: int

    def feed(self, data: bytes) -> list[Piece]:
        """Pieces completed by `data`. After an ERROR or DONE piece nothing more comes."""
        ...

    def close(self) -> list[Piece]:
        """The upstream closed: the missing end mark, or an ERROR piece for a truncated stream."""
        ...


class StreamWriter(Protocol):
    """Pieces in, bytes of the client's dialect out."""

    failed: WireError | None  # it had to end the stream itself, and has told the client in band
    protocol_faults: int  # frames that it could not read, and left out

    def write(self, piece: Piece) -> bytes:
        """The frames this piece becomes; empty when the client must not see it."""
        ...

    def error(self, error: WireError, request_id: str) -> bytes:
        """The in-band error frame of the client's dialect; never followed by an end mark."""
        ...

    def finish(self, extra: dict[str, object] | None, usage: Usage | None = None) -> bytes:
        """Whatever is still owed: the usage frame if asked for, `extra` merged in, and the end.

        `usage` stands in where the upstream said none.
        """
        ...
