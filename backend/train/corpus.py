"""Texts that a target wrote, and batches of them.

Shapes: B texts, L positions of the longest, F features, H hidden.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Text:
    """`prompt` is read, `answer` is what the target wrote. `is_greedy`: without any noise."""

    kind: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    is_greedy: bool = True

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt + self.answer

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class States:
    """What the target makes of one text, for each position.

    `features` [L, F H] in the order of the taps; `last` [L, H] behind its last norm.
    """

    features: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded with token 0, which is no answer."""

    token_ids: Tensor  # [B, L] int64
    is_answer: Tensor  # [B, L] bool: the target wrote it
    features: Tensor  # [B, L, F H]
    last: Tensor  # [B, L, H]

    @property
    def num_rows(self) -> int:
        return int(self.token_ids.numel())


def split(texts: Sequence[Text], num_held_out: int, seed: int) -> tuple[list[Text], list[Text]]:
    """(training, held out): greedy ones are held out, for which hits are counted exactly."""
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    held = set([each for each in order if texts[each].is_greedy][:num_held_out])
    return (
        [text for index, text in enumerate(texts) if index not in held],
        [texts[index] for index in sorted(held)],
    )


def batches(lengths: Sequence[int], rows_max: int, seed: int) -> list[list[int]]:
    """All texts once, those of about one length together, so that little is padded.

    No batch has more than `rows_max` positions, the padding among them, unless a single text has.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    order = sorted(range(len(lengths)), key=lambda each: (lengths[each], rng.random()))
    made: list[list[int]] = []
    for index in order:
        # Sorted upward: the newest is the longest, and what it makes of the padding counts.
        if made and (len(made[-1]) + 1) * lengths[index] <= rows_max:
            made[-1].append(index)
        else:
            made.append([index])
    rng.shuffle(made)
    return made


def collate(texts: Sequence[Text], states: Sequence[States]) -> Batch:
    """One batch. The texts' own order is kept."""
    size, longest = len(texts), max(map(len, texts))
    token_ids = torch.zeros(size, longest, dtype=torch.int64)
    is_answer = torch.zeros(size, longest, dtype=torch.bool)
    first = states[0]
    features = first.features.new_zeros(size, longest, first.features.shape[1])
    last = first.last.new_zeros(size, longest, first.last.shape[1])
    for index, (text, made) in enumerate(zip(texts, states, strict=True)):
        length = len(text)
        token_ids[index, :length] = torch.tensor(text.token_ids)
        is_answer[index, len(text.prompt) : length] = True
        features[index, :length] = made.features
        last[index, :length] = made.last
    return Batch(token_ids.to(last.device), is_answer.to(last.device), features, last)
