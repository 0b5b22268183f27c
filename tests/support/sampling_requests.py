"""A sampler with some requests in it, and the slow way to draw one token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from backend.sampling.params import SamplingParams
from backend.sampling.sampler import Sampler

VOCAB = 23
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15

EVERY_KIND = (
    SamplingParams(max_tokens=9, temperature=0.0),
    SamplingParams(max_tokens=9),
    SamplingParams(max_tokens=9, temperature=0.6, top_k=4),
    SamplingParams(max_tokens=9, top_p=0.7, min_p=0.02),
    SamplingParams(max_tokens=9, repetition_penalty=1.7),
    SamplingParams(max_tokens=9, temperature=0.0, frequency_penalty=0.9, presence_penalty=0.4),
    SamplingParams(max_tokens=9, logit_bias={3: 2.5, 7: -100.0}, logprobs=2),
    SamplingParams(
        max_tokens=9, temperature=1.4, top_k=9, top_p=0.9, frequency_penalty=-0.5,
        presence_penalty=1.1, repetition_penalty=0.8, logit_bias={1: 1.0}, logprobs=0,
    ),
)  # fmt: skip


def mix_by_hand(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform_by_hand(seed: int, position: int) -> float:
    hashed = mix_by_hand((mix_by_hand((seed + GAMMA) & MASK) + (position + 1) * GAMMA) & MASK)
    return ((hashed >> 12) + 0.5) / 2**52


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2.0


class Request:
    """One request by hand: Python numbers, one token at a time."""

    def __init__(self, params: SamplingParams, seed: int, prompt: Sequence[int]) -> None:
        self.params = params
        self.seed = seed
        self.prompt = list(prompt)
        self.output: list[int] = []

    def adjusted(self, logits: Tensor) -> Tensor:
        params = self.params
        row = logits.clone()
        for token, bias in params.logit_bias.items():
            row[token] += bias
        for token in {*self.prompt, *self.output}:
            penalty = params.repetition_penalty
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        for token in set(self.output):
            row[token] -= params.frequency_penalty * self.output.count(token)
            row[token] -= params.presence_penalty
        return row

    def choose(self, logits: Tensor, position: int) -> int:
        """The next token after prompt and output."""
        row = self.adjusted(logits)
        if self.params.is_greedy:
            return int(row.argmax())
        return _draw(row.tolist(), self.params, uniform_by_hand(self.seed, position))


def _draw(row: list[float], params: SamplingParams, uniform: float) -> int:
    best = max(row)
    mass = [math.exp((x - best) / params.temperature) for x in row]
    if params.top_k:
        last = sorted(row, reverse=True)[params.top_k - 1]
        mass = [m if x >= last else 0.0 for m, x in zip(mass, row, strict=True)]
    total = math.fsum(mass)
    above = [math.fsum(m for m, y in zip(mass, row, strict=True) if y > x) for x in row]
    mass = [m if a < params.top_p * total else 0.0 for m, a in zip(mass, above, strict=True)]
    mass = [m if m >= params.min_p else 0.0 for m in mass]
    target, passed = uniform * math.fsum(mass), 0.0
    for token, m in enumerate(mass):
        passed += m
        if passed > target:
            return token
    raise AssertionError("the uniform is below 1")


def engine_of(requests: Sequence[Request], vocab_size: int = VOCAB) -> Sampler:
    """Request i is in slot i + 1."""
    sampler = Sampler(vocab_size, len(requests) + 1, "cpu")
    for slot, each in enumerate(requests, 1):
        sampler.set_slot(slot, each.params, each.seed, each.prompt, each.output)
    return sampler


def some_requests(kinds: Sequence[SamplingParams] = EVERY_KIND) -> list[Request]:
    return [
        Request(params, 1000 + 77 * index, [index, 2, 2, 5]) for index, params in enumerate(kinds)
    ]
