"""The plan's order as a request walks it: whose turn is next, and what a retry costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.errors import FAILURES, FailureClass

# Of the request, not of the endpoint; but another model that the caller named may take it.
_OTHER_MODEL_MAY = frozenset({FailureClass.CONTENT_REFUSED})


def falls_over(failure: FailureClass) -> bool:
    """Whether another endpoint may be tried, the client having seen nothing of this one."""
    # A stream is broken once it has generated; that may have been kept back.
    return FAILURES[failure].falls_over or failure is FailureClass.STREAM_BROKEN


class Places:
    """Each endpoint once, in order, one model after the other."""

    __slots__ = (
        "_may_retry", "_model", "_models", "_next_idx", "_num_retried", "_order", "_retries_max",
        "num_retries",
    )  # fmt: skip

    def __init__(
        self,
        order: Sequence[str],
        models: Sequence[str],
        retries_max: int,
        may_retry: Callable[[], bool],
    ) -> None:
        assert not models or len(models) == len(order)

        whose: dict[str, str] = {}
        for place, endpoint_id in enumerate(order):
            whose.setdefault(endpoint_id, models[place] if models else "")
        self._order, self._models = tuple(whose), tuple(whose.values())
        self._model = ""  # whose endpoints are being tried
        self._num_retried = 0  # of them
        self._next_idx = 0
        self._retries_max = retries_max
        self._may_retry = may_retry
        self.num_retries = 0

    @property
    def has_next(self) -> bool:
        return self._next_idx < len(self._order)

    @property
    def has_peer(self) -> bool:
        """Whether the next is of the model that is being tried."""
        return self.has_next and self._models[self._next_idx] == self._model

    def take(self) -> str:
        """The endpoint whose turn it is."""
        endpoint_id, model = self._order[self._next_idx], self._models[self._next_idx]
        if model != self._model:
            self._model, self._num_retried = model, 0
        self._next_idx += 1
        return endpoint_id

    def retry(self, failure: FailureClass) -> bool:
        """
        Whether the next may be tried after this failure; pays for it then.

        At this model's endpoints while it has retries, else at the next model's.
        """
        may_stay = falls_over(failure)
        if not may_stay and failure not in _OTHER_MODEL_MAY:
            return False
        idx, num = self._next_idx, len(self._order)
        if not may_stay or self._num_retried >= self._retries_max:
            while idx < num and self._models[idx] == self._model:
                idx += 1
        if idx >= num:
            return False
        # A 429 costs nobody work, and its endpoint is left alone from now on: no retry storm.
        if failure is not FailureClass.RATE_LIMITED and not self._may_retry():
            return False
        self._go_on_at(idx)
        return True

    def rescue(self, among: Collection[str] | None = None) -> bool:
        """
        Whether another endpoint of the same model may be tried for what one has begun; pays for it
        then. `among`: only these would do.
        """
        idx, num = self._next_idx, len(self._order)
        while idx < num and among is not None and self._order[idx] not in among:
            idx += 1
        if idx >= num or self._models[idx] != self._model:
            return False
        if self._num_retried >= self._retries_max or not self._may_retry():
            return False
        self._go_on_at(idx)
        return True

    def _go_on_at(self, idx: int) -> None:
        self._next_idx = idx
        self._num_retried += 1
        self.num_retries += 1
