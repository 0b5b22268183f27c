"""How each kind of provider says that a part of the prompt was cached, and what it means."""

from __future__ import annotations

from typing import Any

from tests.support.hostile_world import CHAT, MESSAGES, Talk
from tests.support.voices import Tokens, chat_usage, messages_usage

CACHED = Tokens(prompt=2_612, completion=47, cached=2_560)

# (talk, the usage as that provider says it, the tokens by bucket that it means)
CACHE_FORMS: dict[str, tuple[Talk, dict[str, Any], dict[str, int]]] = {
    "openai": (CHAT, chat_usage(CACHED), {"input": 52, "cached_read": 2560, "output": 47}),
    "anthropic": (
        MESSAGES,
        messages_usage(CACHED),
        {"input": 52, "cached_read": 2560, "output": 47},
    ),
    "anthropic_writes": (
        MESSAGES,
        {
            "input_tokens": 52,
            "cache_read_input_tokens": 2560,
            "cache_creation_input_tokens": 300,
            "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100},
            "output_tokens": 47,
        },
        {
            "input": 52,
            "cached_read": 2560,
            "cache_write_5m": 200,
            "cache_write_1h": 100,
            "output": 47,
        },
    ),
    "deepseek": (
        CHAT,
        {
            "prompt_tokens": 2612,
            "completion_tokens": 47,
            "prompt_cache_hit_tokens": 2560,
            "prompt_cache_miss_tokens": 52,
        },
        {"input": 52, "cached_read": 2560, "output": 47},
    ),
    "moonshot": (
        CHAT,
        {"prompt_tokens": 2612, "completion_tokens": 47, "cached_tokens": 2560},
        {"input": 52, "cached_read": 2560, "output": 47},
    ),
    "xai_reasoning_beside": (
        CHAT,
        {
            "prompt_tokens": 2612,
            "completion_tokens": 47,
            "total_tokens": 2612 + 47 + 30,
            "prompt_tokens_details": {"cached_tokens": 2560},
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        {"input": 52, "cached_read": 2560, "output": 47, "reasoning": 30},
    ),
    "overlapping_modalities": (
        CHAT,
        {
            "prompt_tokens": 2612,
            "completion_tokens": 47,
            "total_tokens": 2659,
            "prompt_tokens_details": {"cached_tokens": 2560, "audio_tokens": 2600},
        },
        {"input": 52, "cached_read": 2560, "output": 47},  # 52 of them audio, at input's price
    ),
    "more_cached_than_prompt": (
        CHAT,
        {
            "prompt_tokens": 2612,
            "completion_tokens": 47,
            "prompt_tokens_details": {"cached_tokens": 9999},
        },
        {"cached_read": 2612, "output": 47},
    ),
}
