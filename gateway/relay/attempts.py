"""Failover, timers and commit of one request as a sans-I/O machine: (event, now) → actions.

Driven by asyncio in production and by an event heap in the simulator. It knows no clock, no
socket and no money; it decides which attempt runs, what the client sees of it, and when to stop.

Life: dispatch → (buffer until the first generated token) → commit → forward → finish. Before the
commit another endpoint may take over unseen; after it an end that is not a finish is told in band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.errors import FAILURES, FailureClass
from gateway.relay.moves import (
    Abandon,
    Action,
    Answered,
    Blocked,
    Cancel,
    ClientGone,
    Commit,
    Deliver,
    Dispatch,
    Event,
    Failed,
    Finish,
    Forward,
    GiveUp,
    KeepAlive,
    OpenClient,
    Read,
    Sent,
    Skipped,
    Stop,
    Tick,
)
from gateway.wire.pieces import Piece, PieceKind

BUFFERED_BYTES_MAX = 64 * 1024

# A stream without one generated token is a true answer only if it ended for one of other reasons
# than "the model was done", or if the provider says that it generated something (hidden reasoning).
DONE_FINISHES = frozenset({"", "stop", "end_turn", "completed", "stop_sequence"})
# Of the request, not of the endpoint; but another model that the caller named may take it.
_OTHER_MODEL_MAY = frozenset({FailureClass.CONTENT_REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """Times in seconds; where they come from: reliability A.2 and E."""

    is_stream: bool
    num_choices: int = 1
    retries_max: int = 2  # attempts after the first, each on another endpoint; of one model
    total_s: float = 600.0  # the whole request
    idle_s: float = 30.0  # no byte from upstream, after the first token
    content_s: float = 300.0  # no content, though bytes (comments) may come
    trailer_s: float = 5.0  # what may follow the finish reason: usage, end mark
    early_open_s: float = 10.0  # the status line goes out even without a token
    keep_alive_s: float = 15.0  # silence towards the client; 0 = no keep-alives
    buffered_bytes_max: int = BUFFERED_BYTES_MAX  # before commit


class AttemptMachine:
    """Decides for one request. Never commits twice; forwards pieces of one attempt only."""

    def __init__(
        self,
        order: Sequence[str],
        limits: AttemptLimits,
        *,
        now: float,
        may_retry: Callable[[], bool],
        models: Sequence[str] = (),
    ) -> None:
        """`order`: endpoint ids, best first. `may_retry` spends one retry permit.

        `models`: whose each of them is, when the caller named fallback models: once the retries
        of one are spent, the next one's endpoints are tried.
        """
        assert not models or len(models) == len(order)

        self.attempt = 0  # number of the running attempt, from 1
        self.committed: int | None = None  # the attempt whose bytes the client gets
        self.is_over = False
        self.is_open = False  # the status line is out
        self.num_retries = 0
        whose: dict[str, str] = {}
        for place, endpoint_id in enumerate(order):
            whose.setdefault(endpoint_id, models[place] if models else "")
        self._order, self._models = tuple(whose), tuple(whose.values())
        self._model = ""  # whose endpoints are being tried
        self._num_failed = 0  # of them
        self._next_idx = 0
        self._limits = limits
        self._may_retry = may_retry
        self._is_running = False  # an attempt is on its way or being read
        self._buffer: list[Piece] = []
        self._buffered_bytes = 0
        self._finish: str | None = None
        self._num_finishes = 0
        self._output_tokens = 0
        self._idle_s = limits.idle_s
        self._report: Failed | None = None  # the failure the client will hear of
        self._retry_after_s: float | None = None
        self._total_at = now + limits.total_s
        self._open_at = now + limits.early_open_s if limits.is_stream else None
        self._first_token_at: float | None = None
        self._idle_at: float | None = None
        self._content_at: float | None = None
        self._trailer_at: float | None = None
        self._keep_alive_at: float | None = None

    def start(self, now: float) -> list[Action]:
        """The first dispatch."""
        assert self.attempt == 0, "a machine starts once"

        return self._dispatch_next(now)

    def next_deadline(self) -> float | None:
        """When a Tick is wanted at the latest; None when all is over."""
        if self.is_over:
            return None
        earliest = self._total_at
        for at in (
            self._first_token_at,
            self._idle_at,
            self._content_at,
            self._trailer_at,
            self._open_at,
            self._keep_alive_at,
        ):
            if at is not None and at < earliest:
                earliest = at
        return earliest

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about `event`. Events of attempts that no longer run change nothing."""
        if self.is_over:
            return []
        if isinstance(event, Read):
            return self._read(event, now) if self._concerns(event.attempt) else []
        if isinstance(event, Tick):
            return self._tick(now)
        if isinstance(event, ClientGone):
            return self._over([*self._cancel(FailureClass.CLIENT_GONE), Abandon(self.attempt)])
        if isinstance(event, Stop):
            give_up = GiveUp(self.attempt, None, self.is_open, None, is_shutdown=True)
            return self._over([*self._cancel(FailureClass.CLIENT_GONE), give_up])
        if not self._concerns(event.attempt):
            return []
        if isinstance(event, Skipped) and self.committed is not None:
            return []  # what the client reads already cannot be skipped any more
        if isinstance(event, Sent):
            self._first_token_at = now + event.first_token_timeout_s
            self._idle_s = event.idle_s if event.idle_s is not None else self._limits.idle_s
            return []
        if isinstance(event, Failed):
            self._is_running = False
            return self._failed(event, now)
        if isinstance(event, Answered):
            self._is_running = False
            if self.committed is not None:
                return self._finished([])
            self.committed = event.attempt
            return self._over([Commit(event.attempt), Deliver(event.attempt)])
        self._is_running = False
        if isinstance(event, Skipped):
            return self._dispatch_next(now)
        assert isinstance(event, Blocked)
        return self._over([GiveUp(event.attempt, None, self.is_open, None)])

    def _concerns(self, attempt: int) -> bool:
        return self._is_running and attempt == self.attempt

    # Dispatching

    def _dispatch_next(self, now: float) -> list[Action]:
        if self._next_idx >= len(self._order):
            return self._give_up()
        endpoint_id, model = self._order[self._next_idx], self._models[self._next_idx]
        if model != self._model:
            self._model, self._num_failed = model, 0
        self._next_idx += 1
        self.attempt += 1
        self._is_running = True
        self._buffer = []
        self._buffered_bytes = 0
        self._finish = None
        self._num_finishes = 0
        self._output_tokens = 0
        self._first_token_at = self._idle_at = self._content_at = self._trailer_at = None
        return [Dispatch(self.attempt, endpoint_id)]

    def _failed(self, event: Failed, now: float) -> list[Action]:
        self._num_failed += 1
        if event.retry_after_s is not None:
            known = self._retry_after_s
            after = event.retry_after_s
            self._retry_after_s = after if known is None else min(known, after)
        if self._report is None or not FAILURES[self._report.failure].passes_answer:
            self._report = event
        if self.committed is not None:
            if self._finish is not None:
                return self._finished([])  # whole, but for the end mark
            self._report = event
            return self._give_up()
        next_idx = self._place_after(event.failure)
        if next_idx is None or now >= self._total_at:
            return self._give_up()
        # A 429 costs nobody work, and its endpoint is left alone from now on: no retry storm.
        if event.failure is not FailureClass.RATE_LIMITED and not self._may_retry():
            return self._give_up()
        self._next_idx = next_idx
        self.num_retries += 1
        return self._dispatch_next(now)

    def _place_after(self, failure: FailureClass) -> int | None:
        """Where to go on: at this model's endpoints while it has retries, else at the next's."""
        falls_over = FAILURES[failure].falls_over
        if not falls_over and failure not in _OTHER_MODEL_MAY:
            return None
        idx, num = self._next_idx, len(self._order)
        if not falls_over or self._num_failed > self._limits.retries_max:
            while idx < num and self._models[idx] == self._model:
                idx += 1
        return idx if idx < num else None

    def _give_up(self) -> list[Action]:
        report = self._report
        if report is None:
            return self._over([GiveUp(self.attempt, None, self.is_open, self._retry_after_s)])
        return self._over(
            [GiveUp(report.attempt, report.failure, self.is_open, self._retry_after_s)]
        )

    def _cancel(self, failure: FailureClass) -> list[Action]:
        if not self._is_running:
            return []
        self._is_running = False
        return [Cancel(self.attempt, failure)]

    def _over(self, actions: list[Action]) -> list[Action]:
        self.is_over = True
        self._buffer = []
        return actions

    # Reading

    def _read(self, event: Read, now: float) -> list[Action]:
        pieces = event.pieces
        is_ended = False
        has_content = False
        for piece in pieces:
            kind = piece.kind
            if kind is PieceKind.GENERATED:
                has_content = True
                self._trailer_at = None
            elif kind is PieceKind.FINISH:
                has_content = True
                self._num_finishes += 1
                if self._finish is None:
                    self._finish = piece.finish
                if self._num_finishes >= self._limits.num_choices:
                    self._trailer_at = now + self._limits.trailer_s
            elif kind is PieceKind.DONE:
                is_ended = True
            if piece.usage is not None:
                self._output_tokens = piece.usage.output_total
        if self.committed is None:
            return self._read_uncommitted(pieces, now, is_ended)
        self._rewind_timers(now, has_content)
        if not pieces:
            return []
        self._keep_alive_from(now)
        actions: list[Action] = [Forward(self.attempt, pieces)]
        return self._finished(actions) if is_ended else actions

    def _read_uncommitted(
        self, pieces: Sequence[Piece], now: float, is_ended: bool
    ) -> list[Action]:
        self._buffer.extend(pieces)
        if any(piece.kind is PieceKind.GENERATED for piece in pieces):
            actions = self._commit(now)
            return self._finished(actions) if is_ended else actions
        if is_ended:
            return self._end_without_content(now)
        self._buffered_bytes += sum(len(piece.payload) for piece in pieces)
        if self._buffered_bytes > self._limits.buffered_bytes_max:
            return self._fail_running(FailureClass.SERVER_ERROR, now)
        return []

    def _commit(self, now: float) -> list[Action]:
        assert self.committed is None, "a request commits once"

        self.committed = self.attempt
        self._first_token_at = None
        self._rewind_timers(now, True)
        actions: list[Action] = [Commit(self.attempt)]
        actions.extend(self._open(now))
        actions.append(Forward(self.attempt, self._buffer))
        self._buffer = []
        return actions

    def _end_without_content(self, now: float) -> list[Action]:
        if self._finish is not None and (
            self._output_tokens > 0 or self._finish not in DONE_FINISHES
        ):
            return self._finished(self._commit(now))
        return self._fail_running(FailureClass.SERVER_ERROR, now)

    def _finished(self, actions: list[Action]) -> list[Action]:
        actions.append(Finish(self.attempt))
        self._is_running = False
        return self._over(actions)

    def _fail_running(self, failure: FailureClass, now: float) -> list[Action]:
        actions = self._cancel(failure)
        return actions + self._failed(Failed(self.attempt, failure), now)

    # Timers

    def _rewind_timers(self, now: float, has_content: bool) -> None:
        self._idle_at = now + self._idle_s
        if has_content or self._content_at is None:
            self._content_at = now + self._limits.content_s

    def _open(self, now: float) -> list[Action]:
        self._open_at = None
        self._keep_alive_from(now)
        if self.is_open:
            return []
        self.is_open = True
        return [OpenClient()]

    def _keep_alive_from(self, now: float) -> None:
        interval_s = self._limits.keep_alive_s
        self._keep_alive_at = now + interval_s if interval_s > 0 else None

    def _tick(self, now: float) -> list[Action]:
        if now >= self._total_at:
            if self.committed is None:
                return self._fail_running(FailureClass.TIMEOUT_FIRST_TOKEN, now)
            return self._fail_running(FailureClass.TIMEOUT_IDLE, now)
        if _is_due(self._trailer_at, now):
            # The finish reason came and then nothing: whole, but for the end mark.
            return self._end_without_content(now) if self.committed is None else self._finished([])
        if _is_due(self._first_token_at, now):
            return self._fail_running(FailureClass.TIMEOUT_FIRST_TOKEN, now)
        if _is_due(self._idle_at, now) or _is_due(self._content_at, now):
            return self._fail_running(FailureClass.TIMEOUT_IDLE, now)
        actions: list[Action] = []
        if _is_due(self._open_at, now):
            actions.extend(self._open(now))
        if _is_due(self._keep_alive_at, now):
            self._keep_alive_from(now)
            actions.append(KeepAlive())
        return actions


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
