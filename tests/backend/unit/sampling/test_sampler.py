"""The sampler as the engine calls it: settings in slots, a step of rows, counts afterwards."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from backend.errors import BadRequest, SetupError
from backend.sampling.params import SamplingParams
from backend.sampling.penalties import repeat
from backend.sampling.sampler import BatchTraits, Sampler
from backend.sampling.verify import verify
from backend.speculate.protocol import Proposal
from tests.support.no_host_sync import no_host_sync
from tests.support.sampling_requests import (
    EVERY_KIND,
    VOCAB,
    Request,
    engine_of,
    random_logits,
    some_requests,
)


def step_of(requests: list[Request]) -> tuple[Sampler, torch.Tensor, torch.Tensor, BatchTraits]:
    slots = torch.arange(1, len(requests) + 1)
    positions = torch.tensor([len(r.prompt) + len(r.output) for r in requests])
    return engine_of(requests), slots, positions, Sampler.traits([r.params for r in requests])


def test_every_step_draws_what_the_slow_way_draws() -> None:
    requests = some_requests()
    sampler, slots, positions, traits = step_of(requests)

    for step in range(12):
        logits = random_logits(len(requests), VOCAB, seed=step)
        tokens = sampler.sample(logits, slots, positions + step, traits).tokens

        want = [r.choose(logits[i], 4 + step) for i, r in enumerate(requests)]
        assert tokens.tolist() == want, f"step {step}"
        sampler.commit(slots, tokens.unsqueeze(1), torch.ones_like(slots))
        for request, token in zip(requests, want, strict=True):
            request.output.append(token)


def test_a_preempted_request_goes_on_as_if_nothing_had_happened() -> None:
    requests = some_requests()
    for request in requests:
        request.output = [3, 3, 8]
    again, slots, positions, traits = step_of(requests)
    for request in requests:
        request.output = []
    stayed, *_ = step_of(requests)
    stayed.commit(slots, torch.tensor([[3, 3, 8, 9]] * 8), torch.full_like(slots, 3))
    logits = random_logits(8, VOCAB)

    assert torch.equal(
        stayed.sample(logits, slots, positions, traits).tokens,
        again.sample(logits, slots, positions, traits).tokens,
    )
    assert torch.equal(again.tables.counts, stayed.tables.counts)


@pytest.mark.parametrize("vocab_size", [VOCAB, 5003])
def test_a_request_gets_the_same_tokens_whatever_it_is_batched_with(vocab_size: int) -> None:
    requests = some_requests(EVERY_KIND * 2)
    sampler, slots, positions, traits = step_of(requests)
    if vocab_size != VOCAB:
        sampler = engine_of(requests, vocab_size)
    logits = random_logits(16, vocab_size)
    together = sampler.sample(logits, slots, positions, traits)
    assert together.logprobs is not None

    for num_rows in range(1, 17):
        for start in {0, 16 - num_rows}:
            rows = slice(start, start + num_rows)
            fewer = sampler.traits([r.params for r in requests[rows]])
            got = sampler.sample(logits[rows], slots[rows], positions[rows], fewer)
            assert torch.equal(got.tokens, together.tokens[rows])
            if got.logprobs is not None:
                assert torch.equal(got.logprobs, together.logprobs[rows])


def test_logprobs_are_those_of_the_model_before_anything_changes_them() -> None:
    params = SamplingParams(
        max_tokens=1, temperature=0.3, top_k=2, presence_penalty=2.0, logprobs=4,
        logit_bias={0: 50.0},
    )  # fmt: skip
    sampler, slots, positions, traits = step_of([Request(params, 1, [5])])
    logits = random_logits(1, VOCAB)

    got = sampler.sample(logits, slots, positions, traits)

    want = torch.log_softmax(logits.double(), 1)[0]
    assert got.logprobs is not None
    assert got.top_ids is not None
    assert got.top_logprobs is not None
    assert got.tokens.tolist() == [0]
    assert got.logprobs.item() == pytest.approx(want[0].item(), abs=1e-5)
    assert got.top_ids[0, :4].tolist() == want.topk(4).indices.tolist()
    assert torch.allclose(got.top_logprobs[0, :4].double(), want.topk(4).values, atol=1e-5)


def test_traits_say_what_the_step_must_compute() -> None:
    kinds = EVERY_KIND

    assert Sampler.traits(kinds[:1]) == BatchTraits()
    seedless = BatchTraits(is_all_greedy=False, has_seedless=True, is_all_seedless=True)
    assert Sampler.traits(kinds[1:2]) == seedless
    assert Sampler.traits([SamplingParams(max_tokens=1, seed=4)]) == BatchTraits(
        is_all_greedy=False
    )
    mixed = Sampler.traits([*kinds[:2], SamplingParams(max_tokens=1, seed=4)])
    assert (mixed.has_seedless, mixed.is_all_seedless) == (True, False)
    assert Sampler.traits(kinds[5:6]).is_all_greedy
    assert Sampler.traits(kinds[5:6]).has_subtraction
    everything = Sampler.traits(kinds)
    assert everything.num_top_logprobs == 5
    assert everything.top_k_max == 64
    assert Sampler.traits([SamplingParams(max_tokens=1, top_k=65)]).top_k_max is None
    assert Sampler.traits([SamplingParams(max_tokens=1, logprobs=6)]).num_top_logprobs == 20
    assert hash(everything) != hash(BatchTraits())


def test_greedy_settings_cost_no_filters() -> None:
    greedy = SamplingParams(max_tokens=1, temperature=0.0, top_k=5, top_p=0.5, min_p=0.1)

    assert Sampler.traits([greedy]) == BatchTraits()


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(max_tokens=1, logit_bias={VOCAB: 1.0}), "logit_bias"),
        (SamplingParams(max_tokens=1, logit_bias={-1: 1.0}), "logit_bias"),
        (SamplingParams(max_tokens=1, logit_bias={1: 101.0}), "logit_bias"),
        (SamplingParams(max_tokens=1, logit_bias={1: math.nan}), "logit_bias"),
        (SamplingParams(max_tokens=1, stop_token_ids=(2, VOCAB)), "stop_token_ids"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(params: SamplingParams, field: str) -> None:
    sampler = Sampler(VOCAB, 3, "cpu")

    with pytest.raises(BadRequest) as refused:
        sampler.set_slot(1, params, 0, [], [])

    assert refused.value.param == field


def test_a_vocabulary_too_large_for_exact_sums_is_refused_at_start() -> None:
    with pytest.raises(SetupError, match="too large"):
        Sampler((1 << 18) + 1, 1, "cpu")


def test_a_slot_that_is_cleared_leaves_nothing_behind() -> None:
    requests = some_requests()
    for request in requests:
        request.output = [3, 3, 8]
    sampler, *_ = step_of(requests)

    for slot in range(1, 9):
        sampler.clear_slot(slot)

    assert not sampler.tables.is_counting
    assert not any(t.any() for t in (sampler.tables.counts, sampler.tables.in_prompt))
    assert not sampler.tables.bias.any()


def test_a_slot_can_be_given_to_the_next_request_without_clearing() -> None:
    old, new = some_requests([EVERY_KIND[7], EVERY_KIND[6]])
    old.output = [4, 4, 4]
    sampler = engine_of([old])

    sampler.set_slot(1, new.params, new.seed, new.prompt, new.output)

    logits = random_logits(1, VOCAB)
    traits = sampler.traits([new.params])
    got = sampler.sample(logits, torch.tensor([1]), torch.tensor([4]), traits)
    assert got.tokens.tolist() == [new.choose(logits[0], 4)]


def test_tables_are_made_only_when_a_request_needs_them() -> None:
    sampler = engine_of(some_requests(EVERY_KIND[:4]))

    assert sampler.tables._counts is None
    assert sampler.tables._bias is None
    sampler.set_slot(1, EVERY_KIND[5], 0, [1], [2])
    assert sampler.tables._counts is not None
    assert sampler.tables._in_prompt is None


def test_tokens_are_counted_only_for_slots_with_penalties() -> None:
    sampler = engine_of(some_requests(EVERY_KIND[:4]))
    sampler.set_slot(2, EVERY_KIND[4], 0, [], [])
    sampler.commit(torch.tensor([1, 2]), torch.tensor([[7], [8]]), torch.tensor([1, 1]))

    sampler.set_slot(1, EVERY_KIND[5], 0, [], [6])

    assert sampler.tables.counts[1].nonzero().flatten().tolist() == [6]
    assert sampler.tables.counts[2].nonzero().flatten().tolist() == [8]


def test_padding_rows_are_never_counted() -> None:
    sampler = engine_of(some_requests(EVERY_KIND[4:6]))
    slots = torch.tensor([1, 0, 2, 0])

    sampler.commit(
        slots, torch.tensor([[3, 4], [5, 5], [6, 6], [7, 7]]), torch.tensor([1, 2, 2, 2])
    )

    assert sampler.tables.counts.sum(1).tolist() == [0, 1, 2]
    assert sampler.tables.counts[1, 3] == 1
    assert sampler.tables.counts[2, 6] == 2


def test_neither_logits_nor_state_change_while_sampling() -> None:
    requests = some_requests()
    sampler, slots, positions, traits = step_of(requests)
    logits = random_logits(8, VOCAB)
    before, counts = logits.clone(), sampler.tables.counts.clone()

    drafts = Proposal(torch.zeros((8, 2), dtype=torch.int64), torch.full((8,), 2))
    sampler.sample(logits, slots, positions, traits)
    verify(logits.unsqueeze(1).repeat(1, 3, 1), drafts, slots, positions, sampler, traits)

    assert torch.equal(logits, before)
    assert torch.equal(sampler.tables.counts, counts)


def test_a_step_reads_no_value_on_the_host_and_keeps_its_tables_in_place() -> None:
    requests = some_requests([*EVERY_KIND, SamplingParams(max_tokens=1, top_k=70)])
    sampler, slots, positions, traits = step_of(requests)
    logits = random_logits(9, 2, VOCAB)
    drafts = Proposal(torch.ones((9, 1), dtype=torch.int64), torch.ones(9, dtype=torch.int64))

    def tables() -> dict[str, torch.Tensor]:
        tables = sampler.tables
        return {"counts": tables.counts, "in_prompt": tables.in_prompt, "bias": tables.bias}

    with no_host_sync(tables):
        sampled = sampler.sample(logits[:, 0], slots, positions, traits)
        sampler.sample(logits[:, 0], slots, positions, sampler.traits(EVERY_KIND[:1]))
        verified = verify(logits, drafts, slots, positions, sampler, traits)
        sampler.commit(slots, sampled.tokens.unsqueeze(1), torch.ones_like(slots))
        sampler.commit(slots, verified.tokens, verified.num_tokens)


def test_repetition_is_what_transformers_makes_of_it() -> None:
    logits = random_logits(3, VOCAB)
    seen = torch.tensor([[1, 2, 2], [0, 0, 0], [5, 6, 7]])
    is_seen = torch.zeros(3, VOCAB, dtype=torch.bool).scatter_(1, seen, True)

    got = repeat(logits, is_seen, torch.full((3, 1), 1.3))

    assert torch.equal(got, RepetitionPenaltyLogitsProcessor(1.3)(seen, logits.clone()))
