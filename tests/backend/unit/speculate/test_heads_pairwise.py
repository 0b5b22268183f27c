"""Draft heads in any two circumstances together: preempted, cancelled, on a known prefix, stopped
inside of a round, penalised, drawn. The text stays the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backend.config import Quantization
from backend.engine.interface import FinishReason
from backend.models.loading import load_model
from backend.speculate.protocol import Proposer
from kernels.dispatch import Ops, build, select
from tests.backend.unit.engine.test_lossless import (
    EXACT,
    KINDS,
    NUM_BLOCKS_TIGHT,
    SITUATIONS,
)
from tests.backend.unit.speculate.test_heads_in_engine import BIAS, METHODS, save
from tests.support.draft_heads import SavedHead
from tests.support.draft_methods import proposer_of
from tests.support.engine_world import Answer, EngineWorld, Tiny, bytes_for, tiny_engine_config
from tests.support.native_kernels import native_ops
from tests.support.pairwise import pairwise

pytestmark = pytest.mark.slow

NUM_TOKENS = 27
ROWS_MAX = 96
# Drawn with a seed: the ends of greedy answers hardly ever stand among accepted drafts.
PARAMS = {**KINDS, "stop": {"temperature": 1.0, "seed": 6, "stop_token_ids": (290,)}}
CASES = pairwise(
    {
        "method": METHODS,
        "num_drafts": (1, 4, 8),
        "situation": tuple(SITUATIONS),
        "params": tuple(PARAMS),
        "cache": ("roomy", "tight"),
    }
)


@dataclass
class Bench:
    """A target of one number format with its heads, and what it writes without them."""

    target: Tiny
    ops: Ops
    quantization: Quantization
    heads: dict[str, SavedHead]
    worlds: list[EngineWorld] = field(default_factory=list)
    plain: dict[tuple[str, str, str], dict[str, Answer]] = field(default_factory=dict)

    def world(self, method: str | None, num_drafts: int, cache: str) -> EngineWorld:
        changes: dict[str, Any] = {"rows_max": ROWS_MAX, "num_drafts_max": num_drafts}
        if cache == "tight":
            changes |= {
                "context_len_max": 80,
                "kv_cache_bytes": bytes_for(self.target.model, NUM_BLOCKS_TIGHT),
            }
        proposer: Proposer | None = None
        if method is not None:
            proposer = proposer_of(
                self.target,
                self.heads[method],
                ops=self.ops,
                quantization=self.quantization,
                **changes,
            )
        self.worlds.append(EngineWorld(self.target.model, proposer=proposer, **changes))
        return self.worlds[-1]

    def play(self, world: EngineWorld, situation: str, params: str) -> dict[str, Answer]:
        SITUATIONS[situation](
            world, {"logit_bias": BIAS, **PARAMS[params], "max_tokens": NUM_TOKENS}
        )
        world.run()
        return world.answers

    def written(self, situation: str, params: str, cache: str) -> dict[str, Answer]:
        key = (situation, params, cache)
        if key not in self.plain:
            self.plain[key] = self.play(self.world(None, 0, cache), situation, params)
        return self.plain[key]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedHead]:
    return {method: save(tmp_path_factory.mktemp(method), method) for method in METHODS}


@pytest.fixture(scope="module")
def benches() -> dict[str, Bench]:
    return {}


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    target: Tiny,
    heads: dict[str, SavedHead],
    benches: dict[str, Bench],
) -> Iterator[Bench]:
    """Of the test's `kind`; at the end every world of it is empty."""
    kind = request.getfixturevalue("kind")
    if kind not in benches:
        benches[kind] = _load(target, kind, heads)
    yield benches[kind]
    for world in benches[kind].worlds:
        world.run()
        world.check_empty()
    benches[kind].worlds.clear()


def _load(target: Tiny, kind: str, heads: dict[str, SavedHead]) -> Bench:
    if kind == "float32":
        return Bench(target, select("cpu", "reference"), Quantization.NONE, heads)
    ops = build(native_ops(), "native")
    config = tiny_engine_config(rows_max=ROWS_MAX, quantization=Quantization.INT8)
    model = load_model(target.directory, config, ops=ops).model
    rounded = Tiny(Path(target.directory), target.reference, model)
    return Bench(rounded, ops, Quantization.INT8, heads)


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_any_two_circumstances_together_change_nothing(
    bench: Bench, kind: str, case: dict[str, Any]
) -> None:
    plain = bench.written(case["situation"], case["params"], case["cache"])
    world = bench.world(case["method"], case["num_drafts"], case["cache"])

    drafted = bench.play(world, case["situation"], case["params"])

    assert drafted.keys() == plain.keys()
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


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("method", METHODS)
def test_the_circumstances_above_do_come_about(bench: Bench, kind: str, method: str) -> None:
    """Else they would show nothing."""
    tight = bench.world(method, 4, "tight")
    bench.play(tight, "one by one", "greedy")
    known = bench.world(method, 4, "roomy")
    bench.play(known, "prefix hit", "greedy")
    left = bench.world(method, 4, "roomy")
    bench.play(left, "cancel", "greedy")
    stopped = bench.world(method, 4, "roomy")
    for situation in ("one by one", "cancel", "prefix hit"):
        bench.play(stopped, situation, "stop")

    assert tight.engine.load().num_preemptions > 0
    for world in (tight, known, left, stopped):
        (figures,) = world.engine.load().speculation.figures
        assert 0 < figures.num_accepted_tokens < figures.num_draft_tokens
    assert any(answer.events[-1].num_cached_tokens for answer in known.answers.values())
    cancelled = [each for each in left.answers.values() if each.finish is FinishReason.CANCELLED]
    assert any(each.token_ids for each in cancelled)
    ends = [answer.events[-1] for answer in stopped.answers.values()]
    assert any(end.finish is FinishReason.STOP and end.token_ids for end in ends)
