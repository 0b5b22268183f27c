"""Verification keeps the text right whatever is drafted, so a broken draft shows in nothing but
fewer accepted tokens. Each fault that others have met is put in here, and must turn the comparison
with the reference red.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.models.interface import FeatureTap
from backend.speculate.proposers.dflash import DFlashProposer
from backend.speculate.proposers.dspark import DSparkProposer
from backend.speculate.proposers.eagle3 import Eagle3Proposer
from backend.speculate.protocol import Proposal, ProposeInput
from kernels.dispatch import Ops, do_only, select
from tests.support.draft_heads import (
    MASK_TOKEN,
    SavedHead,
    dimensions,
    save_block_head,
    save_eagle3,
)
from tests.support.draft_methods import (
    NUM_DRAFTS,
    FeatureProposers,
    check_drafts,
    proposer_of,
    reference_of,
)
from tests.support.draft_references import BlockRules
from tests.support.draft_rounds import Rounds, States, poison
from tests.support.engine_world import Tiny

pytestmark = pytest.mark.slow  # all of them together; `make check` has the parts

WINDOWS = dimensions(num_layers=2, windows=(5, 0))
RULES = {
    "eagle3": None,
    "eagle3-windows": None,
    "dflash": BlockRules(MASK_TOKEN),
    "dflash-windows": BlockRules(MASK_TOKEN, is_causal=(True, False)),
    "dspark": BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla"),
}
Mutate = Callable[[Any], None]
MutateOps = Callable[[Ops], Ops]


def save(directory: Path, form: str) -> SavedHead:
    method, _, windows = form.partition("-")
    dims = {"dims": WINDOWS} if windows else {}
    if method == "eagle3":
        return save_eagle3(directory, **dims)
    return save_block_head(directory, method, rules=RULES[form], **dims)


def play(rounds: Rounds, check: Callable[[], None]) -> None:
    """Two sequences of different lengths, one of them in two pieces; all kinds of acceptance."""
    rounds.admit(1, rounds.prompt(12), pieces=[5, 7])
    rounds.admit(2, rounds.prompt(4))
    check()
    for accepted in ({1: 0, 2: 4}, {1: 3, 2: 0}, {1: 1, 2: 2}, {1: 4, 2: 1}):
        rounds.round(accepted)
        check()


def rewired(op: str, change: Callable[..., Any]) -> MutateOps:
    """`change(op, arguments by name)` stands in for the op."""

    def mutate(ops: Ops) -> Ops:
        real = getattr(ops, op)
        changed = {op: lambda *given, **more: change(real, *given, **more)}
        # What is captured is repeated without Python: a fault would happen once and never again.
        return replace(ops, **changed, capture=do_only)

    return mutate


def keep_what_was_written() -> MutateOps:
    """A slot is written once: what the head itself made up stays, whatever the target says."""
    written: set[tuple[int, int]] = set()

    def kept(layer: int, kv_slots: Tensor) -> Tensor:
        free = [0 if (layer, slot) in written else slot for slot in kv_slots.tolist()]
        written.update((layer, slot) for slot in free)
        return torch.tensor(free)

    def change(real: Any, qkv: Any, positions: Any, table: Any, kv_slots: Tensor, *rest: Any,
               **more: Any) -> Any:  # fmt: skip
        slots = kept(rest[0].data_ptr(), kv_slots)
        return real(qkv, positions, table, slots, *rest, **more)

    def change_context(real: Any, states: Any, weight: Any, positions: Any, table: Any,
                       kv_slots: Tensor, **more: Any) -> Any:  # fmt: skip
        slots = kept(more["k_caches"].data_ptr(), kv_slots)  # the first layer's
        return real(states, weight, positions, table, slots, **more)

    def mutate(ops: Ops) -> Ops:
        context = rewired("dflash_context_kv", change_context)
        return context(rewired("rope_kv_write", change)(ops))

    return mutate


def interleaved(real: Any, *given: Any, **more: Any) -> Any:
    return real(*given, **{**more, "is_interleaved": True})


def steps_one_further(real: Any, qkv: Tensor, positions: Tensor, *rest: Any, **more: Any) -> Any:
    """Only rows of drafts, of which there is one a sequence."""
    return real(qkv, positions + (1 if len(positions) == 2 else 0), *rest, **more)


def block_one_further(real: Any, qkv: Tensor, positions: Tensor, *rest: Any, **more: Any) -> Any:
    """Only the block's rows: context rows have no queries."""
    return real(qkv, positions + (1 if more["num_heads"] else 0), *rest, **more)


