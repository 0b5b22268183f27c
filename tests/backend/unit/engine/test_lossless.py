"""Drafts change the pace and not one token: every method, any number, any batch, any trouble."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from backend.config import Quantization
from backend.engine.interface import FinishReason, SpeculationWish
from backend.models.interface import CausalModel
from backend.models.loading import load_model
from backend.speculate.proposers.draft_model import DraftModelProposer
from backend.speculate.proposers.ngram import NgramProposer
from backend.speculate.proposers.suffix import SuffixProposer
from backend.speculate.protocol import Proposer
from kernels.dispatch import build, select
from tests.backend.unit.engine.test_no_host_sync import guard
from tests.support.engine_world import (
    EngineWorld,
    Tiny,
    bytes_for,
    random_prompt,
    tiny_engine_config,
)
from tests.support.native_kernels import native_ops
from tests.support.pairwise import pairwise

METHODS = ("ngram", "suffix", "draft_model")
NUM_TOKENS = 40
WRITTEN = (50, 120, 290, 301)
# Few different tokens, so that what is looked up is often right and often wrong. The draft model,
# which knows no bias, is the target with rounded weights.
BIAS = {token: 60.0 for token in WRITTEN}
ROWS_MAX = 160
NUM_BLOCKS_TIGHT = 10
EXACT = [
    "float32",
    # Whose rows are exact whatever stands beside them; the reference is not in every last bit.
    pytest.param("int8", marks=pytest.mark.compiler),
]


@dataclass
class Bench:
    """The models of one number format, and the worlds that were made with them."""

    target: CausalModel
    draft: CausalModel
    worlds: list[EngineWorld] = field(default_factory=list)
    plain: dict[str, list[list[int]]] = field(default_factory=dict)

    def proposer(self, method: str, num_drafts: int) -> Proposer:
        config = tiny_engine_config(num_drafts_max=num_drafts, rows_max=ROWS_MAX)
        if method == "draft_model":
            return DraftModelProposer(self.draft, self.target, config)
        return {"ngram": NgramProposer, "suffix": SuffixProposer}[method](self.target, config)

    def world(self, method: str | None, num_drafts: int = 0, **changes: Any) -> EngineWorld:
        proposer = None if method is None else self.proposer(method, num_drafts)
        changes = {"rows_max": ROWS_MAX, "num_drafts_max": num_drafts, **changes}
        self.worlds.append(EngineWorld(self.target, proposer=proposer, **changes))
        return self.worlds[-1]


@pytest.fixture(scope="module")
def benches(tiny: Tiny) -> dict[str, Bench]:
    return {}


@pytest.fixture
def bench(request: pytest.FixtureRequest, tiny: Tiny, benches: dict[str, Bench]) -> Iterator[Bench]:
    """Of the test's `kind`; at the end every world of it is empty."""
    kind = request.getfixturevalue("kind")
    if kind not in benches:
        benches[kind] = _load(tiny, kind)
    yield benches[kind]
    for world in benches[kind].worlds:
        world.run()
        world.check_empty()
    benches[kind].worlds.clear()


def _load(tiny: Tiny, kind: str) -> Bench:
    if kind == "float32":
        config, ops = tiny_engine_config(rows_max=ROWS_MAX), select("cpu", "reference")
    else:
        config = tiny_engine_config(rows_max=ROWS_MAX, quantization=Quantization.INT8)
        ops = build(native_ops(), "native")
    target = load_model(tiny.directory, config, ops=ops).model
    rounded = tiny_engine_config(rows_max=ROWS_MAX, quantization=Quantization.INT8)
    draft = load_model(tiny.directory, rounded, ops=select("cpu", "reference")).model
    return Bench(target, draft)


def bias_for(method: str) -> dict[str, Any]:
    return {} if method == "draft_model" else {"logit_bias": BIAS}


def some_prompts(count: int) -> list[list[int]]:
    rng = random.Random(12)
    return [[*random_prompt(rng, rng.randrange(1, 30)), *WRITTEN[:2]] for _ in range(count)]


