"""One answer under way: paced, faulted, tallied token by token, and billed however it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Protocol

from gateway.simulator import small_answers
from gateway.simulator.asks import Ask
from gateway.simulator.connection import Connection
from gateway.simulator.framing import Frame, Reply
from gateway.simulator.meter import Books, InvoiceLine, Tally, cost_nanos
from gateway.simulator.pacing import (
    event_gap_s,
    fault_factor,
    first_token_delay_s,
    load_factor,
    speed_factor,
    stream_factor,
)
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile
from gateway.wire.pieces import Surface

HANG_S_MAX = 900.0
_JSON = (b"content-type", b"application/json")
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class Writer(Protocol):
    """One surface's wire format; the modules *_frames are such writers."""

    def whole(self, reply: Reply) -> bytes: ...

    def stream(self, reply: Reply) -> Iterator[Frame]: ...


class Generation:
    """State of one request from acceptance to the invoice line."""

    def __init__(
        self,
        profile: ProviderProfile,
        books: Books,
        *,
        connection: Connection,
        now_s: Callable[[], float],
        epoch_s: float,
        load: Callable[[], int],
        rng: random.Random,
        request_id: str,
        client_request_id: str,
        arrived_s: float,
        faults: tuple[Fault, ...],
    ) -> None:
        self._profile = profile
        self._books = books
        self._connection = connection
        self._now_s = now_s
        self._epoch_s = epoch_s
        self._load = load
        self._rng = rng
        self._request_id = request_id
        self._client_request_id = client_request_id
        self._arrived_s = arrived_s
        self._faults = faults
        self._stream_factor = stream_factor(profile, rng)
        self._slow_decode = fault_factor(faults, FaultMode.SLOW_DECODE)
        self._is_prefilled = False
        self._ended = "client_gone"

    @property
    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-request-id", self._request_id.encode())]

    async def embed(self, ask: Ask, tally: Tally) -> None:
        first_s = self._first_token_at_s(tally)
        try:
            if await self._until(first_s):
                self._is_prefilled = True
                body = small_answers.embeddings(ask, self._profile.model)
                await self._connection.answer(200, [_JSON, *self._headers], body)
                self._ended = "complete"
        finally:
            self._close(ask.surface, tally)

    async def run(self, reply: Reply, writer: Writer) -> None:
        """Streams or answers whole, and writes the invoice line whatever happens."""
        prompt = reply.prompt
        tally = Tally(
            input=prompt.input,
            cached_read=prompt.cached_read,
            cache_write_5m=prompt.cache_write_5m,
            cache_write_1h=prompt.cache_write_1h,
        )
        try:
            if reply.ask.stream:
                await self._stream(writer.stream(reply), tally)
            else:
                await self._whole(reply, writer, tally)
        finally:
            self._close(reply.ask.surface, tally)

    async def _stream(self, frames: Iterator[Frame], tally: Tally) -> None:
        connection = self._connection
        await connection.start(200, _EVENT_STREAM + self._headers)
        due_s = self._first_token_at_s(tally)
        for frame in frames:
            num_tokens = frame.output + frame.reasoning
            if num_tokens:
                if self._is_prefilled:
                    due_s += self._gap_s(num_tokens, due_s)
                if not await self._until(due_s):
                    return
                if await self._broke_off(tally):
                    return
            if not await connection.send(frame.data):
                return
            if num_tokens:
                self._is_prefilled = True
                tally.output += frame.output
                tally.reasoning += frame.reasoning
        await connection.send(b"", more=False)
        self._ended = "complete"

    async def _whole(self, reply: Reply, writer: Writer, tally: Tally) -> None:
        """The answer at the time its last token would come; a client that leaves pays by time."""
        output, reasoning = reply.answer.output, reply.answer.reasoning
        first_s = self._first_token_at_s(tally)
        if not await self._until(first_s):
            return
        total = output + reasoning
        duration_s = self._gap_s(total - 1, first_s) if total > 1 else 0.0
        breaks_at = min((fault.after_tokens for fault in self._breaks()), default=total + 1)
        is_broken = breaks_at <= total
        if is_broken:
            duration_s *= breaks_at / total
        stayed = await self._until(first_s + duration_s)
        num_generated = min(total, breaks_at)
        if not stayed and duration_s:
            elapsed_s = self._now_s() - first_s
            num_generated = min(num_generated, 1 + int(elapsed_s * num_generated / duration_s))
        self._is_prefilled = num_generated > 0
        # Reasoning comes first in every answer.
        tally.reasoning = min(reasoning, num_generated)
        tally.output = num_generated - tally.reasoning
        if stayed and is_broken:
            await self._broke_off(tally)
        elif stayed:
            body = writer.whole(reply)
            await self._connection.answer(200, [_JSON, *self._headers], body)
            self._ended = "complete"

    def _breaks(self) -> list[Fault]:
        modes = (FaultMode.CUT_MID_STREAM, FaultMode.HANG_MID_STREAM)
        return [fault for fault in self._faults if fault.mode in modes]

    async def _broke_off(self, tally: Tally) -> bool:
        """Whether a fault ends the answer here; it has then been shown to the client."""
        for fault in self._breaks():
            if tally.completion_tokens < fault.after_tokens:
                continue
            self._books.count_fault(fault.mode)
            if fault.mode is FaultMode.CUT_MID_STREAM:
                self._ended = "cut"
            else:
                self._ended = "hang"
                await self._until(self._now_s() + HANG_S_MAX)
            await self._connection.cut()
            return True
        return False

    def _speed(self, at_s: float) -> float:
        return speed_factor(self._profile, at_s) * load_factor(self._profile, self._load())

    def _first_token_at_s(self, tally: Tally) -> float:
        uncached = tally.prompt_tokens - tally.cached_read
        speed = self._speed(self._arrived_s)
        speed *= fault_factor(self._faults, FaultMode.SLOW_FIRST_TOKEN)
        return self._arrived_s + first_token_delay_s(self._profile, uncached, self._rng, speed)

    def _gap_s(self, num_tokens: int, at_s: float) -> float:
        speed = self._speed(at_s) * self._stream_factor * self._slow_decode
        return event_gap_s(self._profile, num_tokens, self._rng, speed)

    async def _until(self, at_s: float) -> bool:
        return await self._connection.wait_until(self._epoch_s + at_s)

    def _close(self, surface: Surface, tally: Tally) -> None:
        """The invoice line, and the counters. Runs exactly once a request."""
        books = self._books
        now_s = self._now_s()
        books.count_status(200)
        if self._ended == "complete":
            books.completed += 1
        if self._ended in ("client_gone", "hang"):
            books.note_cancelled(self._request_id, at_s=now_s, tokens=tally.completion_tokens)
        if not self._is_prefilled and self._profile.bills_prompt_from == "first_token":
            return
        books.charge(
            InvoiceLine(
                id=self._request_id,
                client_request_id=self._client_request_id,
                surface=surface.value,
                model=self._profile.model,
                at_s=self._arrived_s,
                ended=self._ended,
                input=tally.input,
                cached_read=tally.cached_read,
                cache_write_5m=tally.cache_write_5m,
                cache_write_1h=tally.cache_write_1h,
                output=tally.output,
                reasoning=tally.reasoning,
                cost_nanos=cost_nanos(self._profile.price, tally),
            )
        )