def without_window(real: Any, *given: Any, **more: Any) -> Any:
    return real(*given, **{**more, "window": 0})


def as_far_as_the_query(real: Any, *given: Any, **more: Any) -> Any:
    return real(*given, **{**more, "window": max(2, more["query_len"])})


def reading_behind_the_end(real: Any, q: Any, keys: Any, values: Any, tables: Tensor,
                           lens: Tensor, starts: Tensor, **more: Any) -> Any:  # fmt: skip
    most = tables.shape[1] * keys.shape[2]
    return real(q, keys, values, tables, (lens + 1).clamp(max=most), starts + 1, **more)


def of_another_sequence(real: Any, q: Any, keys: Any, values: Any, tables: Tensor,
                        *rest: Any, **more: Any) -> Any:  # fmt: skip
    return real(q, keys, values, tables.roll(1, 0), *rest, **more)


def one_layer_further(proposer: Any) -> None:
    proposer.taps = tuple(FeatureTap(tap.layer - 1, tap.side) for tap in proposer.taps)


def in_another_order(proposer: Any) -> None:
    proposer.taps = tuple(reversed(proposer.taps))


def changed_input(change: Callable[[ProposeInput], ProposeInput]) -> Mutate:
    def mutate(proposer: Any) -> None:
        real = proposer._drafts
        proposer._drafts = lambda given, view, features: real(change(given), view, features)

    return mutate


def rejected_rows_too(given: ProposeInput) -> ProposeInput:
    num_rows = next(iter(given.features.values())).shape[1]
    if given.start is not None:
        return given
    return replace(given, num_fresh=torch.full_like(given.num_fresh, num_rows))


def rows_one_further(given: ProposeInput) -> ProposeInput:
    return replace(given, num_fresh=(given.num_fresh - 1).clamp(min=1))


def tokens_not_shifted(proposer: Any) -> None:
    real = proposer._next_tokens
    proposer._next_tokens = lambda *given: real(*given).roll(1, 1)


def first_token_lost(proposer: Any) -> None:
    """Of a prompt, where the row of tokens is moved against the row of states."""
    real = proposer._next_tokens

    def changed(given: ProposeInput, *rest: Any) -> Tensor:
        tokens: Tensor = real(given, *rest).clone()
        if given.start == 0:
            tokens[:, 0] = 0
        return tokens

    proposer._next_tokens = changed


def output_without_residual(proposer: Any) -> None:
    layer = proposer._head.layers[-1]
    real = layer.finish
    layer.finish = lambda *given: (torch.zeros_like(real(*given)[0]), real(*given)[1])


def offsets_as_ids(proposer: Any) -> None:
    size = proposer._head.draft_vocab_size
    proposer._head.offsets = proposer._head.offsets - torch.arange(size)


def first_pieces_unseen(proposer: Any) -> None:
    """Nothing is proposed for them, so they are not shown."""
    real = proposer._drafts

    def changed(given: ProposeInput, view: Any, features: Tensor) -> Proposal | None:
        return real(given, view, features) if given.num_drafts else None

    proposer._drafts = changed


def config_with(**changes: Any) -> Mutate:
    def mutate(proposer: Any) -> None:
        proposer._config = replace(proposer._config, **changes)

    return mutate


def previous_token_forgotten(proposer: Any) -> None:
    real = proposer._markov.latent
    first: list[Tensor] = []

    def changed(previous: Tensor, states: Tensor, memory: Tensor) -> Any:
        """Every slot follows the newest token."""
        first.append(previous)
        begin = first[len(first) - 1 - (len(first) - 1) % NUM_DRAFTS]
        return real(begin, states, memory)

    proposer._markov.latent = changed


@dataclass(frozen=True)
class Fault:
    forms: tuple[str, ...]
    mutate: Mutate | None = None
    mutate_ops: Callable[[], MutateOps] | None = None


