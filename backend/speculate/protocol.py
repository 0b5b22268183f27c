"""One protocol and one input for every draft method. The engine knows no method's name.

Shapes: S sequences, N drafts each, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from backend.models.interface import FeatureTap


@dataclass(frozen=True, slots=True)
class ProposeInput:
    """What a method may look at: the state after the last commit, for the sequences of one group.

    Device tensors first; `histories` and `tenants` are the host's own and are for methods that look
    text up. A method that reads only device tensors keeps the step free of host syncs.
    """

    slots: Tensor  # [S] int64: rows of the engine's per-sequence state; 0 pads
    last_tokens: Tensor  # [S] int64: committed, not yet in the target's cache
    lengths: Tensor  # [S] int64: committed tokens, the last one among them
    features: Mapping[
        FeatureTap, Tensor
    ]  # [S, N + 1, H] of the step before, or [1, Q, H] of a prompt
    num_fresh: Tensor  # [S] int64: how many rows of `features` are committed
    num_drafts: int  # N wanted
    histories: Sequence[Sequence[int]]  # of the real sequences: prompt and answer
    tenants: Sequence[bytes]  # of the real sequences: the prefix cache's salt
    slot_ids: Sequence[int] = ()  # of the real sequences: `slots` as the host knows them
    start: int | None = None  # position of a prompt piece's first row; None: the decode group
    # [S] float32: drafts are drawn at these, and their probabilities told; 0: the likeliest is
    # taken. None: that is so for all.
    temperatures: Tensor | None = None
    limits: Sequence[int] = ()  # of the real sequences: how many drafts may count, at most N
    step: int = 0  # of the engine: who is proposed for in two neighbouring ones had one round


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts. `num_valid` ≤ N: how many of a row count; `probs`: what they were drawn from.

    Where nobody has N drafts the row may be shorter, and so is the target's pass over it.
    """

    token_ids: Tensor  # [S, N] int64
    num_valid: Tensor  # [S] int64
    probs: Tensor | None = None  # [S, N, V] float32; None: one-hot
    # [S, N] float32: how likely a draft is accepted if those before it are, for methods that know.
    confidences: Tensor | None = None


class Proposer(Protocol):
    """A draft method, bound to one target and its device."""

    name: str
    num_drafts_max: int
    taps: tuple[FeatureTap, ...]  # what `features` must hold

    def propose(self, given: ProposeInput) -> Proposal | None:
        """None where there is nothing to propose for anybody: the step is a plain one."""
        ...

    def release(self, slot: int) -> None:
        """The sequence of this slot has ended or was preempted."""
        ...
