"""All sequences of one HTTP request: submitted, merged, bounded in time, cancelled together."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from backend.engine.interface import EngineRequest, FinishReason, TokenEvent
from backend.errors import RequestFailed, RequestTimedOut
from backend.sampling.params import SamplingParams
from backend.serving.engine_thread import EngineThread
from backend.serving.mailbox import Accepted, Mailbox, Refused


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Of one HTTP request, from its submission on. `quiet_s`: between two signs of life."""

    first_token_s: float = 300.0
    total_s: float = 3600.0
    quiet_s: float = 10.0


def split_choices(request: EngineRequest, num_choices: int, first: int = 0) -> list[EngineRequest]:
    """`n` requests with one prompt: `ID-first` …, each with a seed of its own.

    The first keeps the seed that was given, so that n = 1 and n > 1 begin with the same answer.
    """
    return [
        replace(
            request,
            request_id=f"{request.request_id}-{first + idx}",
            params=replace(request.params, seed=choice_seed(request.params, idx)),
        )
        for idx in range(num_choices)
    ]


def choice_seed(params: SamplingParams, index: int) -> int | None:
    """None stays None: the engine then draws one for each."""
    if params.seed is None or index == 0:
        return params.seed
    text = f"{params.seed}/{index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1


class Job:
    """Sequences in groups of equal prompts. Give it back with `close`, however it ends."""

    def __init__(
        self,
        thread: EngineThread,
        groups: Sequence[Sequence[EngineRequest]],
        limits: TimeLimits,
        *,
        share_tokens_min: int = 0,
    ) -> None:
        self._thread = thread
        self._limits = limits
        self._mailbox = Mailbox()
        self._unfinished = {each.request_id for group in groups for each in group}
        self._unaccepted = set(self._unfinished)
        # A prompt's first sequence goes ahead and fills the prefix cache for the others.
        self._held: dict[str, Sequence[EngineRequest]] = {}
        self._first: list[EngineRequest] = []
        for group in groups:
            leader, *others = group
            self._first.append(leader)
            if others and len(leader.prompt_token_ids) > share_tokens_min:
                self._held[leader.request_id] = others
            else:
                self._first.extend(others)

    def abandon(self) -> None:
        """The client has left: `events` ends at once."""
        self._mailbox.close()
        self.close()

    def end(self, request_id: str) -> None:
        """This sequence is no longer wanted; the others go on."""
        self._unfinished.discard(request_id)
        self._thread.cancel(request_id)

    def close(self) -> None:
        """Cancel what is not finished; harmless when called again."""
        for request_id in self._unfinished:
            self._thread.cancel(request_id)
        self._unfinished.clear()

    async def events(self) -> AsyncIterator[list[TokenEvent]]:
        """Events of all sequences as they come; an empty list where nothing did for `quiet_s`.

        No event comes before every sequence was accepted, so an error raised first has no answer
        before it. Ends early, without an error, when abandoned. Raises what the engine refused
        with, RequestFailed for a sequence that failed, RequestTimedOut.
        """
        clock = asyncio.get_running_loop().time
        began_at_s = clock()
        for request in self._first:
            self._thread.submit(request, self._mailbox)
        ready: list[TokenEvent] = []
        has_begun = False
        while self._unfinished:
            limit_s = self._limits.total_s if has_begun else self._limits.first_token_s
            deadline_s = began_at_s + min(limit_s, self._limits.total_s)
            reports = await self._mailbox.take(min(deadline_s, clock() + self._limits.quiet_s))
            if self._mailbox.is_closed:
                return
            if clock() >= deadline_s:
                what = "end" if has_begun else "first token"
                raise RequestTimedOut(f"no {what} within {limit_s:g} s; it was cancelled")
            if not reports:
                yield []
            for report in reports:
                if isinstance(report, Refused):
                    self._unfinished.discard(report.request_id)
                    raise report.error
                if isinstance(report, Accepted):
                    self._unaccepted.discard(report.request_id)
                else:
                    ready.append(self._taken(report))
            if ready and not self._unaccepted:
                has_begun = True
                yield ready
                ready = []

    def _taken(self, event: TokenEvent) -> TokenEvent:
        for request in self._held.pop(event.request_id, ()):
            self._thread.submit(request, self._mailbox)
        if event.finish is not None:
            self._unfinished.discard(event.request_id)
            if event.finish is FinishReason.ERROR:
                raise RequestFailed(event.error or "the engine gave no reason")
            if event.finish is FinishReason.CANCELLED:
                raise RequestFailed("the engine cancelled it")
        return event
