"""Draft methods for tests: they know the text, or look at features, or go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.models.interface import FeatureTap
from backend.speculate.protocol import Proposal, ProposeInput

# (what was written so far, how many are wanted) → drafts, at most so many.
Guess = Callable[[Sequence[int], int], Sequence[int]]


@dataclass
class GuessingProposer:
    """Asks a function on the host for each sequence's drafts."""

    guess: Guess
    num_drafts_max: int = 3
    taps: tuple[FeatureTap, ...] = ()
    name: str = "guessing"
    seen: list[ProposeInput] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    def propose(self, given: ProposeInput) -> Proposal | None:
        self.seen.append(given)
        num_sequences, num_drafts = given.slots.shape[0], given.num_drafts
        token_ids = torch.full((num_sequences, num_drafts), 2**40)  # nonsense where not valid
        num_valid = torch.zeros(num_sequences, dtype=torch.int64)
        for row, history in enumerate(given.histories):
            drafts = list(self.guess(history, num_drafts))[:num_drafts]
            token_ids[row, : len(drafts)] = torch.tensor(drafts, dtype=torch.int64)
            num_valid[row] = len(drafts)
        return Proposal(token_ids, num_valid) if int(num_valid.sum()) else None

    def release(self, slot: int) -> None:
        self.released.append(slot)


class RepeatingProposer:
    """Drafts the last token again and again, on the device alone."""

    name = "repeating"
    num_drafts_max = 3

    def __init__(self, taps: tuple[FeatureTap, ...] = ()) -> None:
        self.taps = taps

    def propose(self, given: ProposeInput) -> Proposal | None:
        token_ids = given.last_tokens.unsqueeze(1).repeat(1, given.num_drafts)
        return Proposal(token_ids, torch.full_like(given.slots, given.num_drafts))

    def release(self, slot: int) -> None:
        pass


@dataclass(frozen=True)
class Shown:
    """One committed row that a draft method was shown: the tokens up to it, and its features."""

    fed: tuple[int, ...]
    features: dict[FeatureTap, Tensor]


@dataclass
class TappedProposer(GuessingProposer):
    """Also notes every committed row that it is shown, in order."""

    name: str = "tapped"
    shown: list[Shown] = field(default_factory=list)

    def propose(self, given: ProposeInput) -> Proposal | None:
        for row, history in enumerate(given.histories):
            end = int(given.lengths[row]) - 1
            num_fresh = int(given.num_fresh[row])
            # Behind the newest token that the target has computed stands the last one.
            assert len(history) in (end, end + 1)
            if len(history) == end + 1:
                assert history[-1] == int(given.last_tokens[row])
            for place in range(num_fresh):
                fed = tuple(history[: end - num_fresh + place + 1])
                features = {tap: each[row, place].clone() for tap, each in given.features.items()}
                self.shown.append(Shown(fed, features))
        return super().propose(given)


def knowing(texts: Sequence[Sequence[int]], *, hit_rate: float = 1.0, seed: int = 0) -> Guess:
    """Drafts what follows in one of the texts, or, at random, something else."""
    rng = random.Random(seed)

    def guess(history: Sequence[int], num_drafts: int) -> list[int]:
        for text in texts:
            if list(text[: len(history)]) == list(history):
                drafts = list(text[len(history) : len(history) + num_drafts])
                return [each if rng.random() < hit_rate else (each + 1) % 300 for each in drafts]
        return []

    return guess


def propose_input(
    histories: Sequence[Sequence[int]],
    limits: Sequence[int],
    *,
    tenants: Sequence[bytes] | None = None,
    pad: int = 0,
) -> ProposeInput:
    """What a method that looks texts up is given; sequence i has slot i + 1."""
    num = len(histories)
    lengths = torch.tensor([*map(len, histories), *[1] * pad])
    return ProposeInput(
        slots=torch.tensor([*range(1, num + 1), *[0] * pad]),
        last_tokens=torch.tensor([*(each[-1] for each in histories), *[0] * pad]),
        lengths=lengths,
        features={},
        num_fresh=torch.ones_like(lengths),
        num_drafts=max(limits),
        histories=histories,
        tenants=tenants or [b""] * num,
        slot_ids=list(range(1, num + 1)),
        limits=limits,
    )
