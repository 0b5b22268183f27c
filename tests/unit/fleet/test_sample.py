"""What one attempt may teach: the pitfalls of gateways 3, one by one."""

from __future__ import annotations

import pytest

from gateway.core import AttemptOutcome
from gateway.errors import FAILURES, FailureClass
from gateway.fleet.sample import Sample, read_sample
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage
from tests.support.fleet_world import failed, streamed, whole

NOW_S = 1_000.0


def read(outcome: AttemptOutcome) -> Sample:
    return read_sample(outcome, 4.0)


def test_plain_stream_gives_everything() -> None:
    sample = read(streamed(NOW_S, ttft_s=0.4, tokens=200, rate=100.0, prompt=900))

    assert sample.is_success is True
    assert sample.ttft_s == pytest.approx(0.4)
    assert sample.whole_s == pytest.approx(0.4 + 1.99)
    assert (sample.stream_tokens, sample.total_tokens, sample.length_tokens) == (200, 200, 200)
    assert sample.uncached_tokens == 900
    assert sample.may_give_rate


def test_answer_that_came_whole_gives_one_end_to_end_sample_only() -> None:
    sample = read(whole(NOW_S, seconds=3.0, tokens=150))

    assert (sample.ttft_s, sample.may_give_rate) == (None, False)
    assert sample.whole_s == pytest.approx(3.0)
    assert sample.length_tokens == 150


def test_cached_prompt_tokens_are_no_prefill() -> None:
    sample = read(streamed(NOW_S, usage=Usage(input=200, cached_read=800, output=200)))

    assert sample.uncached_tokens == 200


def test_without_usage_prompt_and_tokens_are_estimated() -> None:
    sample = read(
        streamed(NOW_S, usage=None, prompt_tokens_expected=700, cached_tokens_expected=300)
    )

    assert sample.uncached_tokens == 400
    assert sample.stream_tokens == pytest.approx(200.0)
    assert not sample.has_exact_tokens


def test_zero_usage_is_no_usage() -> None:
    assert read(streamed(NOW_S, usage=Usage())).stream_tokens == pytest.approx(200.0)


def test_streamed_reasoning_counts_as_streamed_once() -> None:
    sample = read(
        streamed(NOW_S, tokens=300, reasoning_chars=800, visible_chars=400,
                 usage=Usage(input=1, output=100, reasoning=200))
    )  # fmt: skip

    assert sample.stream_tokens == 300
    assert not sample.is_hidden_reasoning


def test_hidden_reasoning_is_a_class_of_its_own_and_no_speed() -> None:
    sample = read(streamed(NOW_S, usage=Usage(input=1, output=200, reasoning=2_000)))

    assert sample.is_hidden_reasoning
    assert (sample.stream_tokens, sample.total_tokens) == (200, 2_200)


def test_hidden_tokens_billed_as_plain_output_are_found_by_their_characters() -> None:
    # Public probes read reasoning models at up to 2,000 tok/s because of this.
    sample = read(streamed(NOW_S, tokens=200, usage=Usage(input=1, output=2_200)))

    assert sample.is_hidden_reasoning
    assert sample.stream_tokens == pytest.approx(200.0)


def test_chinese_text_is_not_taken_for_hidden_reasoning() -> None:
    sample = read(streamed(NOW_S, tokens=300, visible_chars=330, usage=Usage(output=300)))

    assert not sample.is_hidden_reasoning
    assert sample.stream_tokens == 300


@pytest.mark.parametrize("failure", list(FailureClass))
def test_every_failure_class_counts_as_the_table_says(failure: FailureClass) -> None:
    sample = read(streamed(NOW_S, failure=failure.value))

    assert sample.is_success is (False if FAILURES[failure].counts_for_breaker else None)
    cut_short = (FailureClass.CLIENT_GONE, FailureClass.TOO_SLOW, FailureClass.OUTPACED)
    if failure not in cut_short:
        assert sample.ttft_s is None
        assert not sample.may_give_rate
    assert sample.whole_s is None
    assert sample.length_tokens is None


