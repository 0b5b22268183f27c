"""Usage: every token in exactly one bucket, whoever counts it where; insane counts refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage
from gateway.wire.usage_read import (
    anthropic_usage,
    openai_usage,
    openai_usage_json,
    read_usage,
    reported_cost_nanos,
)


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        # Item 14: cached tokens are inside prompt_tokens and must not be charged twice.
        (
            {
                "prompt_tokens": 2006,
                "completion_tokens": 300,
                "total_tokens": 2306,
                "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
            Usage(input=86, cached_read=1920, output=300),
        ),
        # Pitfall 6: OpenAI, vLLM and OpenRouter count reasoning inside completion_tokens.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 300,
                "total_tokens": 310,
                "completion_tokens_details": {"reasoning_tokens": 256},
            },
            Usage(input=10, output=44, reasoning=256),
        ),
        # … and xAI beside it, as its total tells.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 44,
                "total_tokens": 310,
                "completion_tokens_details": {"reasoning_tokens": 256},
            },
            Usage(input=10, output=44, reasoning=256),
        ),
        # Without a total, more reasoning than completion can only be beside.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 44,
                "completion_tokens_details": {"reasoning_tokens": 256},
            },
            Usage(input=10, output=44, reasoning=256),
        ),
        # Overlapping modalities: cached audio is counted once.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 60,
                "prompt_tokens_details": {"cached_tokens": 80, "audio_tokens": 50},
                "completion_tokens_details": {"audio_tokens": 50},
            },
            Usage(cached_read=80, audio_input=20, output=10, audio_output=50),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_tokens_details": {"image_tokens": 70, "cache_write_tokens": 20},
            },
            Usage(input=10, image_input=70, cache_write_5m=20, output=5),
        ),
        # Responses.
        (
            {
                "input_tokens": 36,
                "input_tokens_details": {"cached_tokens": 16},
                "output_tokens": 12,
                "output_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 48,
            },
            Usage(input=20, cached_read=16, output=7, reasoning=5),
        ),
        # DeepSeek and Moonshot.
        (
            {
                "prompt_tokens": 30,
                "completion_tokens": 4,
                "prompt_cache_hit_tokens": 20,
                "prompt_cache_miss_tokens": 10,
            },
            Usage(input=10, cached_read=20, output=4),
        ),
        (
            {"prompt_tokens": 30, "completion_tokens": 4, "cached_tokens": 20},
            Usage(input=10, cached_read=20, output=4),
        ),
        # Embeddings.
        ({"prompt_tokens": 8, "total_tokens": 8}, Usage(input=8)),
        # Pitfall 9 and item 18: an explicit zero is a count.
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage()),
        # Details that are null or missing, or exceed their total.
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": None},
            },
            Usage(input=5, output=2),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 50},
            },
            Usage(cached_read=5, output=2),
        ),
    ],
)
def test_openai_like_usage(said: dict[str, Any], usage: Usage) -> None:
    assert openai_usage(said) == usage


@pytest.mark.parametrize(
    "said",
    [
        None, [], "5", 5, {}, {"total_tokens": 5}, {"prompt_tokens": None},
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 1, "completion_tokens": -2},
        {"prompt_tokens": 1, "completion_tokens": 2.5},
        {"prompt_tokens": True, "completion_tokens": 2},
        {"prompt_tokens": "12", "completion_tokens": 2},
        {"prompt_tokens": 1_000_000_001},
        {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -9}},
        {"prompt_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 10**15}},
    ],
)  # fmt: skip
def test_usage_that_cannot_be_is_none(said: object) -> None:
    assert openai_usage(said) is None


counts = st.integers(0, 10_000)
DETAILS = ("cached_tokens", "cache_write_tokens", "audio_tokens", "image_tokens")
details = st.fixed_dictionaries(
    {}, optional={name: counts for name in (*DETAILS, "reasoning_tokens")}
)


@given(counts, counts, details, details)
def test_buckets_always_sum_to_what_was_reported(
    prompt: int, completion: int, inner: dict[str, int], outer: dict[str, int]
) -> None:
    usage = openai_usage(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": inner,
            "completion_tokens_details": outer,
        }
    )

    assert usage is not None
    assert (usage.input_total, usage.output_total) == (prompt, completion)


@given(st.builds(Usage, input=counts, cached_read=counts, output=counts, reasoning=counts))
def test_usage_written_as_chat_json_reads_back(usage: Usage) -> None:
    assert openai_usage(msgspec.json.decode(openai_usage_json(usage))) == usage


def test_anthropic_input_excludes_the_caches_and_thinking_is_inside_output() -> None:
    said = {
        "input_tokens": 25,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 89,
        "output_tokens_details": {"thinking_tokens": 40},
    }

    assert read_usage(Surface.MESSAGES, said) == Usage(
        input=25, cached_read=100, cache_write_5m=10, cache_write_1h=20, output=49, reasoning=40
    )


def test_anthropic_writes_without_breakdown_are_five_minutes() -> None:
    said = {"input_tokens": 1, "cache_creation_input_tokens": 30, "output_tokens": 2}

    assert anthropic_usage(said) == Usage(input=1, cache_write_5m=30, output=2)


def test_anthropic_writes_that_no_breakdown_names_are_five_minutes() -> None:
    said = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_1h_input_tokens": 20},
        "output_tokens": 2,
    }

    assert anthropic_usage(said) == Usage(input=1, cache_write_5m=10, cache_write_1h=20, output=2)


def test_anthropic_delta_is_cumulative_over_the_start() -> None:
    start = Usage(input=25, cached_read=100, cache_write_5m=10, cache_write_1h=20, output=1)

    assert anthropic_usage({"output_tokens": 15}, start) == Usage(
        input=25, cached_read=100, cache_write_5m=10, cache_write_1h=20, output=15
    )
    # The later total repeats the writes without their breakdown: the hour's share stays.
    repeated = {"input_tokens": 25, "cache_creation_input_tokens": 30, "output_tokens": 15}
    assert anthropic_usage(repeated, start) == anthropic_usage({"output_tokens": 15}, start)


@pytest.mark.parametrize(
    "said", [None, {}, {"input_tokens": -1}, {"output_tokens": 2.0}, {"service_tier": "standard"}]
)
def test_anthropic_usage_that_cannot_be_is_none(said: object) -> None:
    assert anthropic_usage(said) is None


def test_counting_tokens_costs_nothing() -> None:
    assert read_usage(Surface.COUNT_TOKENS, {"input_tokens": 5}) is None


@pytest.mark.parametrize(
    ("said", "nanos"),
    [
        ({"cost": 0.0001234}, 123_400),
        ({"cost": 0}, 0),
        ({"cost": 1e-10}, 1),  # rounded up: nobody is billed less than it cost
        ({"cost": "0.25"}, 250_000_000),
        ({"cost": {"total_cost": 0.005, "input_tokens_cost": 0.001}}, 5_000_000),
        ({"cost_in_usd_ticks": 37_756_000}, 3_775_600),
        ({"cost_in_usd_ticks": 1}, 1),
        ({"cost": -0.1}, None),
        ({"cost": 1e9}, None),
        ({"cost": "NaN"}, None),
        ({"cost": "much"}, None),
        ({"cost": True}, None),
        ({"cost": {}}, None),
        ({"cost_in_usd_ticks": -5}, None),
        ({"cost_in_usd_ticks": 10**20}, None),
        ({}, None),
        (None, None),
    ],
)
def test_reported_cost(said: object, nanos: int | None) -> None:
    assert reported_cost_nanos(said) == nanos
