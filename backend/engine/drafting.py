"""Between the engine and a draft method: what the method is given, and its drafts put in order.

A method that taps the target's layers is shown every row that the target has computed, so that its
own cache has no holes: the rows of the decode group in one call, each piece of a prompt in a call
of its own ("draft prefill"), one step after the target computed them. Who skips a step is shown its
rows in it all the same, since the next ones take their place, and has no drafts in the step after.
Other methods are asked once, for all decoding sequences together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backend.engine.batch import Batch, HostBuffer
from backend.engine.interface import SpeculationWish
from backend.engine.scheduler import Chunk, Step
from backend.engine.sequence import Sequence as EngineSequence
from backend.engine.shapes import PIECES_MAX
from backend.engine.state import SlotState
from backend.models.interface import FeatureTap
from backend.speculate.protocol import Proposal, ProposeInput, Proposer


@dataclass(frozen=True, slots=True)
class _Piece:
    """A chunk of a prompt in the step before: where its features lie, and what follows it."""

    chunk: Chunk
    row_start: int
    next_token: int  # -1: the one that was drawn


@dataclass(slots=True)
class _Layout:
    """Where the features of the step before lie."""

    row_of: dict[int, int]  # slot → row of the decode group
    num_sequences: int
    query_len: int
    pieces: list[_Piece]

    @property
    def ended(self) -> list[_Piece]:
        """Prompts' last pieces, behind which a token was drawn."""
        return [each for each in self.pieces if each.next_token < 0]


_DRAFTING, _SKIPPING = (
    "drafting",
    "skipping",
)  # groups of sequences that one call of the method is for


def _names(group: str) -> tuple[str, str]:
    """Of the host's arrays: its slots, and its rows of the step before."""
    return f"{group}_slots", f"{group}_rows"


