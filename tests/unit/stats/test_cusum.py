"""The change-point detector."""

from __future__ import annotations

import random

from gateway.stats.cusum import THRESHOLD, Cusum


def first_alarm(mean: float, seed: int, limit: int = 5_000) -> int:
    """Samples until the first alarm."""
    rng, detector = random.Random(seed), Cusum()
    for count in range(1, limit):
        if detector.update(rng.gauss(mean, 1.0)):
            return count
    return limit


def test_large_shift_is_seen_within_three_clipped_samples_and_named_by_its_direction() -> None:
    for z, direction in ((3.0, 1), (-3.0, -1)):
        detector = Cusum()
        assert [detector.update(z) for _ in range(3)] == [0, 0, direction]


def test_shift_of_one_deviation_is_found_about_ten_times_sooner_than_a_false_alarm() -> None:
    # Siegmund's approximation for k = 0.5, h = 5: about 10 samples against 465 (two-sided).
    delays = sorted(first_alarm(1.0, seed) for seed in range(200))
    false_alarms = sorted(first_alarm(0.0, seed) for seed in range(200))

    assert 7 <= sum(delays) / 200 <= 14
    assert 300 <= sum(false_alarms) / 200 <= 700


def test_alarm_starts_the_detector_again() -> None:
    detector = Cusum()
    for _ in range(3):
        detector.update(3.0)

    assert (detector.up, detector.down) == (0.0, 0.0)
    assert detector.update(THRESHOLD) == 0
