"""Rounds of drafting as an engine makes them, without one: a test chooses what is accepted.

Features come from transformers' own forward over the tokens, so that a draft is compared from its
published formula up: `rounds.drafts[slot]` beside a reference that is given the same tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from backend.models.interface import FeatureTap
from backend.speculate.draft_cache import DraftCache
from backend.speculate.protocol import Proposal, ProposeInput, Proposer
from tests.support.tiny_checkpoints import VOCAB


class States:
    """The target's states of any text, from transformers."""

    def __init__(self, reference: PreTrainedModel) -> None:
        self._reference = reference
        self._known: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def __call__(self, tokens: Sequence[int], tap: FeatureTap) -> Tensor:
        """[positions, H]."""
        return self.of(tokens)[tap.layer + (tap.side == "out")]

    def of(self, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        """Entry 0: what enters the first layer; entry i: what leaves layer i - 1."""
        key = tuple(tokens)
        if key not in self._known:
            with torch.inference_mode():
                out = self._reference(torch.tensor([key]), output_hidden_states=True)
            self._known[key] = tuple(each[0] for each in out.hidden_states)
        return self._known[key]


@dataclass
class Running:
    """One sequence in its slot."""

    tokens: list[int]
    tenant: bytes = b""
    missing: tuple[int, ...] = ()  # positions that the draft cannot know
    drafts: list[int] = field(default_factory=list)


class Rounds:
    """Padding is filled with large numbers: who reads it goes wrong."""

    def __init__(
        self,
        proposer: Proposer,
        states: States,
        num_drafts: int,
        *,
        seed: int = 0,
        batch: int | None = None,
    ) -> None:
        """`batch`: what a decode group is padded to."""
        self.proposer = proposer
        self.states = states
        self.num_drafts = num_drafts
        self.running: dict[int, Running] = {}
        self.rng = random.Random(seed)
        self.last_proposal: Proposal | None = None
        self.before_round: Callable[[], None] = lambda: None
        self._batch = batch

    def prompt(self, num_tokens: int) -> list[int]:
        return [self.rng.randrange(4, VOCAB) for _ in range(num_tokens)]

    def admit(
        self,
        slot: int,
        prompt: Sequence[int],
        *,
        pieces: Sequence[int] | None = None,
        start: int = 0,
        missing: Sequence[int] = (),
        tenant: bytes = b"",
        first_token: int | None = None,
        num_padding: int = 2,
    ) -> None:
        """A prompt, piece by piece; its first `start` tokens came from the target's prefix cache.

        The token behind it is drawn by the test.
        """
        drawn = self.rng.randrange(4, VOCAB) if first_token is None else first_token
        running = Running([*prompt, drawn], tenant, tuple(missing))
        self.running[slot] = running
        sizes = list(pieces) if pieces else [len(prompt) - start]
        assert start + sum(sizes) == len(prompt)
        for number, size in enumerate(sizes):
            is_last = number == len(sizes) - 1
            end = start + size
            proposal = self.proposer.propose(
                ProposeInput(
                    slots=torch.tensor([slot]),
                    last_tokens=torch.tensor([running.tokens[end]]),
                    lengths=torch.tensor([end + 1]),
                    features={
                        tap: self._padded(self.states(prompt, tap)[start:end], size + num_padding)
                        for tap in self.proposer.taps
                    },
                    num_fresh=torch.tensor([size]),
                    num_drafts=self.num_drafts if is_last else 0,
                    histories=[running.tokens if is_last else running.tokens[:end]],
                    tenants=[tenant],
                    slot_ids=[slot],
                    start=start,
                )
            )
            start = end
        self._keep([slot], proposal)

    def round(
        self,
        accepted: Mapping[int, int] | None = None,
        *,
        verified: int | None = None,
        num_drafts: int | None = None,
    ) -> None:
        """The target verifies `verified` drafts of each sequence and accepts as many as `accepted`
        says (by slot; else at random); one more token is drawn. Then new drafts are made."""
        self.before_round()
        if num_drafts is not None:
            self.num_drafts = num_drafts
        slots = list(self.running)
        width = min(len(each.drafts) for each in self.running.values())
        width = width if verified is None else min(verified, width)
        features: dict[FeatureTap, list[Tensor]] = {tap: [] for tap in self.proposer.taps}
        fresh = []
        for slot in slots:
            running = self.running[slot]
            count = (accepted or {}).get(slot, self.rng.randrange(width + 1))
            drafts = running.drafts[:width]
            begin = len(running.tokens) - 1
            for tap, rows in features.items():
                rows.append(self.states([*running.tokens, *drafts], tap)[begin:])
            running.tokens += [*drafts[:count], self.rng.randrange(4, VOCAB)]
            fresh.append(count + 1)
        self._group(slots, features, fresh)

    def release(self, slot: int) -> Running:
        self.proposer.release(slot)
        return self.running.pop(slot)

    def _group(
        self, slots: Sequence[int], features: Mapping[FeatureTap, list[Tensor]], fresh: list[int]
    ) -> None:
        running = [self.running[slot] for slot in slots]
        missing = max(0, (self._batch or 0) - len(slots))

        def column(values: Sequence[int], padding: int) -> Tensor:
            return torch.tensor([*values, *[padding] * missing])

        padded = {
            tap: torch.cat([torch.stack(rows), torch.full((missing, *rows[0].shape), 50.0)])
            for tap, rows in features.items()
        }
        # What a step before left for slot 0 may be more than this one has rows.
        num_fresh = column(fresh, 9)
        proposal = self.proposer.propose(
            ProposeInput(
                slots=column(slots, 0),
                last_tokens=column([each.tokens[-1] for each in running], 0),
                lengths=column([len(each.tokens) for each in running], 1),
                features=padded,
                num_fresh=num_fresh,
                num_drafts=self.num_drafts,
                histories=[each.tokens for each in running],
                tenants=[each.tenant for each in running],
                slot_ids=list(slots),
            )
        )
        self._keep(slots, proposal)

    def _keep(self, slots: Sequence[int], proposal: Proposal | None) -> None:
        self.last_proposal = proposal
        for row, slot in enumerate(slots):
            self.running[slot].drafts = []
            if proposal is not None:
                count = int(proposal.num_valid[row])
                self.running[slot].drafts = proposal.token_ids[row, :count].tolist()

    @staticmethod
    def _padded(rows: Tensor, num_rows: int) -> Tensor:
        filled = torch.full((num_rows, rows.shape[1]), 50.0)
        filled[: len(rows)] = rows
        return filled.unsqueeze(0)


def poison(cache: DraftCache) -> None:
    """NaN wherever no true row lies: rejected ones, scratch, free blocks, padding."""
    blocks = cache.blocks
    is_true = torch.zeros(blocks.num_blocks, blocks.block_size, dtype=torch.bool)
    for lane in (*blocks._lanes.values(), *blocks._kept.values()):
        for row in range(lane.num_rows):
            is_true[lane.blocks[row // blocks.block_size], row % blocks.block_size] = True
    for each in (*cache.keys, *cache.values):
        each.masked_fill_(~is_true[:, None, :, None], torch.nan)


def play(rounds: Rounds, check: Callable[[Rounds], None], *, lookahead: int) -> None:
    """Pieces, mixed lengths, some of the drafts accepted, prefix hits, slots used again.

    `check` is called after everything that makes drafts. `lookahead`: tokens behind a position that
    its row in the draft's cache depends on. Blocks hold 8 tokens.
    """
    long, short = rounds.prompt(21), rounds.prompt(3)
    rounds.admit(1, long, pieces=[8, 3, 10])
    check(rounds)
    rounds.admit(2, short)
    for accepted in ({1: 0, 2: 4}, {1: 3, 2: 0}):
        rounds.round(accepted)
        check(rounds)
    # While the first still writes, one with the same beginning; it goes on within a block.
    known = rounds.running[1].tokens[:20]
    rounds.admit(3, [*known, *rounds.prompt(2)], start=19, pieces=[2, 1])
    rounds.round()
    check(rounds)
    # The slot's next sequence; then one that begins as the sequence that left it.
    gone = rounds.release(1)
    rounds.admit(1, rounds.prompt(9))
    rounds.admit(4, [*gone.tokens[:17], *rounds.prompt(4)], start=16)
    check(rounds)
    rounds.round(num_drafts=2)
    rounds.round(num_drafts=4)
    check(rounds)
    rounds.release(4)
    # Another token behind what was cached: a row that looked ahead is of no use.
    other = [*gone.tokens[:16], (gone.tokens[16] + 1) % VOCAB, *rounds.prompt(3)]
    rounds.admit(4, other, start=16, missing=range(16 - lookahead, 16))
    # Another tenant's rows are nobody else's.
    rounds.release(2)
    rounds.admit(2, [*gone.tokens[:9]], start=8, missing=range(8), tenant=b"other")
    check(rounds)
    rounds.round()
    rounds.round({1: 4, 2: 4, 3: 4, 4: 4})
    check(rounds)
