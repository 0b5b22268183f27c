"""One attempt under way, as the attempt machine keeps it: what came, and its timers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.relay.decode_floor import DecodeFloor
from gateway.relay.limits import AttemptLimits
from gateway.wire.pieces import Piece, PieceKind

_GENERATED, _FINISH, _DONE = PieceKind.GENERATED, PieceKind.FINISH, PieceKind.DONE


class Running:
    """Plain state; the machine decides. Times are monotonic seconds, None = not set."""

    __slots__ = (
        "buffer",
        "buffered_bytes",
        "characters_per_token",
        "content_at",
        "continues",
        "finish",
        "first_token_at",
        "floor",
        "has_generated",
        "has_only_text",
        "has_shown",
        "hedge_at",
        "idle_at",
        "idle_s",
        "is_relieved",
        "num_finishes",
        "number",
        "output_tokens",
        "tokens",
        "trailer_at",
    )  # fmt: skip

    def __init__(self, number: int, idle_s: float, *, continues: int = 0) -> None:
        self.number = number
        self.continues = continues  # the attempt whose answer it goes on with; 0 = none
        self.buffer: list[Piece] = []  # read and not forwarded
        self.buffered_bytes = 0
        self.finish: str | None = None
        self.num_finishes = 0
        self.output_tokens = 0
        self.idle_s = idle_s
        self.characters_per_token = 4.0
        self.tokens = 0.0  # generated, by our count; only where a rescue may need it
        self.has_generated = False
        self.has_shown = False  # more than reasoning was generated
        self.has_only_text = True  # and nothing else
        self.is_relieved = False  # too slow: another runs beside it, what comes is kept back
        self.floor: DecodeFloor | None = None
        self.first_token_at: float | None = None
        self.idle_at: float | None = None
        self.content_at: float | None = None
        self.trailer_at: float | None = None
        self.hedge_at: float | None = None

    def take(
        self, pieces: Sequence[Piece], now: float, limits: AttemptLimits, *, is_watched: bool
    ) -> tuple[bool, bool, bool]:
        """Note what came: (the stream's end, any content, anything generated)."""
        is_ended = has_content = has_generated = False
        for piece in pieces:
            kind = piece.kind
            if kind is _GENERATED:
                has_generated = True
                self.trailer_at = None
                if is_watched:
                    self._watch(piece)
            elif kind is _FINISH:
                has_content = True
                self.num_finishes += 1
                if self.finish is None:
                    self.finish = piece.finish
                if self.num_finishes >= limits.num_choices:
                    self.trailer_at = now + limits.trailer_s
            elif kind is _DONE:
                is_ended = True
            if piece.usage is not None:
                self.output_tokens = piece.usage.output_total
        return is_ended, has_content or has_generated, has_generated

    def _watch(self, piece: Piece) -> None:
        chars = piece.visible_chars + piece.reasoning_chars + piece.tool_chars
        # What has no characters (audio, sealed reasoning) is a token a frame.
        self.tokens += chars / self.characters_per_token if chars else 1.0
        is_reasoning = chars > 0 and chars == piece.reasoning_chars
        self.has_shown = self.has_shown or not is_reasoning
        if piece.reasoning_chars or piece.tool_chars or not chars or piece.finish:
            self.has_only_text = False

    def keep(self, pieces: Sequence[Piece]) -> None:
        self.buffer.extend(pieces)
        self.buffered_bytes += sum(len(piece.payload) for piece in pieces)

    def let_go(self) -> list[Piece]:
        """What was kept back, in order; nothing is from now on."""
        buffer, self.buffer, self.buffered_bytes = self.buffer, [], 0
        return buffer

    def rewind(self, now: float, limits: AttemptLimits, *, has_content: bool) -> None:
        """Bytes came."""
        self.idle_at = now + self.idle_s
        if has_content or self.content_at is None:
            self.content_at = now + limits.content_s

    def deadline(self) -> float | None:
        """The earliest of its timers."""
        earliest: float | None = self.floor.check_at if self.floor is not None else None
        for at in (
            self.first_token_at,
            self.idle_at,
            self.content_at,
            self.trailer_at,
            self.hedge_at,
        ):
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest
