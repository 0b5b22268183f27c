"""Steps of one shape, captured once and repeated from the same memory.

What a step brings along is copied into buffers of its shape; everything else that its ops touch
(weights, activations, cache) stays where it is. Where the ops cannot be captured, or a step is of a
kind that seldom comes twice, the layers run as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.layers.attention import GroupRows, StepRows
from backend.layers.workspace import Activations
from backend.models.interface import AttentionGroup, FeatureTap, ForwardInput, KvCache
from kernels.dispatch import Ops

CAPTURES_MAX = 128  # some 50 kB each
QUERY_LEN_MAX = 16  # longer ones are pieces of prompts

Layers = Callable[[StepRows], None]
_Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Captured:
    """`repeat`: None where the ops cannot. What it writes to is kept alive here."""

    step: StepRows
    repeat: Callable[[], bool] | None
    cache: KvCache
    states: Activations
    features: Mapping[FeatureTap, Tensor] | None


class CapturedSteps:
    """Of one model; a `CausalModel.forward` runs its layers through `run`."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._known: OrderedDict[_Key, _Captured] = OrderedDict()

    def run(self, given: ForwardInput, cache: KvCache, states: Activations, layers: Layers) -> None:
        """`layers` computes the step from `states.residual`; it must do nothing but call ops."""
        if not _comes_again(given):
            layers(step_rows(given, states))
            return
        (group,) = given.groups
        key = (*_key(group, cache, states), *_tapped(given))
        known = self._known.get(key)
        if known is None:
            self._capture(key, given, cache, states, layers)
            return
        self._known.move_to_end(key)
        _fill(known.step, given)
        # An op that fails says why only when it is called for itself.
        if known.repeat is None or not known.repeat():
            layers(known.step)

    def _capture(
        self, key: _Key, given: ForwardInput, cache: KvCache, states: Activations, layers: Layers
    ) -> None:
        step = step_rows(_own(given), states)
        repeat = self._ops.capture(lambda: layers(step))
        self._known[key] = _Captured(step, repeat, cache, states, given.features)
        if len(self._known) > CAPTURES_MAX:
            self._known.popitem(last=False)


def step_rows(given: ForwardInput, states: Activations) -> StepRows:
    """Cuts each group's rows out of the buffers, once for all layers."""
    groups = []
    for group in given.groups:
        rows = slice(group.row_start, group.row_start + group.num_rows)
        groups.append(
            GroupRows(
                queries=states.queries[rows],
                attended=states.attended[rows],
                block_tables=group.block_tables,
                context_lens=group.context_lens,
                query_starts=group.query_starts,
                query_len=group.query_len,
                mask=group.mask,
                mask_bits=group.mask_bits,
            )
        )
    return StepRows(positions=given.positions, kv_slots=given.kv_slots, groups=groups)


def _comes_again(given: ForwardInput) -> bool:
    """Decoding, and nothing else in the step."""
    if len(given.groups) != 1:
        return False
    group = given.groups[0]
    return group.query_len <= QUERY_LEN_MAX and group.mask_bits is None


def _key(group: AttentionGroup, cache: KvCache, states: Activations) -> _Key:
    return (
        group.row_start,
        group.num_sequences,
        group.query_len,
        group.block_tables.shape[1],
        group.mask == "causal",
        states.residual.shape[0],
        states.residual.data_ptr(),
        cache.keys[0].data_ptr(),
    )


def _tapped(given: ForwardInput) -> _Key:
    """Where the states for drafts go; the ops write there by address."""
    return tuple(buffer.data_ptr() for buffer in (given.features or {}).values())


def _own(given: ForwardInput) -> ForwardInput:
    """The same step in memory that stays."""
    (group,) = given.groups
    own = AttentionGroup(
        row_start=group.row_start,
        num_sequences=group.num_sequences,
        query_len=group.query_len,
        block_tables=_copy(group.block_tables),
        context_lens=_copy(group.context_lens),
        query_starts=_copy(group.query_starts),
        mask=group.mask,
    )
    return ForwardInput(
        token_ids=given.token_ids,
        positions=_copy(given.positions),
        kv_slots=_copy(given.kv_slots),
        groups=(own,),
    )


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)


def _fill(step: StepRows, given: ForwardInput) -> None:
    (own,), (group,) = step.groups, given.groups
    step.positions.copy_(given.positions)
    step.kv_slots.copy_(given.kv_slots)
    own.block_tables.copy_(group.block_tables)
    own.context_lens.copy_(group.context_lens)
    own.query_starts.copy_(group.query_starts)
