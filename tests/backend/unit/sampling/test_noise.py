"""The noise: the published hash, and numbers that behave like independent uniforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from backend.sampling.noise import as_int64, mix, round_uniforms, uniforms
from tests.support.sampling_requests import GAMMA, MASK, uniform_by_hand


def grid(num_seeds: int, num_positions: int, first_seed: int = 0) -> np.ndarray:
    seeds = torch.arange(first_seed, first_seed + num_seeds).unsqueeze(1)
    positions = torch.arange(num_positions).unsqueeze(0)
    shape = (num_seeds, num_positions)
    return uniforms(seeds.expand(shape), positions.expand(shape)).numpy()


def chi_square(counts: np.ndarray) -> float:
    return float(stats.chisquare(counts.ravel()).pvalue)


def test_mix_gives_the_first_numbers_of_splitmix64_from_seed_0() -> None:
    states = torch.tensor([as_int64(GAMMA), as_int64(2 * GAMMA), as_int64(3 * GAMMA)])

    mixed = [value & MASK for value in mix(states).tolist()]

    assert mixed == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(seed=st.integers(-(2**63), 2**64 - 1), position=st.integers(0, 2**40))
def test_uniform_is_the_hash_of_seed_and_position(seed: int, position: int) -> None:
    got = uniforms(torch.tensor([as_int64(seed)]), torch.tensor([position])).item()

    assert got == uniform_by_hand(seed & MASK, position)


def test_as_int64_wraps_any_integer() -> None:
    assert [as_int64(v) for v in (0, -1, 2**63, 2**64 + 5, -(2**63))] == [
        *(0, -1, -(2**63), 5, -(2**63))
    ]


def test_values_lie_between_0_and_1() -> None:
    values = grid(200, 500)

    assert values.min() > 0.0
    assert values.max() < 1.0
    # Even the largest hash there is stays below 1, the smallest above 0.
    assert ((2**52 - 1) + 0.5) * 2.0**-52 < 1.0


@pytest.mark.parametrize("axis", ["positions of a seed", "seeds at a position"])
def test_values_are_uniform(axis: str) -> None:
    values = grid(1, 100_000) if axis.startswith("positions") else grid(100_000, 1)

    counts, _ = np.histogram(values, bins=256, range=(0.0, 1.0))

    assert chi_square(counts) > 1e-4
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    ("seed_step", "position_step"), [(0, 1), (1, 0), (1, 1), (1, -1), (2, 0), (0, 2)]
)
def test_neighbours_are_independent(seed_step: int, position_step: int) -> None:
    values = grid(402, 402)
    first = values[: 400 - seed_step, 1 : 400 - abs(position_step)]
    second = values[
        seed_step : seed_step + first.shape[0],
        1 + position_step : 1 + position_step + first.shape[1],
    ]

    joint, _, _ = np.histogram2d(
        first.ravel(), second.ravel(), bins=16, range=((0.0, 1.0), (0.0, 1.0))
    )

    assert chi_square(joint) > 1e-4
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 4.5 / np.sqrt(first.size)


def test_seeds_do_not_give_shifted_copies_of_one_sequence() -> None:
    values = grid(64, 512)
    by_gamma = uniforms(
        torch.full((512,), as_int64(GAMMA)), torch.arange(512)
    ).numpy()  # the seed that a plain counter would confuse with seed 0, shifted by one

    assert len(np.unique(values)) == values.size
    assert not np.intersect1d(values[0], by_gamma).size


def test_every_bit_of_seed_and_position_matters() -> None:
    bits = torch.tensor([as_int64(1 << bit) for bit in range(64)])
    zeros = torch.zeros(64, dtype=torch.int64)

    by_seed = uniforms(bits, zeros)
    by_position = uniforms(zeros, bits)

    assert by_seed.unique().numel() == 64
    assert by_position.unique().numel() == 64


def test_each_place_of_a_round_has_a_stream_of_its_own() -> None:
    """None is another's, or the target's, and none comes back at another start."""
    starts = torch.arange(20_000)
    seeds = torch.full_like(starts, 7)
    rounds = round_uniforms(seeds, starts, 4)
    columns = torch.cat((rounds, uniforms(seeds, starts).unsqueeze(1)), 1).numpy()

    assert len(np.unique(columns)) == columns.size
    for one in range(columns.shape[1]):
        assert stats.kstest(columns[:, one], "uniform").pvalue > 1e-4
        for other in range(one):
            for shift in range(4):
                pair = columns[: 20_000 - shift, one], columns[shift:, other]
                cells, *_ = np.histogram2d(*pair, bins=8, range=[[0, 1], [0, 1]])
                assert chi_square(cells) > 1e-5


def test_the_noise_of_a_round_depends_on_its_own_row_alone() -> None:
    seeds, starts = torch.tensor([3, -4, 5]), torch.tensor([9, 2, 9])

    together = round_uniforms(seeds, starts, 3)

    for row in range(3):
        one = slice(row, row + 1)
        assert torch.equal(round_uniforms(seeds[one], starts[one], 2), together[one, :2])