ALL = ("eagle3", "dflash", "dspark")
BLOCKS = ("dflash", "dspark")
FAULTS: dict[str, Fault] = {
    "provisional rows stay": Fault(("eagle3",), mutate_ops=keep_what_was_written),
    "scratch rows stay": Fault(BLOCKS, mutate_ops=keep_what_was_written),
    "wrong layer": Fault(ALL, one_layer_further),
    "features in another order": Fault(ALL, in_another_order),
    "rejected rows as committed": Fault(ALL, changed_input(rejected_rows_too)),
    "rows shifted": Fault(ALL, changed_input(rows_one_further)),
    "tokens not shifted": Fault(("eagle3",), tokens_not_shifted),
    "first token lost": Fault(("eagle3",), first_token_lost),
    "output without residual": Fault(("eagle3",), output_without_residual),
    "offsets taken for ids": Fault(ALL, offsets_as_ids),
    "prompt's first pieces unseen": Fault(ALL, first_pieces_unseen),
    "pairs of rope": Fault(ALL, mutate_ops=lambda: rewired("rope_kv_write", interleaved)),
    "steps at the wrong position": Fault(
        ("eagle3",), mutate_ops=lambda: rewired("rope_kv_write", steps_one_further)
    ),
    "block at the wrong position": Fault(
        BLOCKS, mutate_ops=lambda: rewired("rope_kv_write", block_one_further)
    ),
    "windows ignored": Fault(
        ("eagle3-windows", "dflash-windows"),
        mutate_ops=lambda: rewired("paged_attention", without_window),
    ),
    "context cut to the query": Fault(
        ALL, mutate_ops=lambda: rewired("paged_attention", as_far_as_the_query)
    ),
    "stale slots read": Fault(
        ALL, mutate_ops=lambda: rewired("paged_attention", reading_behind_the_end)
    ),
    "another sequence's table": Fault(
        ALL, mutate_ops=lambda: rewired("paged_attention", of_another_sequence)
    ),
    "block that looks back only": Fault(BLOCKS, config_with(is_causal=(True, True))),
    "another mask": Fault(BLOCKS, config_with(mask_token_id=MASK_TOKEN + 1)),
    "anchor misunderstood": Fault(("dflash",), config_with(samples_from_anchor=True)),
    "anchor misunderstood too": Fault(("dspark",), config_with(samples_from_anchor=False)),
    "residual from the normed state": Fault(("eagle3",), config_with(is_norm_before_residual=True)),
    "normed state fed back": Fault(("eagle3",), config_with(is_output_normed=True)),
    "previous token forgotten": Fault(("dspark",), previous_token_forgotten),
}
CASES = [(name, form) for name, fault in FAULTS.items() for form in fault.forms]


def made(target: Tiny, saved: SavedHead, fault: Fault | None) -> FeatureProposers:
    ops = select("cpu", "reference")
    if fault and fault.mutate_ops:
        ops = fault.mutate_ops()(ops)
    proposer = proposer_of(target, saved, ops=ops)
    assert isinstance(proposer, Eagle3Proposer | DFlashProposer | DSparkProposer)
    if fault and fault.mutate:
        fault.mutate(proposer)
    return proposer


def play_with(
    target: Tiny, states: States, directory: Path, form: str, fault: Fault | None
) -> None:
    saved = save(directory, form)
    proposer = made(target, saved, fault)
    rounds = Rounds(proposer, states, NUM_DRAFTS, seed=3)
    rounds.before_round = lambda: poison(proposer.cache)
    reference = reference_of(target, saved, RULES[form])
    play(rounds, lambda: check_drafts(rounds, saved, reference))


@pytest.mark.parametrize("form", RULES)
def test_without_a_fault_the_comparison_is_green(
    target: Tiny, states: States, tmp_path: Path, form: str
) -> None:
    play_with(target, states, tmp_path, form, None)


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_fault_turns_the_comparison_red(
    target: Tiny, states: States, tmp_path: Path, name: str, form: str
) -> None:
    with pytest.raises(AssertionError, match="after"):
        play_with(target, states, tmp_path, form, FAULTS[name])
