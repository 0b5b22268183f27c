"""Verification as a whole, with bias, penalties and filters, gives exactly the target's text.

Of a vocabulary of four tokens every text of a round is listed with its probability. Verification is
a function of uniform numbers: they are put in its hands here, where its answer changes is found by
bisection, and the distances between such places are probabilities (as in `test_rejection.py`, which
does so for the rules alone). What is expected is computed by hand, one token at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from backend.sampling import sampler as sampling
from backend.sampling import verify as verifying
from backend.sampling.params import SamplingParams
from backend.sampling.rejection import Accepted, Drafted, Rule, block, standard
from backend.sampling.sampler import Sampler
from backend.sampling.verify import verify
from backend.speculate.protocol import Proposal
from kernels.dispatch import Ops
from tests.backend.unit.sampling.test_rejection import (
    OPS,
    TOLERANCE,
    bars,
    behind,
    bisected,
    repeated,
)
from tests.support.sampling_requests import Request, random_logits

VOCAB, NUM_DRAFTS = 4, 2
PROMPT, OUTPUT = (0, 2), (1, 1)
START = len(PROMPT) + len(OUTPUT)

Text = tuple[int, ...]

# Penalties that float32 holds exactly: by hand they are applied in another order.
ASKED = {
    "plain": SamplingParams(max_tokens=9, temperature=0.8),
    "filtered": SamplingParams(max_tokens=9, temperature=1.3, top_k=3, min_p=0.05),
    "biased": SamplingParams(max_tokens=9, logit_bias={0: 1.5, 3: -2.0}),
    "counted": SamplingParams(max_tokens=9, frequency_penalty=0.75, presence_penalty=-0.5),
    "everything": SamplingParams(
        max_tokens=9, temperature=1.2, top_k=3, logit_bias={2: 0.75},
        repetition_penalty=1.5, frequency_penalty=-0.25, presence_penalty=0.5,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """Raw logits of the target behind every text of a round, and what the draft draws from."""

    params: SamplingParams
    logits: dict[Text, Tensor]
    draft: dict[Text, Tensor]

    @classmethod
    def random(cls, params: SamplingParams, seed: int) -> World:
        texts = [
            text
            for length in range(NUM_DRAFTS + 1)
            for text in itertools.product(range(VOCAB), repeat=length)
        ]
        target, other = random_logits(2, len(texts), VOCAB, seed=seed)
        return cls(
            params,
            dict(zip(texts, target, strict=True)),
            dict(zip(texts, other.double().softmax(1), strict=True)),
        )

    def p(self, text: Text) -> list[float]:
        """By hand: what a plain step behind this text draws from."""
        request = Request(self.params, 0, PROMPT)
        request.output = [*OUTPUT, *text]
        row = request.adjusted(self.logits[text]).tolist()
        mass = [math.exp((x - max(row)) / self.params.temperature) for x in row]
        if self.params.top_k:
            last = sorted(row, reverse=True)[self.params.top_k - 1]
            mass = [m if x >= last else 0.0 for m, x in zip(mass, row, strict=True)]
        total = math.fsum(mass)
        above = [math.fsum(m for m, y in zip(mass, row, strict=True) if y > x) for x in row]
        kept = [
            m if a < self.params.top_p * total else 0.0 for m, a in zip(mass, above, strict=True)
        ]
        kept = [m if m >= self.params.min_p else 0.0 for m in kept]
        return [m / math.fsum(kept) for m in kept]

    def probability(self, text: Text) -> float:
        return math.prod(self.p(text[:place])[token] for place, token in enumerate(text))

    def drafts(self) -> Iterator[tuple[Text, float]]:
        for text in itertools.product(range(VOCAB), repeat=NUM_DRAFTS):
            shares = (float(self.draft[text[:at]][token]) for at, token in enumerate(text))
            yield text, math.prod(shares)

    def drafted(self, texts: list[Text], num_valid: int) -> Drafted:
        """With the raw logits: verification is to adjust them."""
        ends = range(NUM_DRAFTS + 1)
        return Drafted(
            logits=torch.stack(
                [torch.stack([self.logits[text[:end]] for end in ends]) for text in texts]
            ),
            temperature=torch.ones(len(texts)),
            draft_ids=torch.tensor(texts),
            num_valid=torch.full((len(texts),), num_valid),
            draft_probs=torch.stack(
                [torch.stack([self.draft[text[:end]] for end in ends[:-1]]) for text in texts]
            ),
        )


class Hands:
    """`verify` with its noise put in. A slot's seed says which row of `noise` is meant."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, params: SamplingParams) -> None:
        self._params = params
        self._noise = torch.empty(0)
        self._samplers: dict[int, Sampler] = {}
        monkeypatch.setattr(sampling, "uniforms", self._uniforms)
        monkeypatch.setattr(verifying, "round_uniforms", self._round_uniforms)

    def tokens(self, given: Drafted, noise: Tensor, rule: Rule | None) -> tuple[Tensor, Tensor]:
        """[S, N + 1] tokens and how many of them stand [S]. None: drafts are matched."""
        num = given.draft_ids.shape[0]
        sampler = self._sampler(num)
        self._noise = noise
        probs = None if rule is None else given.draft_probs
        slots = torch.arange(1, num + 1)
        got = verify(
            given.logits.float(),
            Proposal(given.draft_ids, given.num_valid, probs),
            slots,
            torch.full_like(slots, START),
            sampler,
            sampler.traits([self._params]),
            rule=rule or block,
        )
        return got.tokens, got.num_tokens

    def as_rule(self, rule: Rule) -> Rule:
        def whole(given: Drafted, noise: Tensor, ops: Ops) -> Accepted:
            tokens, num_tokens = self.tokens(given, noise, rule)
            last = tokens.gather(1, num_tokens.unsqueeze(1) - 1).squeeze(1)
            return Accepted(num_tokens - 1, last)

        return whole

    def _sampler(self, num: int) -> Sampler:
        if num not in self._samplers:
            made = Sampler(VOCAB, num + 1, "cpu", ops=OPS)
            for slot in range(1, num + 1):
                made.set_slot(slot, self._params, slot - 1, PROMPT, OUTPUT)
            self._samplers[num] = made
        return self._samplers[num]

    def _uniforms(self, seeds: Tensor, positions: Tensor) -> Tensor:
        return self._noise[seeds, positions - START]

    def _round_uniforms(self, seeds: Tensor, starts: Tensor, num: int) -> Tensor:
        assert starts.unique().tolist() == [START]
        return self._noise[seeds, :num]


