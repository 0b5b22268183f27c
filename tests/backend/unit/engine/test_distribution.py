"""A hundred thousand answers through the whole engine are distributed as the target's own.

The target has four tokens, so that every answer of five can be listed with its exact probability;
three of them are drafted in a round, and most answers take several rounds. (Of the rules that are
not the default there are half as many answers, 250,000 draws.) What must not pass is tried as well:
each mutation fails the same test, on fewer answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from backend.config import EngineConfig, Rejection
from backend.engine.engine import Engine
from backend.models.interface import CausalModel
from backend.models.loading import load_model
from backend.sampling import rejection, verify
from backend.sampling.params import SamplingParams
from backend.sampling.rejection import Accepted, Drafted, Rule, block, standard
from backend.speculate.picking import Picker
from backend.speculate.proposers.draft_model import DraftModelProposer
from backend.speculate.proposers.ngram import NgramProposer
from backend.speculate.protocol import Proposer
from kernels.dispatch import Ops, select
from tests.support.answer_counts import Text, exact_answers, pvalue, short_answers
from tests.support.engine_world import tiny_engine_config
from tests.support.tiny_checkpoints import reference_logits, save_tiny

pytestmark = pytest.mark.slow

VOCAB, LENGTH, NUM_DRAFTS = 4, 5, 3
PROMPT = (1, 3, 0, 2, 1, 3)
TEMPERATURE = 2.0
LEANING = (1.6, -1.6, 0.8, 0.0)
CHANCE = 1e-4  # less probable than this is not believed
BATCH = 128
NUM_ANSWERS, NUM_ANSWERS_MUTATED = 100_000, 4_000
SIZES: dict[str, Any] = {
    "num_drafts_max": NUM_DRAFTS, "sequences_max": BATCH, "rows_max": 16 * BATCH,
    "kv_cache_bytes": 1 << 22, "prefills_max": BATCH, "waiting_max": 2 * BATCH,
    "context_len_max": 32,
}  # fmt: skip


class Leaning:
    """A draft that is less sure than its target, and likes some tokens more."""

    def __init__(self, target: CausalModel) -> None:
        self._target = target
        self.config = target.config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._target.logits(hidden) * 0.6 + torch.tensor(LEANING)


@dataclass(frozen=True)
class Pair:
    """A target that has four tokens, and its draft."""

    target: CausalModel
    draft: CausalModel
    exact: Mapping[Text, float]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("four-tokens")
    reference = save_tiny(
        directory, seed=3, vocab_size=VOCAB, num_hidden_layers=1, hidden_size=32,
        intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    target = load_model(directory, tiny_engine_config(), ops=select("cpu", "reference")).model
    return Pair(target, Leaning(target), _distribution(reference))


def _distribution(reference: PreTrainedModel) -> dict[Text, float]:
    """Of every answer, computed by transformers alone."""

    def shares(text: Text) -> Iterable[tuple[int, float]]:
        logits = reference_logits(reference, [*PROMPT, *text])[-1].double()
        return enumerate((logits / TEMPERATURE).softmax(0).tolist())

    return exact_answers(shares, LENGTH)


Make = Callable[[Pair, EngineConfig], Proposer]


def drawing(pair: Pair, config: EngineConfig) -> Proposer:
    return DraftModelProposer(pair.draft, pair.target, config)


def looking_up(pair: Pair, config: EngineConfig) -> Proposer:
    return NgramProposer(pair.target, config)


def engine_of(pair: Pair, make: Make, rule: Rejection) -> Engine:
    return Engine(
        pair.target,
        tiny_engine_config(**SIZES, rejection=rule),
        (),
        rng=random.Random(11),
        make_proposer=lambda model, config: make(pair, config),
    )


PARAMS = SamplingParams(max_tokens=LENGTH, temperature=TEMPERATURE, ignore_eos=True)


def pvalue_of(pair: Pair, engine: Engine, count: int) -> float:
    """Of so many answers to one prompt, none with a seed."""
    return pvalue(short_answers(engine, PROMPT, PARAMS, count, BATCH), pair.exact)


KINDS = pytest.mark.parametrize(
    ("make", "rule"),
    [
        (drawing, Rejection.BLOCK),
        (drawing, Rejection.STANDARD),
        (looking_up, Rejection.BLOCK),
    ],
    ids=["block", "standard", "one-hot"],
)


def check_rounds(engine: Engine) -> None:
    """Rounds of three drafts, all numbers of them accepted: else the test would show little."""
    (figures,) = engine.load().speculation.figures
    assert len(figures.num_at_risk) == NUM_DRAFTS
    assert min(figures.num_accepted) > 0
    assert all(
        stood < num for stood, num in zip(figures.num_accepted, figures.num_at_risk, strict=True)
    )


@pytest.mark.timeout(900)  # 40 s alone
@KINDS
def test_a_hundred_thousand_answers_are_distributed_as_the_target_s(
    pair: Pair, make: Make, rule: Rejection
) -> None:
    engine = engine_of(pair, make, rule)
    num_answers = NUM_ANSWERS if (make, rule) == (drawing, Rejection.BLOCK) else NUM_ANSWERS // 2

    assert pvalue_of(pair, engine, num_answers) > CHANCE
    check_rounds(engine)


def _from_p(given: Drafted, num_accepted: Tensor, uniforms: Tensor, ops: Ops) -> Accepted:
    tokens = ops.residual_pick(
        given.logits, num_accepted, uniforms[:, -1], temperature=given.temperature
    )
    return Accepted(num_accepted, tokens)


def accepting_always(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
    return _from_p(given, given.num_valid.clone(), uniforms, ops)


def without_residual(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
    return _from_p(given, standard(given, uniforms, ops).num_accepted, uniforms, ops)


def block_without_residual(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
    return _from_p(given, block(given, uniforms, ops).num_accepted, uniforms, ops)


def with_one_number(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
    """The token behind the drafts is drawn by the number that judged the first of them."""
    return standard(given, torch.cat((uniforms[:, :-1], uniforms[:, :1]), 1), ops)


@pytest.mark.parametrize(
    ("rule", "mutated"),
    [
        (Rejection.STANDARD, accepting_always),
        (Rejection.STANDARD, without_residual),
        (Rejection.STANDARD, with_one_number),
        (Rejection.BLOCK, block_without_residual),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_a_wrong_rule_does_not_pass(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, rule: Rejection, mutated: Rule
) -> None:
    monkeypatch.setitem(rejection.RULES, rule, mutated)  # type: ignore[arg-type] # it is a dict

    assert pvalue_of(pair, engine_of(pair, drawing, rule), NUM_ANSWERS_MUTATED) < CHANCE


def test_probabilities_that_a_draft_was_not_drawn_from_do_not_pass(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn at its temperature, told as if it had been drawn at 1."""
    pick = Picker.pick

    def telling_wrong(
        self: Picker, logits: Tensor, temperatures: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        ids, probs = pick(self, logits, temperatures)
        return ids, None if probs is None else (logits / 1.5).softmax(-1)

    monkeypatch.setattr(Picker, "pick", telling_wrong)
    engine = engine_of(pair, drawing, Rejection.BLOCK)

    assert pvalue_of(pair, engine, NUM_ANSWERS_MUTATED) < CHANCE


def test_noise_that_comes_back_in_the_next_round_does_not_pass(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniforms = verify.round_uniforms

    def again(seeds: Tensor, starts: Tensor, num: int) -> Tensor:
        return uniforms(seeds, torch.zeros_like(starts), num)

    monkeypatch.setattr(verify, "round_uniforms", again)
    engine = engine_of(pair, drawing, Rejection.STANDARD)

    assert pvalue_of(pair, engine, NUM_ANSWERS_MUTATED) < CHANCE


def _matching_always(asked: Any) -> tuple[Tensor, Tensor]:
    """Every draft stands; the token behind them is the target's."""
    tokens = verify._choose(asked, asked.places())
    place, num_valid = asked.places(), asked.proposal.num_valid.unsqueeze(1)
    drafts = torch.nn.functional.pad(asked.proposal.token_ids, (0, 1))
    return torch.where(place < num_valid, drafts, tokens), asked.proposal.num_valid + 1


def _matching_and_drawing_again(asked: Any) -> tuple[Tensor, Tensor]:
    """Behind a draft that does not match another token is drawn, and may be the draft again."""
    tokens, num_tokens = MATCH(asked)
    later = verify._Asked(
        asked.logits, asked.proposal, asked.slots, asked.positions + 1000, asked.sampler,
        asked.traits,
    )  # fmt: skip
    other = verify._choose(later, asked.places())
    is_last = asked.places() == num_tokens.unsqueeze(1) - 1
    is_rejected = (num_tokens <= asked.proposal.num_valid).unsqueeze(1)
    return torch.where(is_last & is_rejected, other, tokens), num_tokens


MATCH = verify._match


@pytest.mark.parametrize("mutated", [_matching_always, _matching_and_drawing_again])
def test_drafts_that_were_looked_up_and_matched_wrong_do_not_pass(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, mutated: Callable[[Any], tuple[Tensor, Tensor]]
) -> None:
    monkeypatch.setattr(verify, "_match", mutated)
    engine = engine_of(pair, looking_up, Rejection.BLOCK)

    assert pvalue_of(pair, engine, NUM_ANSWERS_MUTATED) < CHANCE
