"""Beliefs about one endpoint, on virtual time."""

from __future__ import annotations

import math

import pytest

from gateway.stats.timeline import NoRate
from gateway.wire.usage import Usage
from tests.support.estimator_world import World
from tests.support.fleet_world import failed, streamed, whole


def test_untried_endpoint_is_believed_average_not_instant() -> None:
    # LiteLLM counts an untried deployment as zero seconds, so it wins at once.
    stats = World().estimator.stats("e", 1_000.0)

    assert math.exp(stats.ttft_mu) == pytest.approx(0.5)
    assert math.exp(stats.rate_mu) == pytest.approx(50.0)
    assert (stats.ttft_sigma, stats.rate_sigma) == (pytest.approx(0.45), pytest.approx(0.35))
    assert (stats.ttft_n, stats.rate_n, stats.sample_age_s) == (3.0, 3.0, None)
    assert stats.ttft_p50_p75_p90_p99_s is None
    assert stats.rate_p50_p75_p90_p99 is None


def test_both_speeds_are_learned_apart() -> None:
    world = World()
    world.streams(200)

    assert world.rate == pytest.approx(100.0, rel=0.08)
    assert world.ttft() == pytest.approx(0.3 + 1_000 / 4_000, rel=0.15)


def test_prompt_length_is_taken_out_of_ttft_and_put_back_for_the_request() -> None:
    world = World()
    world.streams(400, base_s=0.2, prefill=2_000.0)
    stats = world.estimator.stats("e", world.now_s)

    assert stats.prefill_tokens_per_s * stats.ttft_base_s == pytest.approx(400.0, rel=0.35)
    assert world.ttft(200.0) == pytest.approx(0.3, rel=0.2)
    assert world.ttft(8_000.0) == pytest.approx(4.2, rel=0.25)


def test_refit_of_the_prompt_line_does_not_make_the_prediction_jump() -> None:
    world = World()
    for count in range(50):
        if count == 49:
            before_s, line_before = world.ttft(1_000.0), world.estimator.prefill.export()[:2]
        world.now_s += 1.0
        prompt = 500 + 20 * count
        world.estimator.observe(
            streamed(world.now_s, ttft_s=0.1 + prompt / 1_500, prompt=prompt), world.now_s
        )

    assert world.estimator.prefill.export()[:2] != line_before
    assert world.ttft(1_000.0) == pytest.approx(before_s, rel=0.1)


def test_slowdown_to_a_third_moves_the_mean_within_fifteen_samples_and_is_announced() -> None:
    for seed in range(8):
        world = World(seed)
        world.streams(300)
        alarms = world.streams(15, rate=30.0)

        assert ("rate", -1) in alarms
        assert world.rate < 50.0
        world.streams(60, rate=30.0)
        assert world.rate == pytest.approx(30.0, rel=0.15)


def test_every_old_sample_gives_way_not_only_the_newest_slot() -> None:
    # An older LiteLLM replaced only the newest of ten samples and froze the other nine.
    world = World()
    world.streams(10, rate=200.0)
    for _ in range(4):
        world.streams(10, rate=20.0)
        world.now_s += 30.0

    assert world.rate < 30.0


def test_one_outlier_is_clipped_in_the_mean_but_kept_in_the_quantiles() -> None:
    world = World()
    world.streams(100)
    before_s = world.ttft()
    world.now_s += 1.0
    world.estimator.observe(streamed(world.now_s, ttft_s=60.0), world.now_s)

    assert world.ttft() < 1.1 * before_s
    assert world.estimator.histograms["ttft_any"].quantile(1.0) == pytest.approx(60.0, rel=0.02)


def test_quiet_endpoint_keeps_its_samples_longer() -> None:
    world = World()
    world.streams(40, gap_s=60.0)

    assert world.estimator.rate.half_life_s == pytest.approx(480.0, rel=0.05)
    assert world.estimator.stats("e", world.now_s).rate_n > 8.0
    world.streams(40, gap_s=1_000.0)
    assert world.estimator.rate.half_life_s == 900.0