def spoken(world: World, hands: Hands, rule: Rule, num_valid: int) -> dict[Text, float]:
    """Every text of N + 1 tokens with its probability: the target goes on behind the round."""
    drafts = dict(world.drafts())
    given = world.drafted(list(drafts), num_valid)
    whole = hands.as_rule(rule)
    bar = bars(whole, given)
    one = torch.ones_like(bar[:, :1])
    if rule is standard:
        count = torch.cat((one, bar.cumprod(1)), 1) * torch.cat((1 - bar, one), 1)
    else:  # the largest place whose own number is small enough decides
        none_behind = torch.cat(((1 - bar).flip(1).cumprod(1).flip(1), one), 1)
        count = none_behind * torch.cat((one, bar), 1)
    found: dict[Text, float] = {}
    for num_accepted in range(num_valid + 1):
        last = behind(whole, given, num_accepted)
        for row, (text, mass) in enumerate(drafts.items()):
            chance = mass * float(count[row, num_accepted])
            for token, share in enumerate(last[row].tolist()):
                if chance > 0.0:
                    _add(world, found, (*text[:num_accepted], token), chance * share)
    return found


def _add(world: World, found: dict[Text, float], text: Text, mass: float) -> None:
    if len(text) == NUM_DRAFTS + 1:
        found[text] = found.get(text, 0.0) + mass
    elif mass > 0.0:
        for token, share in enumerate(world.p(text)):
            _add(world, found, (*text, token), mass * share)


