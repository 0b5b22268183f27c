"""The small seeded generator: known numbers, uniform, and neighbours with nothing in common."""

from __future__ import annotations

import random
from statistics import correlation, fmean, pstdev

import pytest

from gateway.stats.seeded import Seeded


def test_numbers_are_those_of_splitmix64() -> None:
    """The reference's first outputs for seed 1234567, their upper 53 bits as a fraction."""
    generator = Seeded(1_234_567)
    known = (6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423)

    assert [generator.random() for _ in known] == [(each >> 11) * 2.0**-53 for each in known]


def test_equal_seeds_repeat_and_first_numbers_of_a_row_of_seeds_are_uniform() -> None:
    firsts = [Seeded(seed).random() for seed in range(10_000)]

    assert firsts == [Seeded(seed).random() for seed in range(10_000)]
    assert fmean(firsts) == pytest.approx(0.5, abs=0.01)
    assert pstdev(firsts) == pytest.approx(12**-0.5, abs=0.005)
    assert abs(correlation(firsts[1:], firsts[:-1])) < 0.03
    assert all(0.0 <= each < 1.0 for each in firsts)


def test_normals_have_the_mean_and_width_asked_for() -> None:
    generator = Seeded(random.Random(3).getrandbits(53))
    found = [generator.gauss(2.0, 0.5) for _ in range(10_000)]

    assert fmean(found) == pytest.approx(2.0, abs=0.02)
    assert pstdev(found) == pytest.approx(0.5, abs=0.015)
