"""Learned capacity: AIMD, cool-down, TTFT gradient, telemetry."""

from __future__ import annotations

import math
import random

import pytest

from gateway.core import MachineLoad
from gateway.fleet.capacity import PROBE_FIRST_S, RETRY_AFTER_MAX_S, Capacity


def test_success_grows_the_limit_by_four_over_it_only_when_half_is_used() -> None:
    capacity = Capacity()
    capacity.succeeded(31, None, 0.0)
    assert capacity.limit == 64.0
    capacity.succeeded(32, None, 0.0)

    assert capacity.limit == pytest.approx(64.0 + 4.0 / 64.0)


def test_push_back_cuts_by_a_tenth_once_a_round() -> None:
    capacity = Capacity()
    for _ in range(20):  # twenty requests under way are refused together
        capacity.pushed_back(64, 1.0, None, 2.0)
    assert capacity.limit == pytest.approx(0.9 * 64.0)
    capacity.pushed_back(57, 3.0, None, 4.0)

    assert capacity.limit == pytest.approx(0.9 * 57.0)


def test_first_push_back_tells_what_load_was_too_much() -> None:
    capacity = Capacity()
    capacity.pushed_back(10, 1.0, None, 2.0)

    assert capacity.limit == pytest.approx(9.0)


def test_retry_after_shuts_the_endpoint_until_then() -> None:
    capacity = Capacity()
    capacity.pushed_back(5, 0.0, 7.0, 100.0)
    assert capacity.cooling_s(100.0) == 7.0
    capacity.pushed_back(5, 0.0, 2.0, 101.0)

    assert capacity.cooling_s(101.0) == 6.0  # a shorter wait does not undo a longer one
    assert capacity.cooling_s(107.0) == 0.0


def test_absurd_retry_after_is_bounded() -> None:
    capacity = Capacity()
    capacity.pushed_back(5, 0.0, 1e9, 0.0)

    assert capacity.cooling_s(0.0) == RETRY_AFTER_MAX_S


def test_429_that_names_no_time_waits_longer_each_round_until_a_success() -> None:
    capacity, now_s, waits = Capacity(), 0.0, []
    for _ in range(7):
        capacity.pushed_back(5, now_s, None, now_s)
        capacity.pushed_back(5, now_s, None, now_s)  # of the same round
        waits.append(capacity.cooling_s(now_s))
        now_s += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    capacity.succeeded(5, None, now_s)
    capacity.pushed_back(5, now_s, None, now_s)

    assert capacity.cooling_s(now_s) == 1.0


def test_endpoint_back_from_an_open_breaker_starts_at_two() -> None:
    capacity = Capacity()
    capacity.restart()
    assert capacity.limit == 2.0
    for _ in range(10):
        capacity.succeeded(math.ceil(capacity.limit), None, 0.0)

    assert 8.0 < capacity.limit < 12.0


def loaded(capacity: Capacity, knee: float | None, seconds: int, seed: int = 1) -> None:
    """Traffic whose TTFT rises linearly with in-flight beyond `knee`; None = never."""
    rng = random.Random(seed)
    for second in range(seconds):
        in_flight = min(rng.randint(1, 40), max(1, int(capacity.limit)))
        rise = 0.0 if knee is None else math.log(1.0 + max(0.0, in_flight - knee) / knee)
        capacity.succeeded(in_flight, rise + rng.gauss(0.0, 0.3), float(second))


def test_ttft_that_rises_with_in_flight_lowers_the_limit_to_about_the_knee() -> None:
    capacity = Capacity()
    loaded(capacity, knee=8.0, seconds=600)

    assert 6.0 <= capacity.limit <= 22.0


def test_noise_without_a_rise_leaves_the_limit_alone() -> None:
    for seed in range(5):
        capacity = Capacity()
        loaded(capacity, knee=None, seconds=600, seed=seed)
        assert capacity.limit >= 36.0


def test_few_noisy_samples_are_no_proof_of_congestion() -> None:
    num_cut = 0
    for seed in range(60):
        capacity, rng = Capacity(), random.Random(seed)
        for second in range(40):
            capacity.succeeded(rng.randint(1, 30), rng.gauss(0.0, 1.0), float(second))
        num_cut += capacity.limit < 60.0

    assert num_cut <= 15


def test_slow_hour_at_an_even_load_is_not_congestion() -> None:
    capacity = Capacity()
    for second in range(600):
        capacity.succeeded(10, 1.2 if second > 300 else 0.0, float(second))

    assert capacity.limit == 64.0


def told(**account: int) -> MachineLoad:
    return MachineLoad(kv_blocks_total=100, **account)


def test_own_account_of_a_full_endpoint_leaves_no_room() -> None:
    capacity = Capacity()
    capacity.report(told(kv_blocks_used=40, in_flight=8, num_running=8), 0.0)
    assert capacity.now(1.0) == pytest.approx(16.0)
    assert not capacity.is_full(8, 1.0)
    assert capacity.is_full(16, 1.0)
    capacity.report(told(num_waiting=7, kv_blocks_used=10, in_flight=9), 1.0)

    # Two have to end before it is not full; then the next may come without another account.
    assert capacity.now(1.0) == 7.0
    assert [capacity.is_full(in_flight, 1.0) for in_flight in (9, 7, 6)] == [True, True, False]


