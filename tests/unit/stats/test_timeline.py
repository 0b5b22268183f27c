"""What of a stream may count as a speed sample (gateways 3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stats.timeline import Expected, NoRate, Stamps, decode_sample, is_burst


def stream(
    arrivals: list[float], *, tokens_per_arrival: int = 1, dispatched_at_s: float = 0.0
) -> Stamps:
    times = [at_s for at_s in arrivals for _ in range(tokens_per_arrival)]
    return Stamps(
        dispatched_at_s=dispatched_at_s,
        first_generated_at_s=times[0],
        first_visible_at_s=times[0],
        last_generated_at_s=times[-1],
        frame_stamps_s=times[:512],
        num_frames=len(times),
    )


def even(num: int, rate: float, first_s: float = 0.5) -> list[float]:
    return [first_s + idx / rate for idx in range(num)]


def test_even_stream_gives_its_decode_rate_without_the_first_token() -> None:
    found = decode_sample(stream(even(101, 50.0)), 101)

    assert found.tokens_per_s == pytest.approx(50.0)
    assert found.weight == pytest.approx(101 / 128)


@given(st.integers(1, 8), st.integers(16, 200), st.floats(5, 400))
def test_rate_does_not_depend_on_how_many_tokens_an_event_carries(
    tokens_per_arrival: int, num_arrivals: int, rate: float
) -> None:
    arrivals = even(num_arrivals, rate / tokens_per_arrival)
    if arrivals[-1] - arrivals[0] < 0.25:
        return
    num_tokens = num_arrivals * tokens_per_arrival
    found = decode_sample(stream(arrivals, tokens_per_arrival=tokens_per_arrival), num_tokens)

    assert found.tokens_per_s == pytest.approx(rate)


def test_weight_is_full_from_128_tokens() -> None:
    assert decode_sample(stream(even(300, 50.0)), 300).weight == 1.0


@pytest.mark.parametrize(
    ("arrivals", "num_tokens", "reason"),
    [
        (even(15, 30.0), 15, NoRate.TOO_FEW_TOKENS),
        (even(40, 200.0), 40, NoRate.TOO_SHORT),
        (even(4, 8.0), 40, NoRate.TOO_FEW_ARRIVALS),
    ],
)
def test_thin_stream_gives_no_rate(arrivals: list[float], num_tokens: int, reason: NoRate) -> None:
    assert decode_sample(stream(arrivals), num_tokens).refused is reason


def test_sixteen_tokens_over_a_quarter_second_are_just_enough() -> None:
    assert decode_sample(stream(even(16, 60.0)), 16).refused is None


def test_hourly_probe_of_twenty_tokens_in_two_packets_shows_no_speed() -> None:
    # "Hi", 20 tokens: read as 40 to 1,197 tok/s in neighbouring hours by public probes.
    times = [0.6] * 12 + [0.9] * 8
    stamps = Stamps(
        dispatched_at_s=0.0, first_generated_at_s=0.6, last_generated_at_s=0.9,
        frame_stamps_s=times, num_frames=20,
    )  # fmt: skip

    assert decode_sample(stamps, 20).refused is NoRate.TOO_FEW_ARRIVALS


def test_flush_after_a_held_stream_gives_no_rate() -> None:
    # One early token, then nothing for 3 s, then 200 tokens in 0.2 s.
    times = [0.5] + [3.5 + idx / 1000 for idx in range(200)]

    assert decode_sample(stream(times), 201).refused is NoRate.BURST


def test_flush_at_the_start_followed_by_a_trickle_gives_no_rate() -> None:
    times = [0.5 + idx / 2000 for idx in range(180)] + [1.0 + idx * 0.1 for idx in range(20)]

    assert decode_sample(stream(times), 200).refused is NoRate.BURST


def test_flush_beyond_the_stamps_kept_is_still_seen() -> None:
    # 512 stamps kept of 3,000 frames, the other 2,488 in the last 2 % of the span.
    times = [0.5 + idx * 0.01 for idx in range(512)]

    assert is_burst(times, 3_000, times[-1] + 0.1)
    assert not is_burst(times, 3_000, times[-1] + 25.0)


def test_stream_buffered_whole_and_sent_at_line_speed_gives_no_rate() -> None:
    # 610 ms of evenly spaced flush looked like 1,000 to 2,700 tok/s; the wait tells.
    stamps = stream(even(1_000, 1_640.0, first_s=12.0))
    believed = Expected(ttft_s=0.5, tokens_per_s=80.0)

    assert decode_sample(stamps, 1_000, believed).refused is NoRate.BUFFERED


def test_endpoint_that_really_became_six_times_faster_is_believed() -> None:
    stamps = stream(even(400, 480.0, first_s=0.5))
    found = decode_sample(stamps, 400, Expected(ttft_s=0.5, tokens_per_s=80.0))

    assert found.tokens_per_s == pytest.approx(480.0)


def test_stream_held_up_by_a_slow_client_gives_no_rate() -> None:
    found = decode_sample(stream(even(100, 50.0)), 100, paused_s=1.2)

    assert found.refused is NoRate.PAUSED
    assert decode_sample(stream(even(100, 50.0)), 100, paused_s=0.0004).refused is None


def test_stream_without_generated_tokens_gives_no_rate() -> None:
    assert decode_sample(Stamps(dispatched_at_s=0.0), 100).refused is NoRate.NO_STREAM


def test_frames_counted_without_stamps_still_give_a_rate() -> None:
    stamps = Stamps(
        dispatched_at_s=0.0, first_generated_at_s=1.0, last_generated_at_s=3.0, num_frames=50
    )

    assert decode_sample(stamps, 200).tokens_per_s == pytest.approx(200 * 0.98 / 2.0)


def test_reasoning_first_makes_two_times_to_first_token() -> None:
    stamps = Stamps(
        dispatched_at_s=10.0, first_generated_at_s=11.175, first_visible_at_s=193.581,
        last_generated_at_s=200.0, ended_at_s=203.0,
    )  # fmt: skip

    assert stamps.ttft_any_s == pytest.approx(1.175)
    assert stamps.ttft_visible_s == pytest.approx(183.581)


def test_usage_trailer_is_not_part_of_the_stream() -> None:
    stamps = Stamps(
        dispatched_at_s=0.0, first_generated_at_s=1.0, last_generated_at_s=3.0, ended_at_s=9.0
    )

    assert (stamps.span_s, stamps.whole_s) == (2.0, 3.0)


def test_answer_that_came_whole_takes_until_its_end() -> None:
    assert Stamps(dispatched_at_s=1.0, ended_at_s=4.0).whole_s == 3.0
