"""Trained heads of a trained target: how many drafts they must get accepted, and that the faults
which leave the text right are seen in nothing but that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from backend.serving.draft_check import target_identity
from backend.speculate.heads.identity import check_identity
from backend.speculate.protocol import ProposeInput
from kernels.reference.linear_int8 import quantize_int8
from tests.backend.unit.speculate.test_silent_bugs import (
    Mutate,
    MutateOps,
    keep_what_was_written,
    one_layer_further,
    rewired,
)
from tests.bundle.corpus import NUM_PROMPTS, held_out_prompts, prompts, question
from tests.support.bundle import (
    DATA,
    METHODS,
    WEIGHTS,
    BundleWorld,
    Served,
    head_directory,
    packed_target,
    unpack_target,
)

pytestmark = pytest.mark.slow  # heads are served by the whole engine

NUM_DRAFTS = 4
NUM_TOKENS = 64
NUM_HELD_OUT = 24


@dataclass(frozen=True)
class Floor:
    """`length`: mean acceptance length. `by_place`: of drafts whose predecessors were accepted."""

    length: float
    by_place: tuple[float, ...]


# A few per cent below what was measured (2.27, 2.33, 2.07): all is greedy float32, and only a
# near-tie that falls otherwise on another machine may move it.
FLOORS = {
    "eagle3": Floor(2.22, (0.56, 0.65, 0.46, 0.40)),
    "dflash": Floor(2.28, (0.53, 0.72, 0.57, 0.50)),
    "dspark": Floor(2.04, (0.48, 0.58, 0.50, 0.46)),
}
MISSED_BY = 0.965  # of the floor: a fault must not come nearer


def late_features(proposer: Any) -> None:
    """Each row is shown the states of the row before it."""
    real = proposer._features

    def changed(given: ProposeInput) -> Tensor:
        features: Tensor = real(given)
        rows = features.unflatten(0, (len(given.slots), -1))
        return rows.roll(1, 1).flatten(0, 1)

    proposer._features = changed


def drafts_from_the_start(proposer: Any) -> None:
    """Rows of drafts are counted from 0 and not from where the text is."""
    real = proposer._step

    def changed(tokens: Tensor, hidden: Tensor, places: Any) -> Tensor:
        moved = replace(places, positions=torch.zeros_like(places.positions))
        stepped: Tensor = real(tokens, hidden, moved)
        return stepped

    proposer._step = changed


def block_from_the_start(real: Any, qkv: Tensor, positions: Tensor, *rest: Any, **more: Any) -> Any:
    """The same of a block: context rows have no queries."""
    if more["num_heads"]:
        positions = positions - positions.min()
    return real(qkv, positions, *rest, **more)


@dataclass(frozen=True)
class Fault:
    mutate: Mutate | None = None
    mutate_ops: Callable[[], MutateOps] | None = None


STALE = Fault(mutate_ops=keep_what_was_written)
BLOCK = Fault(mutate_ops=lambda: rewired("rope_kv_write", block_from_the_start))
# DSpark's small head hardly minds which row of two neighbours it is shown; the other two do.
FAULTS: dict[str, dict[str, Fault]] = {
    "row of features shifted": dict.fromkeys(("eagle3", "dflash"), Fault(late_features)),
    "drafts' own rows stay in the cache": dict.fromkeys(METHODS, STALE),
    "wrong layer": dict.fromkeys(METHODS, Fault(one_layer_further)),
    "wrong rotary position": {
        "eagle3": Fault(drafts_from_the_start),
        "dflash": BLOCK,
        "dspark": BLOCK,
    },
}
CASES = [(name, method) for name, methods in FAULTS.items() for method in methods]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> BundleWorld:
    return BundleWorld.load(unpack_target(tmp_path_factory.mktemp("bundle")))


@pytest.fixture(scope="module")
def asked(world: BundleWorld) -> list[tuple[int, ...]]:
    lines = held_out_prompts(0, NUM_HELD_OUT, unlike=prompts(0, NUM_PROMPTS))
    return [world.token_ids(each["messages"]) for each in lines]


@pytest.fixture(scope="module")
def plain(world: BundleWorld, asked: list[tuple[int, ...]]) -> Served:
    return world.serve(asked, NUM_TOKENS)


def drafted(
    world: BundleWorld, asked: list[tuple[int, ...]], method: str, fault: Fault | None = None
) -> Served:
    ops = world.ops
    if fault and fault.mutate_ops:
        ops = fault.mutate_ops()(ops)
    proposer = world.proposer(method, NUM_DRAFTS, ops)
    if fault and fault.mutate:
        fault.mutate(proposer)
    return world.serve(asked, NUM_TOKENS, proposer)


@pytest.fixture(scope="module")
def served(world: BundleWorld, asked: list[tuple[int, ...]]) -> dict[str, Served]:
    return {method: drafted(world, asked, method) for method in METHODS}


def length_of(served: Served) -> float:
    assert served.figures is not None
    length = served.figures.mean_acceptance_length
    assert length is not None
    return length


@pytest.mark.parametrize("method", METHODS)
def test_as_many_drafts_are_accepted_as_the_head_is_known_for(
    served: dict[str, Served], plain: Served, method: str
) -> None:
    found, floor = served[method], FLOORS[method]

    assert found.texts == plain.texts
    assert found.figures is not None
    assert found.figures.num_drafts > 100, "too few rounds to tell"
    assert length_of(found) >= floor.length
    for place, (rate, least) in enumerate(
        zip(found.figures.acceptance_by_position, floor.by_place, strict=True), 1
    ):
        assert rate >= least, f"place {place}"


@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_silent_fault_misses_the_floor(
    world: BundleWorld,
    asked: list[tuple[int, ...]],
    served: dict[str, Served],
    plain: Served,
    method: str,
    name: str,
) -> None:
    """The text is the plain one all the same: nothing else would show the fault."""
    floor = FLOORS[method].length
    assert length_of(served[method]) >= floor

    found = drafted(world, asked, method, FAULTS[name][method])

    assert found.texts == plain.texts
    assert length_of(found) < MISSED_BY * floor


@pytest.mark.parametrize("method", METHODS)
def test_a_head_is_for_this_target(world: BundleWorld, method: str) -> None:
    target = target_identity(world.directory, world.text.tokenizer)

    identity = check_identity(head_directory(method), target)

    assert identity is not None
    assert identity.method == method


def test_the_bundle_is_small(world: BundleWorld) -> None:
    num_parameters = sum(each.numel() for each in load_file(world.directory / WEIGHTS).values())
    assert num_parameters <= 1_500_000
    assert world.model.config.vocab_size == world.text.tokenizer.vocab_size <= 1536

    def num_bytes(directory: Path) -> int:
        return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())

    assert num_bytes(packed_target()) <= 1_600_000
    assert max(num_bytes(head_directory(method)) for method in METHODS) <= 500_000
    assert num_bytes(DATA) <= 4_000_000


def test_unpacking_loses_nothing(world: BundleWorld) -> None:
    """Quantizing what was unpacked finds what lies in the repository."""
    packed = load_file(packed_target() / WEIGHTS)
    matrices = [name for name, each in packed.items() if each.dtype is torch.int8]
    assert len(matrices) > 40
    for name, weight in load_file(world.directory / WEIGHTS).items():
        expected = packed[name]
        found = quantize_int8(weight).qweight if name in matrices else weight
        assert torch.equal(found, expected), name


def test_questions_that_are_held_out_were_never_trained_on() -> None:
    trained = prompts(0, NUM_PROMPTS)
    held_out = held_out_prompts(0, 200, unlike=trained)

    assert trained == prompts(0, NUM_PROMPTS)
    assert trained != prompts(1, NUM_PROMPTS)
    assert not set(map(question, trained)) & set(map(question, held_out))
    assert len(set(map(question, held_out))) > 150
