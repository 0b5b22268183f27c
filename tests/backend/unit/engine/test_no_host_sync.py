"""From a filled batch to the state of the next step, nothing waits for a value on the host."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from backend.engine.scheduler import Step
from backend.models.interface import FeatureTap
from tests.support.drafting_world import RepeatingProposer
from tests.support.engine_world import EngineWorld, MakeWorld, random_prompt
from tests.support.no_host_sync import HostSync, no_host_sync

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 1},
    "penalised": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {7: 1.0}},
    "logprobs": {"logprobs": 3},
}


TAPS = (FeatureTap(0, "in"), FeatureTap(2, "out"))


def guard(world: EngineWorld) -> tuple[set[tuple[bool, bool, bool]], list[Exception]]:
    """Puts the runner's calls under guard: the kinds of steps seen, and what was caught.

    A kind is (has decodes, has prompts, has copies).
    """
    runner = world.runner
    kinds: set[tuple[bool, bool, bool]] = set()
    caught: list[Exception] = []

    def guarded(call: Any) -> Any:
        def inner(*given: Any) -> Any:
            try:
                with no_host_sync(runner.persistent):
                    return call(*given)
            except Exception as error:
                caught.append(error)  # the engine would only end the requests
                raise

        return inner

    # Not the world's own `forward`: its recording reads values.
    calls = {
        "propose": runner.propose,
        "forward": type(runner).forward.__get__(runner),
        "verify": runner.verify,
    }
    for name, call in calls.items():
        setattr(runner, name, guarded(call))
    load = runner.load

    def noting(step: Step) -> Any:
        kinds.add((bool(step.decodes), bool(step.chunks), bool(step.copies)))
        return load(step)

    runner.load = noting
    return kinds, caught


@pytest.mark.parametrize(
    ("kind", "proposer"),
    [
        *((kind, None) for kind in KINDS),
        ("drawn", RepeatingProposer()),
        ("penalised", RepeatingProposer()),
        ("greedy", RepeatingProposer(TAPS)),
    ],
    ids=[*KINDS, "drawn-drafts", "penalised-drafts", "drafts-from-features"],
)
def test_a_step_reads_no_value_and_moves_no_tensor(
    make_world: MakeWorld, kind: str, proposer: RepeatingProposer | None
) -> None:
    num_drafts = 0 if proposer is None else 3
    world = make_world(rows_max=56, proposer=proposer, num_drafts_max=num_drafts)
    kinds, caught = guard(world)
    rng = random.Random(1)
    prompt = random_prompt(rng, 16)
    for number in range(6):
        world.add(random_prompt(rng, 30 + number) if number % 2 else prompt, **KINDS[kind])
        world.step()
        world.step()
    world.run()

    assert caught == []
    assert all(len(answer.token_ids) == 8 for answer in world.answers.values())
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