def test_after_silence_the_belief_is_the_slow_one_and_wide_again() -> None:
    world = World()
    world.streams(300)
    world.now_s += 3_600.0
    stats = world.estimator.stats("e", world.now_s)

    assert math.exp(stats.rate_mu) == pytest.approx(100.0, rel=0.1)
    assert stats.rate_n == pytest.approx(3.0, abs=0.01)
    assert stats.sample_age_s == pytest.approx(3_600.0)


def test_buffered_burst_gives_no_rate_sample() -> None:
    world = World()
    world.streams(100)
    before = world.rate
    for _ in range(20):
        world.now_s += 5.0
        burst = streamed(world.now_s, ttft_s=8.0, tokens=800, rate=1_600.0)
        world.estimator.observe(burst, world.now_s)

    assert world.estimator.num_refused_rates == {NoRate.BUFFERED: 20}
    assert world.rate == pytest.approx(before, rel=0.05)


def test_provider_that_always_buffers_is_not_rewarded_with_its_flush_speed() -> None:
    # 200 tok/s in truth; everything is generated before the first byte, then sent at 2,000 tok/s.
    world = World()
    for _ in range(150):
        world.now_s += 3.0
        tokens = world.rng.randint(550, 1_500)
        held = streamed(
            world.now_s, ttft_s=0.4 + tokens / 200.0, tokens=tokens, rate=2_000.0, prompt=100
        )
        world.estimator.observe(held, world.now_s)
        world.estimator.set_peers(None, None)

    assert world.rate == pytest.approx(200.0, rel=0.3)
    # Two parts that are both wrong would still have to add up; these do.
    predicted_s = world.ttft(100.0) + 1_000.0 / world.rate
    assert predicted_s == pytest.approx(0.4 + 1_000 / 200 + 0.5, rel=0.2)
    # What people see is what they waited for.
    assert world.estimator.histograms["ttft_any"].quantile(0.5) == pytest.approx(5.5, rel=0.1)


def test_role_only_frame_does_not_stop_the_clock() -> None:
    # Headers and the role frame come at 50 ms, the first token at 900 ms.
    world = World()
    for _ in range(50):
        world.now_s += 1.0
        outcome = streamed(world.now_s, ttft_s=0.9, prompt=0)
        outcome.headers_at_s = outcome.first_byte_at_s = outcome.dispatched_at_s + 0.05
        world.estimator.observe(outcome, world.now_s)

    assert world.ttft(0.0) == pytest.approx(0.9, rel=0.12)


def test_hourly_probe_of_a_few_tokens_gives_ttft_but_no_speed() -> None:
    world = World()
    for _ in range(30):
        world.now_s += 1.0
        probe = streamed(world.now_s, tokens=20, rate=80.0)
        probe.frame_stamps_s = [probe.first_generated_at_s or 0.0] * 12 + [world.now_s] * 8
        world.estimator.observe(probe, world.now_s)
    stats = world.estimator.stats("e", world.now_s)

    assert stats.rate_p50_p75_p90_p99 is None
    assert stats.ttft_p50_p75_p90_p99_s is not None
    # No decode sample, so n is the prior's; its centre may lean on the end-to-end line.
    assert stats.rate_n == 3.0


def test_slow_client_does_not_look_like_a_slow_provider() -> None:
    world = World()
    world.streams(100)
    before = world.rate
    # Twenty clients that read 5 tok/s: our buffer is full, so upstream stays unread.
    world.streams(20, rate=5.0, reading_paused_s=20.0)

    assert world.rate == pytest.approx(before, rel=0.05)
    assert world.estimator.num_refused_rates == {NoRate.PAUSED: 20}


