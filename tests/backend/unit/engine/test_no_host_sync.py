"""From a filled batch to the state of the next step, nothing waits for a value on the host."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.engine_world import MakeWorld, random_prompt
from tests.support.no_host_sync import HostSync, no_host_sync

KINDS = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 1},
    "penalised": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {7: 1.0}},
    "logprobs": {"logprobs": 3},
}


@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
def test_a_step_reads_no_value_and_moves_no_tensor(
    make_world: MakeWorld, params: dict[str, Any]
) -> None:
    world = make_world(rows_max=40)
    runner = world.engine._runner
    guarded = {name: getattr(runner, name) for name in ("propose", "forward", "verify")}
    kinds = set()

    def guard(name: str) -> Any:
        def call(*given: Any) -> Any:
            with no_host_sync(runner.persistent):
                return guarded[name](*given)

        return call

    # The recording of rows reads values; here only the runner's own work counts.
    runner.forward = type(runner).forward.__get__(runner)
    guarded["forward"] = runner.forward
    for name in guarded:
        setattr(runner, name, guard(name))
    load = runner.load

    def noting(step: Any) -> Any:
        kinds.add((bool(step.decodes), bool(step.chunks), bool(step.copies)))
        return load(step)

    runner.load = noting
    rng = random.Random(1)
    prompt = random_prompt(rng, 16)
    for number in range(6):
        world.add(random_prompt(rng, 30 + number) if number % 2 else prompt, **params)
        world.step()
        world.step()
    world.run()

    assert {(True, False, False), (True, True, False), (False, True, False)} <= kinds
    assert (True, True, True) in kinds


def test_the_guard_sees_a_read_in_the_step(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.add([5, 6, 7])
    commit = world.runner.state.commit_prompts
    seen = []

    def reading(slots: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> None:
        try:
            with no_host_sync():
                tokens.tolist()
        except HostSync as error:
            seen.append(error)
        commit(slots, tokens, lengths)

    monkeypatch.setattr(world.runner.state, "commit_prompts", reading)
    world.run()

    assert len(seen) == 1
