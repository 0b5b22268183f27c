"""Verification gives what plain decoding gives: the same tokens, however they were drafted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from backend.sampling.params import SamplingParams
from backend.sampling.sampler import Sampler
from backend.sampling.verify import verify
from backend.speculate.protocol import Proposal
from kernels.reference.sample import filtered_weights
from tests.support.sampling_requests import (
    EVERY_KIND,
    VOCAB,
    Request,
    engine_of,
    random_logits,
    some_requests,
)

POSITION = 4


class Model:
    """A deterministic language model: the last two tokens and the place choose the logits."""

    def __init__(self, seed: int, vocab_size: int = VOCAB) -> None:
        self.vocab_size = vocab_size

        # A table of rows, walked by a multiplication: quick to look up, hard to foresee.
        self.table = random_logits(257, vocab_size, seed=seed)

    def logits(self, text: Sequence[int]) -> Tensor:
        return self.table[(text[-1] * 7919 + text[-2] * 104_729 + len(text) * 31) % 257]

    def rows(self, text: Sequence[int], drafts: Sequence[int]) -> Tensor:
        """What a forward pass over the drafts gives: [N + 1, V]."""
        return torch.stack([self.logits([*text, *drafts[:n]]) for n in range(len(drafts) + 1)])


def plain(model: Model, request: Request, num_tokens: int) -> list[int]:
    for _ in range(num_tokens):
        text = [*request.prompt, *request.output]
        request.output.append(request.choose(model.logits(text), len(text)))
    return request.output


@given(
    seed=st.integers(0, 1000),
    kinds=st.lists(st.sampled_from(EVERY_KIND), min_size=1, max_size=4),
    num_drafts=st.integers(0, 4),
    share_right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    data=st.randoms(use_true_random=False),
)
def test_speculation_decodes_token_for_token_what_plain_decoding_does(
    seed: int,
    kinds: list[SamplingParams],
    num_drafts: int,
    share_right: float,
    data: object,
) -> None:
    model, requests = Model(seed), some_requests(kinds)
    want = [plain(model, request, 14) for request in some_requests(kinds)]
    sampler = engine_of(requests)
    traits = sampler.traits([r.params for r in requests])
    slots = torch.arange(1, len(requests) + 1)
    got: list[list[int]] = [[] for _ in requests]

    while min(map(len, got)) < 9:
        drafts = [
            [
                want[i][at] if data.random() < share_right else data.randrange(VOCAB)  # type: ignore[attr-defined]  # hypothesis' Random
                for at in range(len(got[i]), len(got[i]) + num_drafts)
            ]
            if len(got[i]) + num_drafts <= 14
            else [0] * num_drafts
            for i in range(len(requests))
        ]
        texts = [[*r.prompt, *got[i]] for i, r in enumerate(requests)]
        logits = torch.stack([model.rows(t, d) for t, d in zip(texts, drafts, strict=True)])
        proposal = (
            Proposal(torch.tensor(drafts), torch.full_like(slots, num_drafts))
            if num_drafts
            else None
        )
        positions = torch.tensor([len(text) for text in texts])
        verified = verify(logits, proposal, slots, positions, sampler, traits)
        sampler.commit(slots, verified.tokens, verified.num_tokens)
        for i, num in enumerate(verified.num_tokens.tolist()):
            got[i] += verified.tokens[i, :num].tolist()

    for one, other in zip(got, want, strict=True):
        shared = min(len(one), 14)
        assert one[:shared] == other[:shared]


def one_row(params: SamplingParams, drafts: list[int], num_valid: int) -> tuple[list[int], int]:
    """Logits that make token 5 certain everywhere."""
    sampler = engine_of([Request(params, 3, [1])])
    logits = torch.full((1, len(drafts) + 1, VOCAB), -50.0)
    logits[..., 5] = 50.0
    proposal = Proposal(torch.tensor([drafts]), torch.tensor([num_valid]))
    got = verify(
        logits, proposal, torch.tensor([1]), torch.tensor([1]), sampler, sampler.traits([params])
    )
    return got.tokens[0].tolist(), int(got.num_tokens[0])


@pytest.mark.parametrize("params", [EVERY_KIND[0], EVERY_KIND[1], EVERY_KIND[4]])
@pytest.mark.parametrize(
    ("drafts", "num_valid", "tokens", "num_tokens"),
    [
        ([5, 5, 5], 3, [5, 5, 5, 5], 4),
        ([5, 5, 5], 1, [5, 5, 0, 0], 2),
        ([5, 5, 5], 0, [5, 0, 0, 0], 1),
        ([5, 6, 5], 3, [5, 5, 0, 0], 2),
        ([6, 5, 5], 3, [5, 0, 0, 0], 1),
        ([-1, 5, 5], 3, [5, 0, 0, 0], 1),
        ([VOCAB, 5, 5], 0, [5, 0, 0, 0], 1),
    ],
)
def test_a_draft_counts_only_behind_accepted_ones_and_where_it_is_valid(
    params: SamplingParams, drafts: list[int], num_valid: int, tokens: list[int], num_tokens: int
) -> None:
    assert one_row(params, drafts, num_valid) == (tokens, num_tokens)


def test_without_drafts_it_is_sampling() -> None:
    requests = some_requests()
    sampler = engine_of(requests)
    traits = sampler.traits([r.params for r in requests])
    slots, positions = torch.arange(1, 9), torch.full((8,), POSITION)
    logits = random_logits(8, VOCAB)

    verified = verify(logits.unsqueeze(1), None, slots, positions, sampler, traits)
    sampled = sampler.sample(logits, slots, positions, traits)

    assert torch.equal(verified.tokens.squeeze(1), sampled.tokens)
    assert verified.num_tokens.tolist() == [1] * 8
    for one, other in (
        (verified.logprobs, sampled.logprobs),
        (verified.top_ids, sampled.top_ids),
        (verified.top_logprobs, sampled.top_logprobs),
    ):
        assert one is not None
        assert other is not None
        assert torch.equal(one.squeeze(1), other)


def test_logprobs_stand_at_their_tokens() -> None:
    params = EVERY_KIND[6]
    sampler = engine_of([Request(params, 9, [1, 2])])
    logits = random_logits(1, 3, VOCAB)
    free = Proposal(torch.zeros((1, 2), dtype=torch.int64), torch.tensor([2]))
    where = (torch.tensor([1]), torch.tensor([2]), sampler, sampler.traits([params]))
    first = verify(logits, free, *where).tokens[0, 0]
    drafts = Proposal(torch.stack([first, first]).unsqueeze(0), torch.tensor([2]))

    got = verify(logits, drafts, *where)

    assert got.num_tokens.item() >= 2
    assert got.logprobs is not None
    want = torch.log_softmax(logits[0], 1)
    for place in range(int(got.num_tokens)):
        token = int(got.tokens[0, place])
        assert got.logprobs[0, place].item() == pytest.approx(want[place, token].item(), abs=1e-5)


def joint_distribution(model: Model, params: SamplingParams, length: int) -> dict[tuple, float]:
    """Every text of some length with its exact probability, filters applied."""
    found: dict[tuple, float] = {(): 1.0}
    for _ in range(length):
        grown = {}
        for text, mass in found.items():
            weights = filtered_weights(
                model.logits([1, 2, *text]).unsqueeze(0),
                torch.tensor([params.temperature]).double(),
                top_k=torch.tensor([params.top_k]),
            )[0].double()
            for token, share in enumerate((weights / weights.sum()).tolist()):
                if share > 0.0:
                    grown[(*text, token)] = mass * share
        found = grown
    return found


def speculated(model: Model, params: SamplingParams, seeds: range) -> np.ndarray:
    """Two tokens of each seed; the draft depends on nothing that the target draws."""
    vocab = model.vocab_size
    num = len(seeds)
    sampler = Sampler(vocab, num + 1, "cpu")
    for slot, seed in enumerate(seeds, 1):
        sampler.set_slot(slot, params, seed)
    slots = torch.arange(1, num + 1)
    traits = sampler.traits([params])
    drafts = (slots % vocab).unsqueeze(1)
    table = torch.stack([model.logits([1, 2, token]) for token in range(vocab)])
    logits = torch.stack([model.logits([1, 2]).expand(num, vocab), table[drafts.squeeze(1)]], 1)
    start = torch.full_like(slots, 2)
    first = verify(logits, Proposal(drafts, torch.ones_like(slots)), slots, start, sampler, traits)
    plain_second = sampler.sample(table[first.tokens[:, 0]], slots, start + 1, traits).tokens
    is_accepted = first.num_tokens == 2
    assert torch.equal(first.tokens[is_accepted, 1], plain_second[is_accepted])
    return torch.stack([first.tokens[:, 0], plain_second], 1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_hundred_thousand_draws_have_the_joint_distribution_of_the_model(top_k: int) -> None:
    model = Model(5, vocab_size=6)
    params = SamplingParams(max_tokens=2, temperature=1.3, top_k=top_k)
    exact = joint_distribution(model, params, 2)
    texts = list(itertools.product(range(6), repeat=2))

    drawn = np.concatenate(
        [speculated(model, params, range(at, at + 10_000)) for at in range(0, 100_000, 10_000)]
    )

    counts = np.array([((drawn == text).all(1)).sum() for text in texts])
    want = np.array([exact.get(text, 0.0) for text in texts]) * len(drawn)
    possible = want > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], want[possible]).pvalue > 1e-4
