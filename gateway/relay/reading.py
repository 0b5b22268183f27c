"""Reads one upstream answer into an attempt's outcome, and says by event what became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from gateway.core import AttemptOutcome
from gateway.errors import FailureClass
from gateway.providers.adapter import Adapter, Fault
from gateway.providers.transport import TransportError, UpstreamResponse
from gateway.relay.echoes import Echoes
from gateway.relay.job import RelayLimits
from gateway.relay.limits import DONE_FINISHES
from gateway.relay.mailbox import Mailbox
from gateway.relay.moves import Answered, Event, Failed, Read
from gateway.wire.answers import Answer, read_answer
from gateway.wire.pieces import Piece, PieceKind, Surface, WireError
from gateway.wire.readers import SseStreamReader, stream_reader

DRAIN_BYTES_MAX = 64 * 1024
PROGRESS_EVERY_S = 1.0
_ANSWERS_WITH_TEXT = frozenset(
    {Surface.CHAT, Surface.COMPLETIONS, Surface.RESPONSES, Surface.MESSAGES}
)


class Reading:
    """Counts, stamps and judges; the outcome is written while bytes come."""

    def __init__(
        self,
        outcome: AttemptOutcome,
        adapter: Adapter,
        mailbox: Mailbox[Event],
        *,
        attempt: int,
        limits: RelayLimits,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        note_progress: Callable[[], None],
    ) -> None:
        self.outcome = outcome
        self.surface = outcome.surface  # the upstream's, once the request is built
        self.echoes = Echoes()  # knows the key, once the request is built
        self.fault: Fault | None = None
        self.error_body = b""  # as the upstream sent it, but for our key
        self.body = b""  # of a good plain answer
        self.has_end = False  # the stream's own end mark came
        self._adapter = adapter
        self._mailbox = mailbox
        self._attempt = attempt
        self._limits = limits
        self._clock = clock
        self._wall_clock = wall_clock
        self._note_progress = note_progress
        self._noted_at_s = 0.0
        self._paused_at_s: float | None = None

    async def read(self, response: UpstreamResponse, *, is_stream: bool) -> Event | None:
        """The whole answer. Pieces go out by mail; the event returned is the last word, if any."""
        if not 200 <= response.status < 300:
            return await self._read_error(response)
        if is_stream:
            return await self._read_stream(response, stream_reader(self.surface))
        return await self._read_plain(response)

    def failed(self, fault: Fault) -> Failed:
        """Book the attempt as failed."""
        outcome = self.outcome
        self.fault = replace(fault, error=self.echoes.error(fault.error))
        outcome.failure = fault.failure.value
        outcome.was_refused = fault.was_refused
        outcome.retry_after_s = fault.retry_after_s
        if outcome.ended_at_s is None:
            outcome.ended_at_s = self._clock()
        return Failed(self._attempt, fault.failure, fault.retry_after_s)

    async def _read_error(self, response: UpstreamResponse) -> Event:
        limit = self._limits.error_bytes_max
        body = bytearray()
        try:
            async for part in response.stream():
                body += part[: limit - len(body)]
                if len(body) >= limit:
                    break
        except TransportError:
            pass  # the status says enough
        self.error_body = self.echoes.raw(bytes(body))
        return self.failed(
            self._adapter.classify(
                response.status,
                response.headers,
                self.error_body,
                now_unix_s=self._wall_clock(),
            )
        )

    async def _read_plain(self, response: UpstreamResponse) -> Event:
        limit = self._limits.answer_bytes_max
        parts: list[bytes] = []
        size = 0
        async for part in response.stream():
            if self.outcome.first_byte_at_s is None:
                self.outcome.first_byte_at_s = response.read_at_s
            size += len(part)
            if size > limit:
                return self._own_fault("answer_too_large", f"the answer exceeds {limit} bytes")
            parts.append(part)
        self.outcome.ended_at_s = self._clock()
        body = b"".join(parts)
        answer = read_answer(self.surface, body)
        if answer.error is not None:
            self.error_body = self.echoes.raw(body)
            self.outcome.usage = answer.usage
            return self._failed_in_band(answer.error)
        self._take_answer(answer)
        if self._is_empty(answer):
            return self._own_fault("empty_answer", "the answer has no content")
        self.body = body
        return Answered(self._attempt)

    def _take_answer(self, answer: Answer) -> None:
        outcome = self.outcome
        outcome.visible_chars = answer.visible_chars
        outcome.reasoning_chars = answer.reasoning_chars
        outcome.tool_chars = answer.tool_chars
        outcome.finish = answer.finish
        outcome.usage = answer.usage
        outcome.protocol_faults = answer.protocol_faults
        outcome.reported_cost_nanos = answer.cost_nanos
        outcome.tier_served = answer.tier

    def _is_empty(self, answer: Answer) -> bool:
        has_content = answer.visible_chars or answer.reasoning_chars or answer.tool_chars
        has_tokens = answer.usage is not None and answer.usage.output_total > 0
        return (
            self.surface in _ANSWERS_WITH_TEXT
            and not has_content
            and not has_tokens
            and answer.finish in DONE_FINISHES
        )

    async def _read_stream(
        self, response: UpstreamResponse, reader: SseStreamReader
    ) -> Event | None:
        outcome, mailbox = self.outcome, self._mailbox
        broken: TransportError | None = None
        num_silent = 0  # bytes before anything was said
        stream = response.stream()
        try:
            async for part in stream:
                at_s = response.read_at_s
                if outcome.first_byte_at_s is None:
                    outcome.first_byte_at_s = at_s
                pieces = reader.feed(part)
                ending = self._take_pieces(pieces, at_s) if pieces else None
                outcome.protocol_faults = reader.protocol_faults
                if ending is not None:
                    self._post_pieces(pieces, len(part))
                    if ending.kind is PieceKind.ERROR:
                        return self._failed_in_stream(ending, reader, None)
                    outcome.ended_at_s = at_s
                    await self._drain(stream)
                    return None
                mailbox.post(Read(self._attempt, pieces), len(part))
                if not pieces and outcome.num_frames == 0:
                    num_silent += len(part)
                    if num_silent > self._limits.preface_bytes_max:
                        return self._own_fault("no_stream", "the stream never says anything")
                if mailbox.is_full:
                    await self._wait_for_room()
                elif at_s - self._noted_at_s >= PROGRESS_EVERY_S:
                    self._noted_at_s = at_s
                    self._note_progress()
        except TransportError as error:
            broken = error
        # The connection ended without the stream's own end mark.
        pieces = reader.close()
        now = outcome.ended_at_s = self._clock()
        ending = self._take_pieces(pieces, now)
        outcome.protocol_faults = reader.protocol_faults
        self._post_pieces(pieces, 0)
        if ending is not None and ending.kind is PieceKind.ERROR:
            return self._failed_in_stream(ending, reader, broken)
        return None

    def _post_pieces(self, pieces: list[Piece], size: int) -> None:
        """Mail them without an error among them, which becomes an event of its own."""
        good = [piece for piece in pieces if piece.kind is not PieceKind.ERROR]
        self._mailbox.post(Read(self._attempt, good), size)

    def _take_pieces(self, pieces: list[Piece], at_s: float) -> Piece | None:
        """Count and stamp; returns the piece that ends the stream, if one does."""
        outcome = self.outcome
        ending: Piece | None = None
        for piece in pieces:
            kind = piece.kind
            if kind is PieceKind.GENERATED:
                outcome.num_frames += 1
                outcome.visible_chars += piece.visible_chars
                outcome.reasoning_chars += piece.reasoning_chars
                outcome.tool_chars += piece.tool_chars
                if outcome.first_generated_at_s is None:
                    outcome.first_generated_at_s = at_s
                if piece.visible_chars and outcome.first_visible_at_s is None:
                    outcome.first_visible_at_s = at_s
                outcome.last_generated_at_s = at_s
                outcome.usage_is_current = False
                if outcome.num_frames <= self._limits.frame_stamps_max:
                    outcome.frame_stamps_s.append(at_s)
            elif kind is PieceKind.DONE or kind is PieceKind.ERROR:
                ending = piece
                self.has_end = kind is PieceKind.DONE
            if piece.finish and not outcome.finish:
                outcome.finish = piece.finish
            if piece.usage is not None:
                outcome.usage, outcome.usage_is_current = piece.usage, True
            if piece.cost_nanos is not None:
                outcome.reported_cost_nanos = piece.cost_nanos
            if piece.tier:
                outcome.tier_served = piece.tier
        return ending

    async def _drain(self, stream: AsyncIterator[bytes]) -> None:
        """Read past the end mark, so that the connection can serve again."""
        left = DRAIN_BYTES_MAX
        with contextlib.suppress(TransportError, TimeoutError):
            async with asyncio.timeout(self._limits.drain_s):
                async for part in stream:
                    left -= len(part)
                    if left < 0:
                        break

    async def _wait_for_room(self) -> None:
        self._paused_at_s = self._clock()
        await self._mailbox.room()
        self.end_pause()

    def end_pause(self) -> None:
        """Count a pause that is over, or that the attempt's end cuts short."""
        if self._paused_at_s is not None:
            self.outcome.reading_paused_s += self._clock() - self._paused_at_s
            self._paused_at_s = None

    # Failing

    def _failed_in_band(self, error: WireError) -> Failed:
        """A 200 that came whole and holds no answer: it cost nothing, unless its usage says so."""
        fault = self._adapter.classify_in_band(error)
        usage = self.outcome.usage
        was_refused = usage is None or usage.is_zero
        return self.failed(Fault(fault.failure, fault.error, was_refused=was_refused))

    def _failed_in_stream(
        self, ending: Piece, reader: SseStreamReader, broken: TransportError | None
    ) -> Failed:
        error = ending.error
        assert error is not None

        if broken is not None:
            error = WireError(
                message=f"{error.message} ({broken.message})", type=error.type, code=error.code
            )
        if self.outcome.num_frames:
            return self.failed(Fault(FailureClass.STREAM_BROKEN, error, was_refused=False))
        self.error_body = self.echoes.raw(ending.payload)
        if broken is None and (reader.is_no_stream or error.code == "stream_truncated"):
            return self._failed_in_band(error)
        return self.failed(self._adapter.classify_in_band(error))

    def _own_fault(self, code: str, message: str) -> Failed:
        usage = self.outcome.usage
        is_void = code == "empty_answer" and (usage is None or usage.is_zero)
        said = WireError(message=message, type="server_error", code=code)
        return self.failed(Fault(FailureClass.SERVER_ERROR, said, was_refused=is_void))
