"""Failover, timers, commit and rescue of one request as a sans-I/O machine: (event, now) → actions.

Driven by asyncio in production and by an event heap in the simulator. It knows no clock, no
socket and no money; it decides which attempt runs, what the client sees of it, and when to stop.

Life: dispatch → (buffer until the first generated token) → commit → forward → finish. Before the
commit another endpoint may take over unseen; after it an end that is not a finish is told in band,
or, where the policy asks for it, one other attempt continues the answer from the text forwarded.

At most two attempts run at once: one beside another that is late (a hedge) or slow (a relief).
The slow one goes on unseen until its relief has generated something, and is let go if that fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import FAILURES, FailureClass
from gateway.relay.decode_floor import DecodeFloor
from gateway.relay.limits import BUFFERED_BYTES_MAX, DONE_FINISHES, AttemptLimits
from gateway.relay.moves import (
    Abandon,
    Action,
    Answered,
    Blocked,
    ClientGone,
    Commit,
    Deliver,
    Event,
    Failed,
    Forward,
    GiveUp,
    Heard,
    KeepAlive,
    Read,
    Sent,
    Skipped,
    Stop,
    Tick,
)
from gateway.relay.places import falls_over
from gateway.relay.running import Running
from gateway.relay.standing import Standing
from gateway.wire.pieces import Piece

__all__ = ["BUFFERED_BYTES_MAX", "DONE_FINISHES", "AttemptLimits", "AttemptMachine"]

# Ends of a committed stream that another endpoint can mend; others are of the request.
_CONTINUABLE = frozenset({FailureClass.STREAM_BROKEN, FailureClass.TIMEOUT_IDLE})


class AttemptMachine(Standing):
    """Decides for one request. Never commits twice; forwards pieces of one attempt only, but for
    one declared continuation of it."""

    def start(self, now: float) -> list[Action]:
        """The first dispatch."""
        assert self.attempt == 0, "a machine starts once"

        return self._dispatch_next()

    def next_deadline(self) -> float | None:
        """When a Tick is wanted at the latest; None when all is over."""
        if self.is_over:
            return None
        earliest = self._total_at
        for at in (self._open_at, self._keep_alive_at, *(one.deadline() for one in self._running)):
            if at is not None and at < earliest:
                earliest = at
        return earliest

    def pause_ended(self, now: float) -> None:
        """The client held up the reading: what did not come meanwhile is not the endpoint's."""
        for one in self._running:
            if one.floor is not None:
                one.floor.restart(now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about `event`. Events of attempts that no longer run change nothing."""
        if self.is_over:
            return []
        if isinstance(event, Tick):
            return self._tick(now)
        if isinstance(event, ClientGone):
            return self._over([*self._cancel_all(FailureClass.CLIENT_GONE), Abandon(self.attempt)])
        if isinstance(event, Stop):
            give_up = GiveUp(self.attempt, None, self.is_open, None, is_shutdown=True)
            return self._over([*self._cancel_all(FailureClass.CLIENT_GONE), give_up])
        one = self._find(event.attempt)
        if one is None:
            return []
        if isinstance(event, Read):
            return self._read(one, event.pieces, now)
        if isinstance(event, Sent):
            self._sent(one, event, now)
            return []
        return self._ended(one, event, now)

    def _ended(
        self, one: Running, event: Answered | Failed | Skipped | Blocked, now: float
    ) -> list[Action]:
        """The attempt has ended by itself, or never began."""
        if isinstance(event, Skipped) and one is self._speaking:
            return []  # what the client reads already cannot be skipped any more
        self._running.remove(one)
        if isinstance(event, Failed):
            return self._failed(one, event, now)
        if isinstance(event, Answered) and not one.continues:
            if self.committed is not None:
                return self._finished(one, [])
            self.committed = event.attempt
            cancels = self._cancel_others(one)
            return self._over([*cancels, Commit(event.attempt), Deliver(event.attempt)])
        if self._running:
            return self._let_go(now)
        if one.continues:
            return self._continue(now) or self._give_up()
        if isinstance(event, Skipped):
            return self._dispatch_next()
        return self._over([GiveUp(event.attempt, None, self.is_open, None)])

    def _sent(self, one: Running, event: Sent, now: float) -> None:
        one.first_token_at = now + event.first_token_timeout_s
        one.idle_s = event.idle_s if event.idle_s is not None else self._limits.idle_s
        one.characters_per_token = event.characters_per_token
        if event.hedge_after_s is not None and self._may_hedge is not None:
            one.hedge_at = now + event.hedge_after_s

    # Dispatching

    def _dispatch_next(self) -> list[Action]:
        return [self._dispatch()] if self._places.has_next else self._give_up()

    def _failed(self, one: Running, event: Failed, now: float) -> list[Action]:
        """One that is not among the running any more."""
        if event.retry_after_s is not None:
            known = self._retry_after_s
            after = event.retry_after_s
            self._retry_after_s = after if known is None else min(known, after)
        if not one.continues and (
            self._report is None or not FAILURES[self._report.failure].passes_answer
        ):
            self._report = event
        if self.committed is not None:
            return self._failed_committed(one, event, now)
        if self._running:
            other = self._running[0]
            if falls_over(event.failure) or other.number < one.number:
                return self._let_go(now)
            # It is of the request. A hedge is under way and would not have been sent after it.
            return [*self._cancel_others(one), *self._give_up()]
        if now < self._total_at and self._places.retry(event.failure):
            return self._dispatch_next()
        return self._give_up()

    def _failed_committed(self, one: Running, event: Failed, now: float) -> list[Action]:
        if one is self._speaking:
            if one.finish is not None:
                return self._finished(one, [])  # whole, but for the end mark
            self._report = event
            self._speaking = None
            if self._running:
                return []  # what was to relieve it goes on from what the client has
            if event.failure not in _CONTINUABLE or not self._may_continue(one):
                return self._give_up()
        elif self._running:
            return self._let_go(now)
        return self._continue(now) or self._give_up()

    # Rescue

    def _hedge(self, one: Running) -> list[Action]:
        one.hedge_at = None
        if self.committed is not None or self._has_hedged or len(self._running) > 1:
            return []
        if self._may_hedge is None or not self._places.has_peer or not self._may_hedge():
            return []
        self._has_hedged = True
        return [self._dispatch()]

    def _judge(self, one: Running, now: float) -> list[Action]:
        """Its decode floor is due."""
        assert one.floor is not None

        if not one.floor.is_slow(now):
            return self._commit(one, now) if self.committed is None else []
        one.floor = None
        if self.committed is None:
            if self._places.rescue():
                one.is_relieved = True
                return [self._dispatch()]
            return self._commit(one, now)
        if not self._may_continue(one):
            return []
        actions = self._continue(now)
        one.is_relieved = bool(actions)
        return actions

    def _may_continue(self, one: Running) -> bool:
        """Whether an answer can be gone on with: text, unfinished, and itself no continuation."""
        is_first = not one.continues and one.has_only_text
        return bool(self._continues_at) and is_first and one.has_shown and one.finish is None

    def _continue(self, now: float) -> list[Action]:
        """Ask the next endpoint that can to go on with the committed answer; [] if none may."""
        assert self.committed is not None

        if now >= self._total_at or not self._places.rescue(self._continues_at):
            return []
        return [self._dispatch(continues=self.committed)]

    def _let_go(self, now: float) -> list[Action]:
        """What ran beside the other is gone: forward again, or wait as if there had been none."""
        one = self._running[0]
        if not one.is_relieved:
            return []
        one.is_relieved = False
        if self.committed is None:
            return self._commit(one, now)
        pieces = one.let_go()
        return [Forward(one.number, pieces)] if pieces else []

    def _holds(self, one: Running) -> bool:
        """Whether what was generated stays here, so that another endpoint can still begin anew."""
        if one.buffered_bytes > self._limits.buffered_bytes_max:
            return False
        if one.is_relieved:
            return True
        is_judged = one.floor is None  # else it is shown when the floor is due and it was not slow
        return not (is_judged or one.has_shown or one.finish is not None) and self._places.has_peer

    # Reading

    def _read(self, one: Running, pieces: Sequence[Piece], now: float) -> list[Action]:
        before = one.tokens
        is_ended, has_content, has_generated = one.take(
            pieces, now, self._limits, is_watched=self._is_watched
        )
        if one.floor is not None:
            one.floor.add(one.tokens - before, now)
            if one.finish is not None:
                one.floor = None
        if one is self._speaking:
            one.rewind(now, self._limits, has_content=has_content)
            return self._read_committed(one, pieces, now, is_ended) if pieces else []
        one.keep(pieces)
        actions: list[Action] = []
        is_first = has_generated and not one.has_generated
        if is_first:
            actions = self._first_token(one, now)
        if one.has_generated:
            one.rewind(now, self._limits, has_content=has_content)
            if not is_ended and self._holds(one):
                if is_first:
                    actions.append(Heard(one.number))
                elif one.floor is not None and now >= one.floor.check_at:
                    return self._judge(one, now)
                return actions
            actions += self._commit(one, now)
            return self._finished(one, actions) if is_ended else actions
        if is_ended:
            return self._end_without_content(one, now)
        if one.buffered_bytes > self._limits.buffered_bytes_max:
            return self._fail_running(one, FailureClass.SERVER_ERROR, now)
        return []

    def _read_committed(
        self, one: Running, pieces: Sequence[Piece], now: float, is_ended: bool
    ) -> list[Action]:
        if one.is_relieved:
            one.keep(pieces)
            if is_ended:
                return self._finished(one, [])
            if one.buffered_bytes <= self._limits.buffered_bytes_max:
                return []
            return [*self._cancel_others(one), *self._let_go(now)]
        self._keep_alive_from(now)
        actions: list[Action] = [Forward(one.number, pieces)]
        return self._finished(one, actions) if is_ended else actions

    def _first_token(self, one: Running, now: float) -> list[Action]:
        """It has won against what ran beside it."""
        one.has_generated = True
        one.first_token_at = one.hedge_at = None
        limits = self._limits
        if limits.decode_floor_tokens_per_s is not None and not one.continues:
            one.floor = DecodeFloor(
                limits.decode_floor_tokens_per_s, limits.decode_floor_grace_s, now
            )
            one.floor.add(one.tokens, now)
            if one.finish is not None:
                one.floor = None
        return self._cancel_others(one)

    def _end_without_content(self, one: Running, now: float) -> list[Action]:
        is_answer = one.finish is not None and (
            one.output_tokens > 0 or one.finish not in DONE_FINISHES
        )
        if one.has_generated or is_answer:
            return self._finished(one, self._commit(one, now))
        return self._fail_running(one, FailureClass.SERVER_ERROR, now)

    def _fail_running(self, one: Running, failure: FailureClass, now: float) -> list[Action]:
        cancel = self._cancel(one, failure)
        return [cancel, *self._failed(one, Failed(one.number, failure), now)]

    # Timers

    def _tick(self, now: float) -> list[Action]:
        if now >= self._total_at:
            return self._out_of_time(now)
        for one in list(self._running):
            at = one.deadline()
            if at is not None and now >= at:
                actions = self._tick_attempt(one, now)
                if actions:
                    return actions
        actions = []
        if _is_due(self._open_at, now):
            actions.extend(self._open(now))
        if _is_due(self._keep_alive_at, now):
            self._keep_alive_from(now)
            actions.append(KeepAlive())
        return actions

    def _out_of_time(self, now: float) -> list[Action]:
        is_unseen = self.committed is None
        failure = FailureClass.TIMEOUT_FIRST_TOKEN if is_unseen else FailureClass.TIMEOUT_IDLE
        first = self._running[0]
        actions = self._cancel_all(failure)
        return [*actions, *self._failed(first, Failed(first.number, failure), now)]

    def _tick_attempt(self, one: Running, now: float) -> list[Action]:
        if _is_due(one.trailer_at, now):
            # The finish reason came and then nothing: whole, but for the end mark.
            if one is self._speaking:
                return self._finished(one, [])
            return self._end_without_content(one, now)
        if _is_due(one.first_token_at, now):
            return self._fail_running(one, FailureClass.TIMEOUT_FIRST_TOKEN, now)
        if _is_due(one.idle_at, now) or _is_due(one.content_at, now):
            return self._fail_running(one, FailureClass.TIMEOUT_IDLE, now)
        if _is_due(one.hedge_at, now):
            return self._hedge(one)
        if one.floor is not None and now >= one.floor.check_at:
            return self._judge(one, now)
        return []


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