def test_whole_answers_fit_a_line_and_are_never_ttft_or_decode_samples() -> None:
    # 11.7 tok/s at 31 tokens and 69.4 at 426 are one model: 2,176 ms + 12.47 ms a token.
    world = World()
    for _ in range(200):
        world.now_s += 1.0
        tokens = world.rng.randint(20, 600)
        seconds = (2.176 + 0.01247 * tokens) * world.rng.lognormvariate(0.0, 0.1)
        world.estimator.observe(whole(world.now_s, seconds=seconds, tokens=tokens), world.now_s)
    stats = world.estimator.stats("e", world.now_s)

    assert stats.e2e_base_s == pytest.approx(2.176, rel=0.15)
    assert stats.e2e_s_per_token == pytest.approx(0.01247, rel=0.1)
    assert (stats.ttft_n, stats.rate_n) == (3.0, 3.0)
    assert stats.ttft_p50_p75_p90_p99_s is None
    assert 150.0 < stats.e2e_n <= 200.0
    assert world.estimator.stats("e", world.now_s + 6_000.0).e2e_n < 1.0


def test_streams_are_not_published_as_answers_that_came_whole() -> None:
    world = World()
    world.streams(50)
    stats = world.estimator.stats("e", world.now_s)

    assert (stats.e2e_base_s, stats.e2e_n) == (None, 0.0)


def test_line_of_whole_answers_stands_in_for_streams_never_seen() -> None:
    world = World()
    for _ in range(40):
        world.now_s += 1.0
        tokens = world.rng.randint(20, 600)
        world.estimator.observe(
            whole(world.now_s, seconds=1.0 + tokens / 200.0, tokens=tokens), world.now_s
        )
    world.estimator.set_peers(None, None)

    assert world.rate == pytest.approx(200.0, rel=0.1)
    assert world.ttft(0.0) == pytest.approx(1.0, rel=0.2)


def test_hidden_reasoning_has_its_own_ttft() -> None:
    world = World()
    world.streams(60)
    plain_s = world.ttft()
    hidden = {"base_s": 12.0, "usage": Usage(input=500, output=200, reasoning=900)}
    world.streams(10, **hidden)  # type: ignore[arg-type]
    assert world.ttft() == pytest.approx(plain_s, rel=0.1)
    world.streams(120, **hidden)  # type: ignore[arg-type]

    assert world.estimator.hides_reasoning
    assert world.ttft(500.0) > 6.0


def test_success_falls_with_failures_for_streams_and_whole_answers_alike() -> None:
    world = World()
    world.streams(50)
    for _ in range(5):
        world.estimator.observe(failed(world.now_s, "timeout_first_token"), world.now_s)
    with_timeouts = world.estimator.stats("e", world.now_s).success_p
    for _ in range(5):
        world.estimator.observe(failed(world.now_s, "connect", stream=False), world.now_s)

    assert with_timeouts < 0.95
    assert world.estimator.stats("e", world.now_s).success_p < with_timeouts


@pytest.mark.parametrize("failure", ["rate_limited", "invalid_request", "client_gone"])
def test_push_back_caller_errors_and_cancels_are_no_success_samples(failure: str) -> None:
    world = World()
    before = world.estimator.stats("e", world.now_s)
    for _ in range(20):
        world.estimator.observe(failed(world.now_s, failure), world.now_s)

    assert world.estimator.stats("e", world.now_s) == before


def test_time_lost_by_a_failure_is_learned() -> None:
    world = World()
    for _ in range(30):
        world.estimator.observe(
            failed(world.now_s, "timeout_first_token", lasted_s=15.0), world.now_s
        )

    assert world.estimator.stats("e", world.now_s).failure_lost_s == pytest.approx(15.0, rel=0.07)


def test_peers_median_is_where_an_unmeasured_endpoint_starts() -> None:
    world = World()
    world.estimator.set_peers(math.log(0.2), math.log(300.0))

    assert world.rate == pytest.approx(300.0)
    world.streams(100, rate=100.0)
    assert world.rate == pytest.approx(100.0, rel=0.15)


def test_published_rates_are_those_exceeded_by_the_named_share() -> None:
    world = World()
    world.streams(300)
    p50, p75, p90, p99 = world.estimator.stats("e", world.now_s).rate_p50_p75_p90_p99 or (0,) * 4

    assert p50 > p75 > p90 > p99 > 0
    assert p90 == pytest.approx(100.0 * math.exp(-1.2816 * 0.2), rel=0.08)