def matched(world: World, hands: Hands, draft: Text, num_valid: int) -> dict[Text, float]:
    """The same for one draft that is matched with the target's own draws."""
    given = world.drafted([draft], num_valid)
    every = repeated(given, VOCAB)
    found: dict[Text, float] = {}
    noise, mass = torch.full((VOCAB, NUM_DRAFTS + 1), 0.5, dtype=torch.float64), 1.0
    for place in range(NUM_DRAFTS + 1):
        marked = noise.clone()

        def is_at_most(marks: Tensor, marked: Tensor = marked, place: int = place) -> Tensor:
            marked[:, place] = marks
            tokens, num_tokens = hands.tokens(every, marked, None)
            assert int(num_tokens.min()) > place
            return tokens[:, place] <= torch.arange(VOCAB)

        ends = bisected(is_at_most, VOCAB)
        shares = ends.diff(prepend=torch.zeros(1, dtype=torch.float64)).tolist()
        stands = draft[place] if place < num_valid else None
        for token, share in enumerate(shares):
            if token != stands:
                _add(world, found, (*draft[:place], token), mass * share)
        if stands is None or shares[stands] == 0.0:
            break
        mass *= shares[stands]
        noise[:, place] = ends[stands] - shares[stands] / 2  # a number that draws the draft
    return found


def check(world: World, found: dict[Text, float]) -> None:
    assert math.fsum(found.values()) == pytest.approx(1.0, abs=TOLERANCE)
    for text in itertools.product(range(VOCAB), repeat=NUM_DRAFTS + 1):
        assert found.get(text, 0.0) == pytest.approx(world.probability(text), abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [standard, block])
@pytest.mark.parametrize("asked", ASKED)
def test_drawn_drafts_change_no_probability(
    monkeypatch: pytest.MonkeyPatch, asked: str, rule: Rule
) -> None:
    world = World.random(ASKED[asked], seed=1)
    hands = Hands(monkeypatch, world.params)
    for num_valid in (NUM_DRAFTS, 1):
        check(world, spoken(world, hands, rule, num_valid))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_one_hot_drafts_change_no_probability(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Whatever is drafted."""
    world = World.random(ASKED[asked], seed=7)
    hands = Hands(monkeypatch, world.params)
    for draft in ((0, 1), (1, 1), (2, 3), (3, 0)):
        check(world, matched(world, hands, draft, NUM_DRAFTS))
    check(world, matched(world, hands, (1, 2), 1))


@pytest.mark.slow
def test_penalties_that_do_not_count_the_drafts_before_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World.random(ASKED["counted"], seed=1)
    hands = Hands(monkeypatch, world.params)

    def without(asked: verifying._Asked) -> Iterator[tuple[int, Tensor]]:
        for row in range(asked.logits.shape[1]):
            yield row, asked.sampler.tables.counts[asked.slots]

    monkeypatch.setattr(verifying._Asked, "counts", without)

    found = spoken(world, hands, standard, NUM_DRAFTS)

    assert max(abs(found[text] - world.probability(text)) for text in found) > 1e-3


@pytest.mark.slow
def test_the_residual_of_one_draft_behind_a_block_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(p - q)+ where (P · p - q)+ belongs: too little for a chi-square test of a few thousands."""
    world = World.random(ASKED["plain"], seed=1)
    hands = Hands(monkeypatch, world.params)

    def mutated(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
        num_accepted = block(given, uniforms, ops).num_accepted
        places = torch.arange(NUM_DRAFTS)
        tokens = ops.residual_pick(
            given.logits,
            num_accepted,
            uniforms[:, -1],
            temperature=given.temperature,
            draft_ids=torch.where(places < given.num_valid.unsqueeze(1), given.draft_ids, -1),
            draft_probs=given.draft_probs,
        )
        return Accepted(num_accepted, tokens)

    found = spoken(world, hands, mutated, NUM_DRAFTS)

    assert max(abs(found[text] - world.probability(text)) for text in found) > 1e-3
