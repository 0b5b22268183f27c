"""Which rule verifies a request's drafts, and that rounds of rejection add up to the target."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from backend.sampling.params import SamplingParams
from backend.sampling.rejection import Rule, block, standard
from backend.sampling.sampler import Sampler
from backend.sampling.verify import verify
from backend.speculate.protocol import Proposal
from tests.support.sampling_requests import (
    EVERY_KIND,
    VOCAB,
    Request,
    engine_of,
    random_logits,
)

NUM_DRAFTS = 3
RULES = pytest.mark.parametrize("rule", [standard, block])


def some_proposal(num: int, seed: int) -> Proposal:
    """Drawn from what it says it was drawn from, as far as a few rows can show."""
    probs = random_logits(num, NUM_DRAFTS, VOCAB, seed=seed).double().softmax(2)
    generator = torch.Generator().manual_seed(seed)
    flat = torch.multinomial(probs.flatten(0, 1), 1, generator=generator)
    valid = torch.randint(0, NUM_DRAFTS + 1, (num,), generator=generator)
    return Proposal(flat.view(num, NUM_DRAFTS), valid, probs.float())


def seeded(requests: list[Request]) -> list[Request]:
    return [
        Request(replace(each.params, seed=each.seed), each.seed, each.prompt) for each in requests
    ]


@RULES
def test_seeded_and_greedy_requests_are_matched_the_others_judged_by_the_rule(rule: Rule) -> None:
    """All kinds of requests in one batch, with and without a seed, each as if it were alone."""
    free = [Request(each, 40 + index, [index, 2, 5]) for index, each in enumerate(EVERY_KIND)]
    requests = [*free, *seeded(free)]
    sampler = engine_of(requests)
    num = len(requests)
    logits = random_logits(num, NUM_DRAFTS + 1, VOCAB, seed=8)
    proposal = some_proposal(num, seed=9)
    slots, positions = torch.arange(1, num + 1), torch.arange(num) + 3
    traits = sampler.traits([each.params for each in requests])

    together = verify(logits, proposal, slots, positions, sampler, traits, rule=rule)

    assert proposal.probs is not None
    for row, request in enumerate(requests):
        one = slice(row, row + 1)
        is_free = request.params.seed is None and not request.params.is_greedy
        probs = proposal.probs[one] if is_free else None
        alone = verify(
            logits[one],
            Proposal(proposal.token_ids[one], proposal.num_valid[one], probs),
            slots[one],
            positions[one],
            sampler,
            sampler.traits([request.params]),
            rule=rule,
        )
        assert together.tokens[one].tolist() == alone.tokens.tolist()
        assert together.num_tokens[one].tolist() == alone.num_tokens.tolist()
    assert together.num_drafted is proposal.num_valid
    assert int((together.num_tokens - 1 - proposal.num_valid).max()) <= 0


def test_rejection_accepts_more_of_what_was_drawn_than_matching_does() -> None:
    """Drafts drawn from the target's own distribution always stand; a match needs luck."""
    params = SamplingParams(max_tokens=1, temperature=1.0)
    requests = [Request(params, seed, [1, 2]) for seed in range(60)]
    logits = random_logits(1, NUM_DRAFTS + 1, VOCAB, seed=3).expand(60, -1, -1).contiguous()
    probs = logits[:, :-1].double().softmax(2)
    drafts = torch.multinomial(probs.flatten(0, 1), 1).view(60, NUM_DRAFTS)
    slots = torch.arange(1, 61)
    counts = []
    for each in (requests, seeded(requests)):
        sampler = engine_of(each)
        traits = sampler.traits([request.params for request in each])
        proposal = Proposal(drafts, torch.full_like(slots, NUM_DRAFTS), probs)
        counts.append(verify(logits, proposal, slots, slots, sampler, traits).num_tokens)

    assert counts[0].tolist() == [NUM_DRAFTS + 1] * 60
    assert counts[1].double().mean() < NUM_DRAFTS


class Chain:
    """A target and a draft that look at the last two tokens, for many texts at once."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.target, self.draft = random_logits(2, vocab_size * vocab_size, vocab_size, seed=seed)

    def rows(self, text: Tensor) -> Tensor:
        """[S, L] → row of the tables [S]."""
        return text[:, -2] * self.vocab_size + text[:, -1]


def drawn(chain: Chain, params: SamplingParams, rule: Rule, num: int, seed: int) -> np.ndarray:
    """Three tokens of so many texts, in as many rounds of two drafts as it takes."""
    sampler = Sampler(chain.vocab_size, num + 1, "cpu")
    for slot in range(1, num + 1):
        sampler.set_slot(slot, params, seed * num + slot)
    slots = torch.arange(1, num + 1)
    traits = sampler.traits([params])
    generator = torch.Generator().manual_seed(seed)
    texts = torch.zeros((num, 12), dtype=torch.int64)
    texts[:, 1] = 1
    lengths = torch.full((num,), 2)
    places = torch.arange(3)
    while int(lengths.min()) < 5:
        # Whoever has its three tokens goes on as well, but nobody looks at them.
        ends = lengths.clamp(max=9)
        text = texts.gather(1, ends.unsqueeze(1) + torch.tensor([-2, -1]))
        logits, drafts, probs = [chain.target[chain.rows(text)]], [], []
        for _ in range(2):
            probs.append(chain.draft[chain.rows(text)].double().softmax(1))
            drafts.append(torch.multinomial(probs[-1], 1, generator=generator))
            text = torch.cat((text, drafts[-1]), 1)
            logits.append(chain.target[chain.rows(text)])
        proposal = Proposal(
            torch.cat(drafts, 1), torch.full_like(slots, 2), torch.stack(probs, 1).float()
        )
        got = verify(torch.stack(logits, 1), proposal, slots, ends, sampler, traits, rule=rule)
        texts.scatter_(1, ends.unsqueeze(1) + places, got.tokens)
        lengths = ends + got.num_tokens
    return texts[:, 2:5].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 3])
@RULES
def test_a_hundred_thousand_texts_of_several_rounds_are_distributed_as_the_target(
    rule: Rule, top_k: int
) -> None:
    """Noise that came back from a round before would show here."""
    chain = Chain(4, vocab_size=5)
    params = SamplingParams(max_tokens=3, temperature=0.8, top_k=top_k)
    p = (chain.target.double() / 0.8).softmax(1)
    if top_k:
        p = torch.where(p >= p.topk(top_k, dim=1).values[:, -1:], p, 0.0)
        p = p / p.sum(1, keepdim=True)

    texts = np.concatenate([drawn(chain, params, rule, 20_000, seed) for seed in range(5)])

    every = list(itertools.product(range(5), repeat=3))
    counts = np.array([((texts == text).all(1)).sum() for text in every])
    want = np.array(
        [float(p[1, a] * p[5 + a, b] * p[a * 5 + b, c]) * len(texts) for a, b, c in every]
    )
    possible = want > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], want[possible]).pvalue > 1e-4
