"""Scheduler and block manager without a model: what a cache would hold is checked, not computed.

Each place of each block holds a fingerprint of the tokens up to there. Whatever a sequence is about
to read must be the fingerprints of its own tokens, and its tenant's: that finds blocks used twice,
prefixes shared wrongly and copies forgotten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from backend.config import EngineConfig, ShapeSet
from backend.engine.block_manager import BlockCopy, BlockManager, BlockTable
from backend.engine.interface import EngineRequest, FinishReason, Priority
from backend.engine.scheduler import Chunk, Scheduler, Step
from backend.engine.sequence import Sequence, Status
from backend.engine.shapes import Shapes
from backend.sampling.params import SamplingParams

BLOCK_SIZE = 4
CONTEXT_LEN = 48


def small_config(**changes: object) -> EngineConfig:
    defaults: dict[str, object] = {
        "block_size": BLOCK_SIZE,
        "sequences_max": 4,
        "rows_max": 24,
        "prefills_max": 2,
        "batch_age_s": 20.0,
        "num_drafts_max": 2,
        "shapes": ShapeSet(decode_batches=(1, 2, 4), prefill_lens=(2, 4, 8)),
    }
    return EngineConfig(**{**defaults, **changes})  # type: ignore[arg-type]


@dataclass
class Forked:
    """A table of the test's own that shares the beginning of a sequence."""

    table: BlockTable
    tenant: bytes
    token_ids: list[int]
    has_written: bool = False