class Drafting:
    """Shapes: S sequences, N drafts, H hidden."""

    def __init__(
        self,
        proposer: Proposer,
        state: SlotState,
        *,
        num_drafts: int,
        rows_max: int,
        sequences_max: int,
        prefills_max: int,
        hidden_size: int,
        dtype: torch.dtype,
        temperatures: Callable[[Tensor], Tensor],
    ) -> None:
        """`temperatures`: slots [S] → what their drafts are drawn at, 0 where they are not."""
        device = state.lengths.device
        self.num_drafts = min(num_drafts, proposer.num_drafts_max)
        self.features: Mapping[FeatureTap, Tensor] = {
            tap: torch.zeros((rows_max, hidden_size), dtype=dtype, device=device)
            for tap in proposer.taps
        }
        self._proposer = proposer
        self._state = state
        self._temperatures = temperatures
        groups = [name for group in (_DRAFTING, _SKIPPING) for name in _names(group)]
        per_decode = ("limits", "draft_rows", *groups)
        sizes = dict.fromkeys(per_decode, sequences_max)
        per_piece = ("piece_slots", "piece_sizes", "piece_next", "piece_lengths")
        sizes |= dict.fromkeys(per_piece, PIECES_MAX * prefills_max)
        self._host = HostBuffer(sizes, device)
        self._before = _Layout({}, 0, 1, [])
        self._going_on: list[EngineSequence] = []
        self._skipping: list[EngineSequence] = []  # whose rows of the step before are to be shown
        self.is_returning = False  # somebody who decodes skipped the step before
        self._is_whole = True  # whether `_going_on` are all that decode, in their order
        self._limits: list[int] = []  # drafts that may count, of all that decode
        self._num_steps = 0

    @property
    def method(self) -> str:
        return self._proposer.name

    @property
    def is_active(self) -> bool:
        return self.num_drafts > 0 or bool(self.features)

    def limit_of(self, wish: SpeculationWish) -> int:
        """Drafts a step that one request allows. A wish for another method is a wish for none."""
        if wish.is_off or wish.method not in (None, self._proposer.name):
            return 0
        if wish.num_drafts is None:
            return self.num_drafts
        return min(max(0, wish.num_drafts), self.num_drafts)

    @property
    def limit_now(self) -> int:
        """Drafts that the most generous request of the filled step allows."""
        return max(self._limits, default=0)

    def release(self, slot: int) -> None:
        """The slot's sequence has left; what the step before computed for it is of no use."""
        self._proposer.release(slot)
        self._before.row_of.pop(slot, None)
        self._before.pieces = [
            each for each in self._before.pieces if each.chunk.sequence.slot != slot
        ]

    def fill(self, step: Step, batch: Batch) -> None:
        """The host's part, before anything is launched."""
        if not self.is_active:
            return
        before, write = self._before, self._host.write
        self._num_steps += 1
        if self.features:
            self._write_pieces(before.pieces)
        self._skipping = self._shown_before(step.skipping)
        self._write_group(_SKIPPING, self._skipping, before.num_sequences)
        self._going_on = self._shown_before(step.decodes)
        self._write_group(_DRAFTING, self._going_on, batch.num_sequences)
        self._is_whole = len(self._going_on) == len(step.decodes)
        has_drafts = {each.slot for each in self._going_on}
        has_drafts.update(each.chunk.sequence.slot for each in before.ended)
        limits = [self._limit(each) for each in step.decodes]
        self._limits = [
            limit if each.slot in has_drafts else 0
            for each, limit in zip(step.decodes, limits, strict=True)
        ]
        self.is_returning = self._limits != limits
        write("limits", self._limits, batch.num_sequences)
        write("draft_rows", self._draft_rows(step, batch), batch.num_sequences)
        self._host.upload()

    def propose(self, step: Step, batch: Batch) -> Proposal | None:
        """Drafts for the decode group in its order, as many valid as each request allows.

        [S, N], or fewer columns where nobody has so many; None: the step is a plain one.
        """
        num_drafts = min(batch.num_drafts, self.limit_now)
        if not self.is_active or not (self.features or num_drafts):
            return None
        if self._skipping:
            given = self._group_input(_SKIPPING, self._skipping, self._before.num_sequences, 0)
            self._proposer.propose(given)
        made: list[Proposal | None] = []
        if self._going_on:
            given = self._group_input(_DRAFTING, self._going_on, batch.num_sequences, num_drafts)
            made.append(self._proposer.propose(given))
        for index, piece in enumerate(self._before.pieces):
            proposal = self._proposer.propose(self._piece_input(index, piece, num_drafts))
            if piece.next_token < 0:
                made.append(proposal)
        if num_drafts == 0 or all(each is None for each in made):
            return None
        return self._ordered(made, batch, num_drafts)

    def note(self, step: Step, batch: Batch, query_len: int) -> None:
        """Remembers where the forward that was just launched puts its features."""
        if not self.features:
            return
        pieces = []
        row = batch.num_sequences * query_len
        for chunk in step.chunks:
            next_token = -1 if chunk.is_last else chunk.sequence.token_ids[chunk.end]
            if self.wants_drafts(chunk.sequence):
                pieces.append(_Piece(chunk, row, next_token))
            row += chunk.num_rows
        row_of = {each.slot: index for index, each in enumerate(step.decodes)}
        self._before = _Layout(row_of, batch.num_sequences, query_len, pieces)

    def wants_drafts(self, sequence: EngineSequence) -> bool:
        """Who wants none is not shown to the method at all, and costs what plain decoding does."""
        return self.limit_of(sequence.request.speculation) > 0

    def _limit(self, sequence: EngineSequence) -> int:
        """Behind the last token that the answer may have nothing can be accepted."""
        wanted = self.limit_of(sequence.request.speculation)
        return max(0, min(wanted, sequence.num_tokens_left - 1))

    def _draft_rows(self, step: Step, batch: Batch) -> list[int]:
        """Row of each decoding sequence among the drafts as they are made: group, then pieces.

        Who wants none has row 0, of which nothing counts.
        """
        group_rows = batch.num_sequences if self._going_on else 0
        row_of = {each.slot: row for row, each in enumerate(self._going_on)}
        for number, piece in enumerate(self._before.ended):
            row_of[piece.chunk.sequence.slot] = group_rows + number
        return [row_of.get(each.slot, 0) for each in step.decodes]

    def _shown_before(self, sequences: Sequence[EngineSequence]) -> list[EngineSequence]:
        """Those that want drafts and, where the method looks at features, left some."""
        wanting = [each for each in sequences if self.wants_drafts(each)]
        if not self.features:
            return wanting
        return [each for each in wanting if each.slot in self._before.row_of]

    def _write_group(self, group: str, sequences: Sequence[EngineSequence], num_rows: int) -> None:
        """`num_rows`: as many as the group has with its padding."""
        slots, rows = _names(group)
        self._host.write(slots, [each.slot for each in sequences], num_rows)
        if self.features:
            found = [self._before.row_of[each.slot] for each in sequences]
            self._host.write(rows, found, num_rows)

    def _write_pieces(self, pieces: Sequence[_Piece]) -> None:
        write = self._host.write
        write("piece_slots", [each.chunk.sequence.slot for each in pieces])
        write("piece_sizes", [each.chunk.num_tokens for each in pieces])
        write("piece_next", [each.next_token for each in pieces])
        write("piece_lengths", [each.chunk.end + 1 for each in pieces])

    def _group_input(
        self, group: str, sequences: Sequence[EngineSequence], num_rows: int, num_drafts: int
    ) -> ProposeInput:
        slots, rows = (self._host.take(name, num_rows) for name in _names(group))
        features = {}
        if self.features:
            before = self._before
            shape = (before.num_sequences, before.query_len, -1)
            num_before = before.num_sequences * before.query_len
            features = {
                tap: buffer[:num_before].view(shape).index_select(0, rows)
                for tap, buffer in self.features.items()
            }
        return ProposeInput(
            slots=slots,
            last_tokens=self._state.last_tokens.index_select(0, slots),
            lengths=self._state.lengths.index_select(0, slots),
            features=features,
            num_fresh=self._state.num_fresh.index_select(0, slots),
            num_drafts=num_drafts,
            histories=[each.token_ids for each in sequences],
            tenants=[each.request.tenant for each in sequences],
            slot_ids=[each.slot for each in sequences],
            temperatures=self._temperatures_of(sequences, slots),
            limits=[min(num_drafts, self._limit(each)) for each in sequences],
            step=self._num_steps,
        )

    def _piece_input(self, index: int, piece: _Piece, num_drafts: int) -> ProposeInput:
        """After a piece that is not a prompt's last comes the prompt's own next token."""
        slots, sizes, following, lengths = (
            self._host.take(name, 1, index)
            for name in ("piece_slots", "piece_sizes", "piece_next", "piece_lengths")
        )
        drawn = self._state.last_tokens.index_select(0, slots)
        rows = slice(piece.row_start, piece.row_start + piece.chunk.num_rows)
        sequence = piece.chunk.sequence
        is_last = piece.next_token < 0
        return ProposeInput(
            slots=slots,
            last_tokens=drawn if is_last else following,
            lengths=lengths,
            features={tap: buffer[rows].unsqueeze(0) for tap, buffer in self.features.items()},
            num_fresh=sizes,
            num_drafts=num_drafts if is_last else 0,
            histories=[sequence.token_ids if is_last else sequence.token_ids[: piece.chunk.end]],
            tenants=[sequence.request.tenant],
            slot_ids=[sequence.slot],
            temperatures=self._temperatures_of([sequence], slots),
            limits=[min(num_drafts, self._limit(sequence)) if is_last else 0],
            start=piece.chunk.start,
            step=self._num_steps,
        )

    def _temperatures_of(self, sequences: Sequence[EngineSequence], slots: Tensor) -> Tensor | None:
        if not any(each.request.params.is_seedless for each in sequences):
            return None
        return self._temperatures(slots)

    def _ordered(self, made: Sequence[Proposal | None], batch: Batch, num_drafts: int) -> Proposal:
        limits = self._host.take("limits", batch.num_sequences)
        only = made[0] if len(made) == 1 and self._is_whole else None
        if only is not None:
            return Proposal(only.token_ids, torch.minimum(only.num_valid, limits), only.probs)
        rows = self._host.take("draft_rows", batch.num_sequences)
        present = [self._present(each, index, batch) for index, each in enumerate(made)]
        whole = _joined(present, num_drafts)
        return Proposal(
            whole.token_ids.index_select(0, rows),
            torch.minimum(whole.num_valid.index_select(0, rows), limits),
            None if whole.probs is None else whole.probs.index_select(0, rows),
        )

    def _present(self, proposal: Proposal | None, index: int, batch: Batch) -> Proposal:
        """No drafts as a proposal of none, so that rows can be joined."""
        if proposal is not None:
            return proposal
        num_rows = batch.num_sequences if index == 0 and self._going_on else 1
        like = self._state.lengths
        return Proposal(like.new_zeros((num_rows, 0)), like.new_zeros((num_rows,)))


