"""What an attempt machine stands on: the attempts under way, the client's stream, basic moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.errors import FailureClass
from gateway.relay.limits import AttemptLimits
from gateway.relay.moves import (
    Action,
    Cancel,
    Commit,
    Continue,
    Dispatch,
    Failed,
    Finish,
    Forward,
    GiveUp,
    OpenClient,
)
from gateway.relay.places import Places
from gateway.relay.running import Running
from gateway.wire.pieces import PieceKind


class Standing:
    """State of one request and the moves that always go together; when is the machine's matter."""

    def __init__(
        self,
        order: Sequence[str],
        limits: AttemptLimits,
        *,
        now: float,
        may_retry: Callable[[], bool],
        models: Sequence[str] = (),
        may_hedge: Callable[[], bool] | None = None,
        continues_at: Collection[str] = (),
    ) -> None:
        """`order`: endpoint ids, best first. `may_retry` spends one retry permit.

        `models`: whose each of them is, when the caller named fallback models: once the retries
        of one are spent, the next one's endpoints are tried. `may_hedge` spends one permit for a
        second attempt beside a late first one; None = never. `continues_at`: the endpoints that
        can go on with an answer of this request; none = a broken answer stays broken.
        """
        self.attempt = 0  # number of the newest attempt, from 1
        self.committed: int | None = None  # the attempt whose bytes the client gets
        self.is_over = False
        self.is_open = False  # the status line is out
        self._places = Places(order, models, limits.retries_max, may_retry)
        self._limits = limits
        self._may_hedge = may_hedge
        self._has_hedged = False
        self._continues_at = frozenset(continues_at)
        self._is_watched = limits.decode_floor_tokens_per_s is not None or bool(continues_at)
        self._running: list[Running] = []  # on their way or being read; by number
        self._speaking: Running | None = None  # whose pieces are forwarded
        self._report: Failed | None = None  # the failure the client will hear of
        self._retry_after_s: float | None = None
        self._total_at = now + limits.total_s
        self._open_at = now + limits.early_open_s if limits.is_stream else None
        self._keep_alive_at: float | None = None

    @property
    def num_retries(self) -> int:
        return self._places.num_retries

    def _find(self, attempt: int) -> Running | None:
        for one in self._running:
            if one.number == attempt:
                return one
        return None

    def _dispatch(self, *, continues: int = 0) -> Action:
        endpoint_id = self._places.take()
        self.attempt += 1
        self._running.append(Running(self.attempt, self._limits.idle_s, continues=continues))
        return Dispatch(self.attempt, endpoint_id, continues)

    def _give_up(self) -> list[Action]:
        report = self._report
        if report is None:
            return self._over([GiveUp(self.attempt, None, self.is_open, self._retry_after_s)])
        return self._over(
            [GiveUp(report.attempt, report.failure, self.is_open, self._retry_after_s)]
        )

    def _cancel(self, one: Running, failure: FailureClass) -> Action:
        self._running.remove(one)
        return Cancel(one.number, failure)

    def _cancel_others(self, one: Running) -> list[Action]:
        """Those that `one` has made superfluous."""
        return [
            self._cancel(
                other, FailureClass.TOO_SLOW if other.is_relieved else FailureClass.OUTPACED
            )
            for other in list(self._running)
            if other is not one
        ]

    def _cancel_all(self, failure: FailureClass) -> list[Action]:
        """`failure` is of the first; what ran beside it was our own wish."""
        if not self._running:
            return []
        first = self._running[0]
        return [*self._cancel_others(first), self._cancel(first, failure)]

    def _over(self, actions: list[Action]) -> list[Action]:
        self.is_over = True
        return actions

    def _commit(self, one: Running, now: float) -> list[Action]:
        """From here on the client gets this attempt's answer: its first, or its continuation."""
        actions = self._cancel_others(one)
        self._speaking = one
        one.is_relieved = False
        one.first_token_at = one.hedge_at = None
        if self.committed is not None:
            assert one.continues, "a request commits once"
            actions.append(Continue(one.number, one.continues))
            self._keep_alive_from(now)
            # It was greeted already.
            pieces = [piece for piece in one.let_go() if piece.kind is not PieceKind.META]
        else:
            self.committed = one.number
            actions.append(Commit(one.number))
            actions.extend(self._open(now))
            pieces = one.let_go()
        one.rewind(now, self._limits, has_content=True)
        actions.append(Forward(one.number, pieces))
        return actions

    def _finished(self, one: Running, actions: list[Action]) -> list[Action]:
        actions += self._cancel_others(one)
        pieces = one.let_go()
        if pieces:
            actions.append(Forward(one.number, pieces))
        actions.append(Finish(one.number))
        return self._over(actions)

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
