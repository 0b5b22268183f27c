"""What the next step computes: decoding sequences first, then pieces of prompts.

A step has a budget of rows. Every decoding sequence is in every step, but that those of the batch
lane skip one that computes a prompt somebody waits for; what is left goes to prompts, the more
urgent first, those already begun before new ones. A new one is admitted only when blocks
for all its tokens, its next token and its drafts are free. Where blocks run out, the youngest of
the least urgent gives all of its own back and is recomputed later (preemption by recompute, Kwon et
al., PagedAttention, 2023). The oldest of the most urgent is never made to wait for a younger one,
so somebody always comes nearer to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backend.config import EngineConfig
from backend.engine.block_manager import BlockCopy, BlockManager, OutOfBlocks
from backend.engine.interface import Priority
from backend.engine.sequence import Sequence, Status
from backend.engine.shapes import Shapes
from backend.engine.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of a sequence, padded to `num_rows`."""

    sequence: Sequence
    start: int
    num_tokens: int
    num_rows: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.num_tokens


@dataclass(slots=True)
class Step:
    """Rows: `decodes` (each 1 + num_drafts), then `chunks`. `skipping` decode, but not in this one;
    `failed` names those without room.
    """

    decodes: list[Sequence] = field(default_factory=list)
    skipping: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    num_drafts: int = 0
    admitted: list[Sequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    failed: list[tuple[Sequence, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.chunks

    @property
    def num_prompts(self) -> int:
        """A prompt may be here in two pieces, one behind the other."""
        return len({id(chunk.sequence) for chunk in self.chunks})

    @property
    def last_chunks(self) -> list[Chunk]:
        """Those whose last row draws a token."""
        return [chunk for chunk in self.chunks if chunk.is_last]

    def drop(self, sequence: Sequence) -> None:
        """Leaves a sequence out that failed or was preempted after it was scheduled."""
        self.decodes = [each for each in self.decodes if each is not sequence]
        self.skipping = [each for each in self.skipping if each is not sequence]
        self.chunks = [each for each in self.chunks if each.sequence is not sequence]
        self.admitted = [each for each in self.admitted if each is not sequence]


class Scheduler:
    """Owns the waiting and the running sequences, their slots and their blocks."""

    def __init__(
        self,
        config: EngineConfig,
        shapes: Shapes,
        blocks: BlockManager,
        context_len_max: int,
        on_release: Callable[[int], None] = lambda slot: None,
    ) -> None:
        """`on_release` hears of every slot that is given back, before it is used again."""
        self.waiting = WaitingQueue(config.batch_age_s)
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._config = config
        self._shapes = shapes
        self._blocks = blocks
        self._context_len_max = context_len_max
        self._on_release = on_release
        self._free_slots = list(range(config.sequences_max, 0, -1))  # slot 0 pads

    def schedule(self, now_s: float, num_drafts: int) -> Step:
        """Drafts are left out of a step for which their blocks are not free."""
        step = Step()
        self._reserve_decodes(step, now_s)
        self._add_prompts(step, now_s, num_drafts)
        self._let_pass(step, now_s)
        if step.decodes and self._reserve_drafts(step, num_drafts):
            step.num_drafts = num_drafts
        return step

    def commit(self, sequence: Sequence, num_computed: int) -> None:
        """The first `num_computed` tokens are in the cache now."""
        sequence.num_computed = num_computed
        self._blocks.publish(sequence.table, sequence.token_ids, num_computed)
        if num_computed == sequence.num_tokens:
            sequence.status = Status.DECODE

    def release(self, sequence: Sequence) -> None:
        """Finished, cancelled or failed: its blocks and its slot are free at once."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is not Status.FINISHED:
            self._leave(sequence)
        sequence.status = Status.FINISHED

    def preempt(self, sequence: Sequence) -> None:
        """Gives up blocks and slot; all of its tokens are computed again later."""
        self._leave(sequence)
        sequence.status = Status.WAITING
        self.waiting.add(sequence)
        self.num_preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._blocks.release(sequence.table)
        sequence.num_computed = 0
        self._on_release(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = 0

    def _rank(self, sequence: Sequence, now_s: float) -> tuple[Priority, int]:
        """The order in which sequences keep what they have: the last one gives it up first."""
        return sequence.urgency(now_s, self._config.batch_age_s), sequence.order

    def _by_rank(self, status: Status, now_s: float) -> list[Sequence]:
        found = [each for each in self.running if each.status is status]
        return sorted(found, key=lambda each: self._rank(each, now_s))

    def _reserve_decodes(self, step: Step, now_s: float) -> None:
        """A place in the cache for the last token of every decoding sequence."""
        for sequence in self._by_rank(Status.DECODE, now_s):
            while sequence.status is Status.DECODE:
                if self._blocks.grow(sequence.table, sequence.num_tokens):
                    step.decodes.append(sequence)
                    break
                if len(self.running) == 1:
                    self._fail(step, sequence)
                else:
                    self.preempt(max(self.running, key=lambda each: self._rank(each, now_s)))

    def _reserve_drafts(self, step: Step, num_drafts: int) -> bool:
        """Speculation costs nobody a place: it takes free blocks or is left out."""
        return all(
            self._blocks.grow(each.table, self._reach(each, num_drafts)) for each in step.decodes
        )

    def _reach(self, sequence: Sequence, num_more: int) -> int:
        return min(sequence.num_tokens + num_more, self._context_len_max)

    def _add_prompts(self, step: Step, now_s: float, num_drafts: int) -> None:
        is_admitting = True
        for urgency in Priority:
            for sequence in self._by_rank(Status.PREFILL, now_s):
                if self._rank(sequence, now_s)[0] is urgency:
                    self._add_chunks(step, sequence, self._rows_left(step, num_drafts, urgency))
            # Who does not fit holds back all that come after: else it would never fit.
            while is_admitting and self._has_room(step, num_drafts, urgency):
                candidate = self.waiting.next(urgency, now_s)
                if candidate is None:
                    break
                is_admitting = self._admit(step, candidate, now_s, num_drafts)
                if candidate.status is Status.PREFILL:
                    self._add_chunks(step, candidate, self._rows_left(step, num_drafts, urgency))

    def _let_pass(self, step: Step, now_s: float) -> None:
        """Who waits for a first token has waited for one step of the batch lane; not for two.

        Those who have been here for `batch_age_s` go on all the same, so nobody starves.
        """
        prompts = (each.sequence.request.priority for each in step.chunks)
        if not any(each is Priority.INTERACTIVE for each in prompts):
            return
        age_s = self._config.batch_age_s
        decodes, step.decodes = step.decodes, []
        for each in decodes:
            is_line = each.urgency(now_s, age_s) is Priority.BATCH
            (step.skipping if is_line else step.decodes).append(each)

    def _add_chunks(self, step: Step, sequence: Sequence, rows_left: int) -> None:
        if step.num_prompts == self._config.prefills_max:
            return
        start = sequence.num_computed
        for num_tokens, num_rows in self._shapes.pieces(sequence.num_tokens - start, rows_left):
            step.chunks.append(Chunk(sequence, start, num_tokens, num_rows))
            start += num_tokens

    def _has_room(self, step: Step, num_drafts: int, urgency: Priority) -> bool:
        return (
            step.num_prompts < self._config.prefills_max
            and self._rows_left(step, num_drafts, urgency) >= self._shapes.prefill_lens[0]
        )

    def _rows_left(self, step: Step, num_drafts: int, urgency: Priority) -> int:
        """For a prompt of this urgency: one of the batch lane may not make the step a long one, and
        none joins the step of a prompt that somebody waits for.
        """
        prompts = sum(chunk.num_rows for chunk in step.chunks)
        used = prompts
        if step.decodes:
            used += self._shapes.batch(len(step.decodes)) * (1 + num_drafts)
        left = self._config.rows_max - used
        if urgency is Priority.BATCH:
            if any(each.sequence.request.priority is not urgency for each in step.chunks):
                return 0
            # At least the smallest piece there is, or it would never begin.
            return min(left, max(self._config.batch_rows, self._shapes.prefill_lens[0]) - prompts)
        return left

    def _admit(self, step: Step, sequence: Sequence, now_s: float, num_drafts: int) -> bool:
        """Whether more may be admitted; the sequence itself is, unless there is no room."""
        num_tokens = self._reach(sequence, 1 + num_drafts)
        if not self._make_room(step, sequence, num_tokens, now_s):
            if self.running:
                return False
            self._fail(step, sequence)
            return True
        try:
            given = self._blocks.admit(sequence.table, sequence.token_ids, num_tokens)
        except OutOfBlocks:
            return False
        self.waiting.pop(sequence)
        sequence.status = Status.PREFILL
        sequence.slot = self._free_slots.pop()
        sequence.num_computed = given.num_cached
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = given.num_cached
        self.running.append(sequence)
        step.admitted.append(sequence)
        if given.copy is not None:
            step.copies.append(given.copy)
        return True

    def _make_room(self, step: Step, sequence: Sequence, num_tokens: int, now_s: float) -> bool:
        """Preempts less urgent sequences if that makes room; nobody if it would not."""
        if self._fits(sequence, num_tokens):
            return True
        victims = list(self._less_urgent(sequence, now_s))
        num_gained = sum(
            self._blocks.ref_count(block) == 1 for each in victims for block in each.table.blocks
        )
        if not victims or not self._fits(sequence, num_tokens, num_gained, len(victims)):
            return False
        for victim in victims:
            step.drop(victim)
            self.preempt(victim)
            if self._fits(sequence, num_tokens):
                return True
        return False

    def _less_urgent(self, sequence: Sequence, now_s: float) -> Iterator[Sequence]:
        urgency = sequence.urgency(now_s, self._config.batch_age_s)
        for each in sorted(self.running, key=lambda each: self._rank(each, now_s), reverse=True):
            if self._rank(each, now_s)[0] > urgency:
                yield each

    def _fits(
        self, sequence: Sequence, num_tokens: int, num_gained: int = 0, num_leaving: int = 0
    ) -> bool:
        """Beside the blocks for its own tokens one stays free for each running sequence to grow."""
        if not self._free_slots and not num_leaving:
            return False
        needed = self._blocks.num_needed(sequence.table, sequence.token_ids, num_tokens)
        spare = len(self.running) - num_leaving
        return needed + spare <= self._blocks.num_free + num_gained

    def _fail(self, step: Step, sequence: Sequence) -> None:
        """Nobody else runs, and still there is no room: only this sequence can be to blame."""
        self.release(sequence)
        step.failed.append((sequence, "no free block of the key-value cache is left for it"))
