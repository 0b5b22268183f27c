"""Where a prefix is cached and where its home is."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.affinity import Affinity, endpoint_seed, home, load_max


def key_of(idx: int) -> str:
    return hashlib.sha256(str(idx).encode()).hexdigest()


def seeds(num: int) -> list[tuple[str, int]]:
    return [(f"p{idx}/m", endpoint_seed(f"p{idx}/m")) for idx in range(num)]


def test_last_endpoint_and_cached_tokens_are_remembered() -> None:
    affinity = Affinity()
    affinity.record("k", "a", 1_000, 0.0)
    affinity.record("k", "b", 2_000, 1.0)

    assert affinity.expected("k", 2.0) == ("b", {"a": 1_000, "b": 2_000})


def test_ten_idle_minutes_end_it() -> None:
    affinity = Affinity()
    affinity.record("k", "a", 1_000, 0.0)
    affinity.record("k", "b", 2_000, 300.0)

    assert affinity.expected("k", 599.0)[1] == {"a": 1_000, "b": 2_000}
    assert affinity.expected("k", 601.0) == ("b", {"b": 2_000})
    assert affinity.expected("k", 900.0) == ("", {})
    assert len(affinity) == 0


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    affinity = Affinity(records_max=3)
    for key in ("a", "b", "c", "a", "d"):
        affinity.record(key, "e", 10, 0.0)

    assert len(affinity) == 3
    assert affinity.expected("b", 1.0) == ("", {})
    assert affinity.expected("a", 1.0)[0] == "e"


def test_at_most_four_endpoints_are_remembered_for_one_prefix() -> None:
    affinity = Affinity()
    for idx in range(10):
        affinity.record("k", f"e{idx}", 10, 0.0)

    assert list(affinity.expected("k", 1.0)[1]) == ["e6", "e7", "e8", "e9"]


def test_homes_are_spread_evenly_and_are_the_same_in_every_process() -> None:
    counts = Counter(home(key_of(idx), seeds(5), [0] * 5) for idx in range(5_000))

    assert all(880 <= count <= 1_120 for count in counts.values())
    # A literal: another process, or tomorrow's, must choose the same.
    assert [home(key_of(idx), seeds(5), [0] * 5) for idx in range(4)] == [
        "p4/m", "p2/m", "p0/m", "p4/m",
    ]  # fmt: skip


def test_endpoint_that_goes_takes_only_its_own_keys_with_it() -> None:
    all_five = seeds(5)
    four = all_five[:2] + all_five[3:]
    for idx in range(500):
        before = home(key_of(idx), all_five, [0] * 5)
        after = home(key_of(idx), four, [0] * 4)
        assert after == before or before == "p2/m"


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_no_endpoint_gets_more_than_its_bounded_share_of_one_hot_prefix(
    num: int, seed: int
) -> None:
    rng = random.Random(seed)
    loads = [0] * num
    names = [name for name, _ in seeds(num)]
    for _ in range(200):
        chosen = home(
            "ab" * 32 if rng.random() < 0.9 else key_of(rng.randrange(50)), seeds(num), loads
        )
        loads[names.index(chosen)] += 1
        assert max(loads) <= 1.25 * sum(loads) / num + 1.0


def test_fair_share_is_a_quarter_more_than_even_rounded_up() -> None:
    assert load_max(39, 4) == 13  # 1.25 × 40/4 = 12.5
    assert load_max(0, 8) == 1


def test_no_open_endpoint_has_no_home() -> None:
    assert home("ab", [], []) == ""


def test_key_that_is_no_hex_still_has_a_home() -> None:
    assert home("user: 7", seeds(3), [0] * 3) in {"p0/m", "p1/m", "p2/m"}