def test_machine_that_others_fill_is_full_for_us_who_have_nothing_there() -> None:
    capacity = Capacity()
    capacity.report(told(num_running=20, num_waiting=5), 0.0)

    assert capacity.is_full(0, 1.0)
    assert capacity.now(1.0) == 1.0


def test_burst_between_two_accounts_makes_no_room_for_itself() -> None:
    capacity = Capacity()
    capacity.report(told(kv_blocks_used=20, in_flight=4, num_running=4), 0.0)

    assert capacity.now(1.0) == 16.0
    assert [capacity.is_full(in_flight, 1.0) for in_flight in (4, 15, 16, 30)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("account", "places"),
    [
        ({"num_waiting": 3, "num_running": 20, "in_flight": 23}, 25.0),  # two until five wait
        ({"num_running": 20, "in_flight": 20, "sequences_max": 24}, 29.0),
        # Others have most of it: room for as many as would fit beside them.
        ({"num_running": 20, "in_flight": 2, "kv_blocks_used": 40}, 22.0),
        ({"kv_blocks_used": 40, "in_flight": 4}, 8.0),  # it does not say how many run
        ({"in_flight": 3}, 64.0),  # nothing in the way: what was learned
    ],
)
def test_own_account_tells_how_many_would_just_not_be_full(
    account: dict[str, int], places: float
) -> None:
    capacity = Capacity()
    capacity.report(told(**account), 0.0)

    assert capacity.now(0.5) == pytest.approx(places)


def test_stale_account_counts_as_full_and_a_vanished_one_no_more() -> None:
    capacity = Capacity()
    capacity.report(told(kv_blocks_used=80), 0.0)

    assert (capacity.now(2.0), capacity.is_full(0, 2.0), capacity.is_silent(2.0)) == (
        1.0,
        True,
        False,
    )
    # How many it would carry is then what was learned: nobody knows better.
    assert (capacity.now(2.5), capacity.is_full(0, 2.5), capacity.is_silent(2.5)) == (
        64.0,
        True,
        True,
    )
    assert (capacity.is_full(3, 61.0), capacity.is_silent(61.0)) == (False, False)


def test_who_tells_its_load_is_not_cut_for_being_slow_under_it() -> None:
    guessed, telling = Capacity(), Capacity()
    for second in range(120):
        in_flight = 2 if second % 2 else 40
        slow = 3.0 if in_flight == 40 else 0.0
        telling.report(told(in_flight=in_flight), float(second))
        for capacity in (guessed, telling):
            capacity.succeeded(in_flight, slow, float(second))

    assert guessed.limit < 40.0
    assert telling.limit >= 64.0


def round_of_refusals(capacity: Capacity, fitted: int, refused: int, now_s: float) -> None:
    """A burst of which `fitted` are served and the rest refused, each ending as it is."""
    for in_flight in range(fitted + refused, fitted, -1):
        capacity.pushed_back(in_flight, now_s, 1.0, now_s + 0.01)
    capacity.succeeded(fitted, None, now_s + 0.5, now_s)


def test_those_served_while_others_are_refused_tell_how_many_fit() -> None:
    capacity = Capacity()
    round_of_refusals(capacity, fitted=8, refused=30, now_s=10.0)

    assert capacity.limit == 8.0


def test_known_ceiling_holds_until_one_request_more_is_tried() -> None:
    capacity = Capacity()
    round_of_refusals(capacity, fitted=8, refused=1, now_s=10.0)
    for second in range(12, 60):
        capacity.succeeded(8, None, float(second), second - 0.5)
    assert capacity.limit == 8.0
    capacity.succeeded(8, None, 10.5 + PROBE_FIRST_S, 70.0)

    assert 8.0 < capacity.limit <= 9.0


def test_ceiling_that_held_is_tried_half_as_often() -> None:
    capacity = Capacity()
    round_of_refusals(capacity, fitted=8, refused=1, now_s=10.0)
    round_of_refusals(capacity, fitted=8, refused=1, now_s=80.0)
    capacity.succeeded(8, None, 80.5 + PROBE_FIRST_S, 140.0)
    assert capacity.limit == 8.0
    capacity.succeeded(8, None, 80.5 + 2 * PROBE_FIRST_S, 200.0)

    assert capacity.limit > 8.0


def test_more_than_fitted_before_lifts_the_ceiling() -> None:
    capacity = Capacity()
    round_of_refusals(capacity, fitted=8, refused=1, now_s=10.0)
    for _ in range(4):
        capacity.succeeded(8, None, 71.0, 70.9)
    capacity.succeeded(9, None, 72.0, 71.5)
    for _ in range(40):
        capacity.succeeded(math.ceil(capacity.limit), None, 73.0, 72.5)

    assert capacity.limit > 16.0


def test_refusals_that_spare_nobody_name_no_ceiling() -> None:
    capacity = Capacity()
    for in_flight in range(20, 0, -1):  # a limit on requests a minute refuses all alike
        capacity.pushed_back(in_flight, 1.0, 1.0, 1.1)
    assert capacity.limit == pytest.approx(18.0)
    for second in range(3, 40):
        capacity.succeeded(math.ceil(capacity.limit), None, float(second), second - 0.5)

    assert capacity.limit > 20.0
