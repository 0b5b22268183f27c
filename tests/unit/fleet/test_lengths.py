"""Expected output length."""

from __future__ import annotations

import random

import pytest

from gateway.fleet.lengths import Lengths

CHAT = ("k", "chat", None, False)


def test_before_anything_was_seen_two_hundred_tokens_are_expected() -> None:
    assert Lengths().expected(CHAT, 0.0) == (pytest.approx(200.0), 0.0)


def test_median_of_a_kind_is_learned_not_its_mean() -> None:
    lengths, rng = Lengths(), random.Random(1)
    for _ in range(400):
        lengths.observe(CHAT, rng.lognormvariate(3.4, 1.2), 0.0)
    lengths.observe(CHAT, 100_000.0, 0.0)

    assert lengths.expected(CHAT, 0.0)[0] == pytest.approx(30.0, rel=0.2)


def test_new_kind_leans_on_its_model() -> None:
    lengths = Lengths()
    for _ in range(100):
        lengths.observe(CHAT, 1_000.0, 0.0)
    lengths.observe(("other", "chat", None, True), 50.0, 0.0)

    expected, n = lengths.expected(("other", "chat", None, True), 0.0)
    assert 400.0 < expected < 1_000.0
    assert n == pytest.approx(101.0)
    assert lengths.expected(("k", "another-model", None, False), 0.0)[1] == 0.0


def test_max_tokens_caps_the_expectation() -> None:
    lengths = Lengths()
    for _ in range(50):
        lengths.observe(CHAT, 900.0, 0.0)

    assert lengths.expected(("k", "chat", 64, False), 0.0)[0] == 64.0


def test_answers_cut_off_count_for_their_own_kind_only() -> None:
    lengths = Lengths()
    for _ in range(50):
        lengths.observe(("k", "chat", 16, False), 16.0, 0.0, is_capped=True)

    assert lengths.expected(("k", "chat", 16, False), 0.0)[0] == pytest.approx(16.0, rel=0.4)
    assert lengths.expected(CHAT, 0.0)[0] == pytest.approx(200.0)


def test_kinds_and_models_are_bounded() -> None:
    lengths = Lengths(keys_max=10, models_max=5)
    for idx in range(50):
        lengths.observe((f"k{idx}", f"m{idx}", None, False), 10.0, 0.0)

    assert len(lengths._kinds) == 10
    assert len(lengths._models) == 5


def test_longest_answers_wait_for_enough_samples() -> None:
    lengths = Lengths()
    assert lengths.longest("chat", None, 4_096.0) == 4_096.0
    assert lengths.longest("chat", 100, 4_096.0) == 100.0
    for idx in range(200):
        lengths.observe(CHAT, 3_000.0 if idx % 50 == 0 else 100.0, 0.0)

    assert lengths.longest("chat", None, 4_096.0) == pytest.approx(3_000.0, rel=0.06)
