"""Rounds of one shape, captured once and repeated from the same memory.

What a draft computes in a round is some dozens of calls of microseconds each, and what the
interpreter does between them costs as much again. So what a round brings along is copied into
memory of its shape, and the calls are repeated in one. Where the ops cannot be captured they run as
they are.

Shapes: S sequences, Q rows of the target each, R rows of a block, F features, H hidden.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.speculate.draft_cache import Places
from kernels.dispatch import Ops

CAPTURES_MAX = 64
ROWS_MAX = 64  # of one kind: with more, what the interpreter does no longer matters


@dataclass(frozen=True, slots=True)
class RoundInputs:
    """All that differs from one round to the next of the same shape."""

    features: Tensor  # [S Q, F H]
    context: Places  # of those rows
    residual: Tensor  # [S R, H]: the block's tokens, embedded
    block: Places

    def tensors(self) -> tuple[Tensor, ...]:
        """In a fixed order: what has to be copied."""
        context, block = self.context, self.block
        return (
            *(self.features, context.positions, context.kv_slots),
            *(self.residual, block.positions, block.kv_slots),
            *(block.block_tables, block.context_lens, block.query_starts),
        )

    def shape(self) -> tuple[int, ...]:
        """Rounds with the same one can share a capture."""
        tables = self.block.block_tables.shape
        return (self.features.shape[0], self.residual.shape[0], *tables)

    def copied(self) -> RoundInputs:
        """The same in memory that stays."""
        return RoundInputs(
            features=_copy(self.features),
            context=_copied(self.context),
            residual=_copy(self.residual),
            block=_copied(self.block),
        )


@dataclass(slots=True)
class _Captured:
    """`repeat` writes `result` anew, from `given`."""

    given: RoundInputs
    result: Tensor
    repeat: Callable[[], bool]


class CapturedRounds:
    """Of one draft. What `run` gives is valid until anything that is captured is repeated."""

    def __init__(self, ops: Ops, work: Callable[[RoundInputs], Tensor]) -> None:
        """`work` must do nothing but call ops, and ask for memory."""
        self._ops = ops
        self._work = work
        # None: the ops cannot repeat it.
        self._known: OrderedDict[tuple[int, ...], _Captured | None] = OrderedDict()

    def run(self, given: RoundInputs) -> Tensor:
        key = given.shape()
        if max(key[:2]) > ROWS_MAX:
            return self._work(given)
        if key not in self._known:
            return self._capture(key, given)
        self._known.move_to_end(key)
        known = self._known[key]
        if known is None:
            return self._work(given)
        for own, tensor in zip(known.given.tensors(), given.tensors(), strict=True):
            own.copy_(tensor)
        # An op that fails says why only when it is called for itself.
        return known.result if known.repeat() else self._work(known.given)

    def _capture(self, key: tuple[int, ...], given: RoundInputs) -> Tensor:
        own = given.copied()
        results: list[Tensor] = []
        repeat = self._ops.capture(lambda: results.append(self._work(own)))
        # Who records calls the work a second time, and repetitions write that one's result.
        self._known[key] = None if repeat is None else _Captured(own, results[-1], repeat)
        if len(self._known) > CAPTURES_MAX:
            self._known.popitem(last=False)
        return results[0]


def _copied(places: Places) -> Places:
    return Places(
        positions=_copy(places.positions),
        kv_slots=_copy(places.kv_slots),
        block_tables=_copy(places.block_tables),
        context_lens=_copy(places.context_lens),
        query_starts=_copy(places.query_starts),
        query_len=places.query_len,
    )


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