@dataclass
class SchedulerWorld:
    num_blocks: int = 24
    config: EngineConfig = field(default_factory=small_config)

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.blocks = BlockManager(
            self.num_blocks, BLOCK_SIZE, is_prefix_cached=self.config.is_prefix_cached
        )
        self.released_slots: list[int] = []
        self.shapes = Shapes.of(self.config, CONTEXT_LEN)
        self.scheduler = Scheduler(
            self.config,
            self.shapes,
            self.blocks,
            CONTEXT_LEN,
            self.released_slots.append,
        )
        self.content: dict[tuple[int, int], object] = {}
        self.sequences: list[Sequence] = []
        self.forks: list[Forked] = []
        self.failed: list[Sequence] = []
        self.num_steps = 0
        self.has_forked = False

    def submit(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 4,
        priority: Priority = Priority.INTERACTIVE,
        tenant: bytes = b"",
    ) -> Sequence:
        number = len(self.sequences)
        request = EngineRequest(
            str(number), tuple(prompt), SamplingParams(max_tokens=max_tokens), priority, tenant
        )
        table = self.blocks.new_table(tenant)
        sequence = Sequence(request, number, self.now_s, 0, table)
        self.sequences.append(sequence)
        self.scheduler.waiting.add(sequence)
        return sequence

    @property
    def unfinished(self) -> list[Sequence]:
        return [each for each in self.sequences if each.status is not Status.FINISHED]

    def cancel(self, sequence: Sequence) -> None:
        sequence.finish = FinishReason.CANCELLED
        self.scheduler.release(sequence)

    def step(self, draw: list[int], num_drafts: int = 0, seconds: float = 1.0) -> Step:
        """One step in which every row that samples draws from `draw` in turn."""
        self.now_s += seconds
        self.num_steps += 1
        step = self.scheduler.schedule(self.now_s, num_drafts)
        self.failed += [sequence for sequence, _ in step.failed]
        self._check_step(step)
        self._copy(step.copies)
        self._write(step)
        for chunk in step.chunks:
            self._commit_chunk(chunk, draw[self.num_steps % len(draw)])
        for number, sequence in enumerate(step.decodes):
            num_drawn = 1 + (self.num_steps + number) % (1 + step.num_drafts)
            drawn = [draw[(number + place) % len(draw)] for place in range(num_drawn)]
            self._commit_decode(sequence, drawn)
        return step

    def drain(self, steps_max: int) -> None:
        for _ in range(steps_max):
            if not self.unfinished:
                return
            self.step([1])
        raise AssertionError(f"unfinished after {steps_max} steps: {self.unfinished}")

    def fork(self, sequence: Sequence, num_tokens: int) -> Forked:
        self.has_forked = True
        forked = Forked(
            self.blocks.fork(sequence.table, num_tokens),
            sequence.request.tenant,
            sequence.token_ids[:num_tokens],
        )
        self.forks.append(forked)
        return forked

    def write_fork(self, forked: Forked, token_id: int) -> None:
        """One more token of the fork's own; its last block is copied if it is not its own."""
        index = len(forked.token_ids) // BLOCK_SIZE
        if index == len(forked.table.blocks):
            if not self.blocks.grow(forked.table, len(forked.token_ids) + 1):
                return
        elif self.blocks.num_free:
            copy = self.blocks.make_writable(forked.table, index)
            self._copy([copy] if copy else [])
        else:
            return
        forked.token_ids.append(token_id)
        self._set(forked.table, forked.tenant, forked.token_ids, len(forked.token_ids) - 1)

    def drop_fork(self, forked: Forked) -> None:
        self.forks.remove(forked)
        self.blocks.release(forked.table)

    def check(self) -> None:
        """No block leaked, none used twice, every table readable."""
        running = self.scheduler.running
        tables = [each.table for each in running] + [each.table for each in self.forks]
        held = Counter(block for table in tables for block in table.blocks)
        for table in tables:
            assert 0 not in table.blocks
            assert len(set(table.blocks)) == len(table.blocks)
        for block in range(1, self.num_blocks):
            assert self.blocks.ref_count(block) == held[block]
        assert self.blocks.num_used == len(held)
        slots = [each.slot for each in running]
        assert len(set(slots)) == len(slots) <= self.config.sequences_max
        assert 0 not in slots
        for each in self.sequences:
            if each.status in (Status.WAITING, Status.FINISHED):
                assert not each.table.blocks
                assert each.slot == 0
        for each in running:
            self._check_readable(each.table, each.request.tenant, each.token_ids, each.num_computed)
        for forked in self.forks:
            tokens = forked.token_ids
            self._check_readable(forked.table, forked.tenant, tokens, len(tokens))

    def _check_step(self, step: Step) -> None:
        num_rows = sum(chunk.num_rows for chunk in step.chunks)
        if step.decodes:
            num_rows += self.shapes.batch(len(step.decodes)) * (1 + step.num_drafts)
        assert num_rows <= self.config.rows_max
        assert step.num_prompts <= self.config.prefills_max
        decoding = [each for each in self.scheduler.running if each.status is Status.DECODE]
        if any(chunk.sequence.request.priority is Priority.INTERACTIVE for chunk in step.chunks):
            age_s = self.config.batch_age_s
            decoding = [
                each for each in decoding
                if each.request.priority is Priority.INTERACTIVE
                or self.now_s - each.arrived_s >= age_s
            ]  # fmt: skip
        assert set(map(id, step.decodes)) == set(map(id, decoding))
        assert all(chunk.num_rows in self.shapes.prefill_lens for chunk in step.chunks)

    def _copy(self, copies: list[BlockCopy]) -> None:
        before = dict(self.content)
        for copy in copies:
            for offset in range(BLOCK_SIZE):
                self.content[copy.target, offset] = before.get((copy.source, offset))

    def _write(self, step: Step) -> None:
        for sequence in step.decodes:
            tenant, tokens = sequence.request.tenant, sequence.token_ids
            self._check_readable(sequence.table, tenant, tokens, len(tokens) - 1)
            self._set(sequence.table, tenant, tokens, len(tokens) - 1)
            # Rejected drafts leave something behind that nobody may take for a token.
            for place in range(len(tokens), min(len(tokens) + step.num_drafts, CONTEXT_LEN)):
                block = sequence.table.blocks[place // BLOCK_SIZE]
                self.content[block, place % BLOCK_SIZE] = "draft"
        for chunk in step.chunks:
            sequence = chunk.sequence
            tenant, tokens = sequence.request.tenant, sequence.token_ids
            self._check_readable(sequence.table, tenant, tokens, chunk.start)
            for place in range(chunk.start, chunk.end):
                self._set(sequence.table, tenant, tokens, place)

    def _commit_chunk(self, chunk: Chunk, token_id: int) -> None:
        is_last = chunk.is_last
        self.scheduler.commit(chunk.sequence, chunk.end)
        if is_last:
            self._take(chunk.sequence, [token_id])

    def _commit_decode(self, sequence: Sequence, drawn: list[int]) -> None:
        num_before = sequence.num_tokens
        self._take(sequence, drawn)
        accepted = sequence.token_ids[num_before : num_before + len(drawn) - 1]
        for place in range(num_before, num_before + len(accepted)):
            if sequence.status is not Status.FINISHED:
                self._set(sequence.table, sequence.request.tenant, sequence.token_ids, place)
        if sequence.status is not Status.FINISHED:
            self.scheduler.commit(sequence, sequence.num_tokens - 1)

    def _take(self, sequence: Sequence, drawn: list[int]) -> None:
        sequence.take(drawn, frozenset({0}), CONTEXT_LEN)
        if sequence.finish is not None:
            self.scheduler.release(sequence)

    def _set(self, table: BlockTable, tenant: bytes, tokens: list[int], place: int) -> None:
        index = place // BLOCK_SIZE
        block = table.blocks[index]
        # Of a fork the first sequence goes on writing; its readers see only what was there before.
        is_forked = any(block in each.table.blocks for each in self.forks)
        assert is_forked or self.blocks.is_own(table, index)
        self.content[block, place % BLOCK_SIZE] = (tenant, tuple(tokens[: place + 1]))

    def _check_readable(
        self, table: BlockTable, tenant: bytes, tokens: list[int], num_tokens: int
    ) -> None:
        for place in range(num_tokens):
            block = table.blocks[place // BLOCK_SIZE]
            assert self.content[block, place % BLOCK_SIZE] == (tenant, tuple(tokens[: place + 1]))