def ask_all(world: EngineWorld, count: int, together: bool, **params: Any) -> list[list[int]]:
    names = []
    for prompt in some_prompts(count):
        names.append(world.add(prompt, max_tokens=NUM_TOKENS, **params))
        if not together:
            world.run()
    world.run()
    return [world.answers[name].token_ids for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_the_plain_one_for_every_number_of_drafts_and_batch(
    bench: Bench, kind: str, method: str
) -> None:
    bias = bias_for(method)
    plain = ask_all(bench.world(None), 8, together=False, **bias)
    assert ask_all(bench.world(None), 8, together=True, **bias) == plain
    for num_drafts in range(1, 9):
        for together in (False, True):
            world = bench.world(method, num_drafts)
            assert ask_all(world, 8, together, **bias) == plain, (num_drafts, together)
            (figures,) = world.engine.load().speculation.figures
            assert figures.num_accepted_tokens > 20
            assert figures.num_accepted_tokens < figures.num_draft_tokens
            assert len(figures.num_at_risk) <= num_drafts


def _prefix_hit(world: EngineWorld, params: dict[str, Any]) -> None:
    """What was asked before is asked again, and something that begins like it."""
    first, second = some_prompts(2)
    for prompt in (first, first, [*first, *second]):
        world.add(prompt, **params)
        world.run()


def _cancel(world: EngineWorld, params: dict[str, Any]) -> None:
    """Two leave in the middle of their answers, others come into their slots."""
    names = [world.add(prompt, **params) for prompt in some_prompts(4)]
    for _ in range(3):
        world.step()
    for name in names[::2]:
        world.engine.cancel(name)
    for prompt in some_prompts(6)[4:]:
        world.add(prompt, **params)


def _one_by_one(world: EngineWorld, params: dict[str, Any]) -> None:
    """Prompts in the same steps as others' rounds."""
    for prompt in some_prompts(5):
        world.add(prompt, **params)
        world.step()
        world.step()


def _wishes(world: EngineWorld, params: dict[str, Any]) -> None:
    """With drafts, with fewer, without, in one batch."""
    wishes = (None, SpeculationWish(is_off=True), SpeculationWish(num_drafts=1))
    for number, prompt in enumerate(some_prompts(6)):
        world.add(prompt, speculation=wishes[number % 3], **params)


def _alone(world: EngineWorld, params: dict[str, Any]) -> None:
    world.add(some_prompts(1)[0], **params)


SITUATIONS = {
    "prefix hit": _prefix_hit,
    "cancel": _cancel,
    "one by one": _one_by_one,
    "wishes": _wishes,
    "alone": _alone,
}
# The last one ends most answers inside of a round.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 4},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.8},
    "drawn, penalised": {"temperature": 0.8, "top_k": 3, "frequency_penalty": 0.4, "seed": 9},
    "logprobs": {"logprobs": 3},
    "stop": {"stop_token_ids": (290, *range(200, 260))},
}
CASES = pairwise(
    {
        "method": METHODS,
        "num_drafts": (1, 4, 8),
        "situation": tuple(SITUATIONS),
        "params": tuple(KINDS),
        "cache": ("roomy", "tight"),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_any_two_circumstances_together_change_nothing(
    bench: Bench, kind: str, case: dict[str, Any]
) -> None:
    changes = _changes(case["cache"], bench)
    params = {**bias_for(case["method"]), **KINDS[case["params"]], "max_tokens": NUM_TOKENS - 13}
    found = []
    for method in (None, case["method"]):
        world = bench.world(method, case["num_drafts"] if method else 0, **changes)
        SITUATIONS[case["situation"]](world, params)
        world.run()
        found.append(world.answers)

    plain, drafted = found
    for name, answer in drafted.items():
        if FinishReason.CANCELLED in (answer.finish, plain[name].finish):
            # How far it had come when it was cancelled depends on the pace.
            shared = min(len(answer.token_ids), len(plain[name].token_ids))
            assert answer.token_ids[:shared] == plain[name].token_ids[:shared]
            continue
        assert (answer.token_ids, answer.finish) == (plain[name].token_ids, plain[name].finish)
        for mine, theirs in zip(answer.logprobs, plain[name].logprobs, strict=True):
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)


@pytest.mark.parametrize("kind", ["float32"])
@pytest.mark.parametrize("method", METHODS)
def test_requests_with_different_wishes_come_and_go_together(
    bench: Bench, kind: str, method: str
) -> None:
    """The shortest of the comparisons above, for everyday."""
    found = []
    for name in (None, method):
        world = bench.world(name, 3 if name else 0)
        _wishes(world, {**bias_for(method), "max_tokens": 16, "temperature": 0.9, "seed": 2})
        world.run()
        found.append([answer.token_ids for answer in world.answers.values()])

    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["float32"])
@pytest.mark.parametrize("method", METHODS)
def test_the_cases_above_do_preempt_accept_reject_and_end_inside_of_rounds(
    bench: Bench, kind: str, method: str
) -> None:
    """Else they would show nothing."""
    params = {**bias_for(method), "max_tokens": NUM_TOKENS - 13}
    world = bench.world(method, 4, **_changes("tight", bench))
    _one_by_one(world, params)
    world.run()
    load = world.engine.load()
    (figures,) = load.speculation.figures
    stopped = bench.world(method, 4)
    _one_by_one(stopped, {**params, "stop_token_ids": (290, *range(200, 260))})
    stopped.run()

    assert load.num_preemptions > 0
    assert 0 < figures.num_accepted_tokens < figures.num_draft_tokens
    ends = [answer.events[-1] for answer in stopped.answers.values()]
    assert any(end.finish is FinishReason.STOP and end.token_ids for end in ends)


def _changes(cache: str, bench: Bench) -> dict[str, Any]:
    if cache == "roomy":
        return {}
    return {"context_len_max": 80, "kv_cache_bytes": bytes_for(bench.target, NUM_BLOCKS_TIGHT)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}], ids=["greedy", "drawn"])
def test_no_method_reads_a_value_of_the_device(
    bench: Bench, kind: str, method: str, params: dict[str, Any]
) -> None:
    """What is looked up is looked up in what the host has been told already."""
    world = bench.world(method, 4)
    kinds, caught = guard(world)
    _one_by_one(world, {"max_tokens": 20, **bias_for(method), **params})
    world.run()

    assert caught == []
    assert kinds
    (figures,) = world.engine.load().speculation.figures
    assert figures.num_drafts > 0