def test_error_frame_after_one_token_is_no_fast_first_token() -> None:
    # A hedge crowned a broken provider 36 times in 13 minutes this way.
    sample = read(streamed(NOW_S, ttft_s=0.01, failure="stream_broken"))

    assert (sample.ttft_s, sample.is_success) == (None, False)


def test_unknown_failure_word_is_the_providers_fault() -> None:
    assert read(failed(NOW_S, "no such class")).failure is FailureClass.SERVER_ERROR


def test_stream_the_client_left_gives_speed_but_no_length() -> None:
    sample = read(streamed(NOW_S, client_gone=True, usage=None))

    assert sample.is_success is None
    assert sample.ttft_s is not None
    assert sample.may_give_rate
    assert (sample.whole_s, sample.length_tokens) == (None, None)


def test_client_gone_before_the_first_token_says_nothing() -> None:
    sample = read(failed(NOW_S, "", client_gone=True))

    assert (sample.is_success, sample.ttft_s, sample.whole_s) == (None, None, None)


def test_replayed_answer_gives_no_speed() -> None:
    sample = read(streamed(NOW_S, is_cached_answer=True))

    assert (sample.ttft_s, sample.whole_s, sample.may_give_rate) == (None, None, False)


def test_answer_cut_off_at_max_tokens_is_marked() -> None:
    for finish in ("length", "max_tokens"):
        assert read(streamed(NOW_S, finish=finish)).is_length_capped


def test_parallel_choices_give_no_rate_and_no_length() -> None:
    sample = read(streamed(NOW_S, num_choices=4))

    assert not sample.may_give_rate
    assert (sample.length_tokens, sample.whole_s) == (None, None)
    assert sample.ttft_s is not None


def test_tool_call_held_back_and_sent_at_once_is_no_first_token() -> None:
    held = {"visible_chars": 0, "tool_chars": 600, "ttft_s": 3.0, "tokens": 150, "rate": 5_000.0}

    assert read(streamed(NOW_S, **held)).ttft_s is None  # type: ignore[arg-type]


def test_text_before_a_tool_call_has_stopped_the_clock() -> None:
    sample = read(streamed(NOW_S, tokens=40, rate=90_000.0, visible_chars=60, tool_chars=100))

    assert sample.ttft_s == pytest.approx(0.4)


def test_stream_in_name_only_has_no_first_token() -> None:
    # Asked for a stream, the provider answered with the whole text in one piece.
    sample = read(streamed(NOW_S, ttft_s=4.0, tokens=200, rate=100_000.0))

    assert sample.ttft_s is None
    assert sample.whole_s == pytest.approx(4.0, rel=0.01)


def test_short_answer_in_one_read_still_has_its_first_token() -> None:
    assert read(streamed(NOW_S, tokens=20, rate=100_000.0)).ttft_s == pytest.approx(0.4)


def test_microseconds_of_waiting_for_room_do_not_spoil_a_sample() -> None:
    assert read(streamed(NOW_S, reading_paused_s=0.0004)).whole_s is not None


def test_tool_call_that_streams_gives_its_first_token() -> None:
    assert read(streamed(NOW_S, visible_chars=0, tool_chars=800)).ttft_s == pytest.approx(0.4)


def test_counting_tokens_says_nothing_of_generation() -> None:
    sample = read(whole(NOW_S, seconds=0.1, tokens=0, surface=Surface.COUNT_TOKENS))

    assert (sample.whole_s, sample.length_tokens, sample.is_success) == (None, None, True)


def test_embeddings_have_an_end_to_end_time_without_output() -> None:
    sample = read(
        whole(NOW_S, seconds=0.2, tokens=0, surface=Surface.EMBEDDINGS, usage=Usage(input=500))
    )

    assert (sample.whole_s, sample.total_tokens) == (pytest.approx(0.2), 0.0)


def test_reading_paused_by_a_slow_client_spoils_the_end_to_end_time() -> None:
    assert read(streamed(NOW_S, reading_paused_s=0.5)).whole_s is None