def _joined(proposals: Sequence[Proposal], num_drafts: int) -> Proposal:
    """One below the other; where only some know probabilities, the others' are one-hot."""
    num_columns = min(num_drafts, max(each.token_ids.shape[1] for each in proposals))
    proposals = [_widened(each, num_columns) for each in proposals]
    known = next((each.probs for each in proposals if each.probs is not None), None)
    probs = None
    if known is not None:
        probs = torch.cat(
            [
                each.probs
                if each.probs is not None
                else _one_hot(each.token_ids, known.shape[-1], known.dtype)
                for each in proposals
            ]
        )
    return Proposal(
        torch.cat([each.token_ids for each in proposals]),
        torch.cat([each.num_valid for each in proposals]),
        probs,
    )


def _one_hot(token_ids: Tensor, vocab_size: int, dtype: torch.dtype) -> Tensor:
    shape = (*token_ids.shape, vocab_size)
    zeros = torch.zeros(shape, dtype=dtype, device=token_ids.device)
    return zeros.scatter_(-1, token_ids.unsqueeze(-1), 1.0)


def _widened(proposal: Proposal, num_columns: int) -> Proposal:
    """With columns of nothing; what is drawn from there does not count."""
    missing = num_columns - proposal.token_ids.shape[1]
    if missing <= 0:
        return proposal
    token_ids = functional.pad(proposal.token_ids, (0, missing))
    probs = proposal.probs
    if probs is not None:
        probs = functional.pad(probs, (0, 0, 0, missing))
    return Proposal(token_ids, proposal.num_valid, probs)
