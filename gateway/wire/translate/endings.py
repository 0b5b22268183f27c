"""Why an answer ended and what it used, in the words of either dialect."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wire.translate.shapes import merged
from gateway.wire.usage import Usage

_FINISH_OF_STOP = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP_OF_FINISH = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_TIERS = {"standard": "default", "priority": "priority"}


def finish_reason(stop_reason: str) -> str:
    """Words that chat does not know mean a plain stop: a client must see one it knows."""
    return _FINISH_OF_STOP.get(stop_reason, "stop")


def stop_reason(finish: str, *, has_tools: bool, is_refusal: bool, stop_sequence: object) -> str:
    """`stop` after tool calls is a known fault of compatible servers: the client must go on."""
    stop = _STOP_OF_FINISH.get(finish, "end_turn")
    if stop != "end_turn":
        return stop
    if is_refusal:
        return "refusal"
    if has_tools:
        return "tool_use"
    return "stop_sequence" if isinstance(stop_sequence, str) else stop


def chat_tier(tier: object) -> str | None:
    """The tier a messages answer was served at, in chat's words."""
    return _TIERS.get(tier) if isinstance(tier, str) else None


def chat_usage(usage: Usage, extra: Mapping[str, object] | None = None) -> dict[str, object]:
    """Cached and written tokens are part of `prompt_tokens`, reasoning of `completion_tokens`."""
    prompt: dict[str, object] = {
        "cached_tokens": usage.cached_read,
        "cache_write_tokens": usage.cache_write_5m + usage.cache_write_1h,
    }
    if usage.audio_input:
        prompt["audio_tokens"] = usage.audio_input
    if usage.image_input:
        prompt["image_tokens"] = usage.image_input
    completion: dict[str, object] = {"reasoning_tokens": usage.reasoning}
    if usage.audio_output:
        completion["audio_tokens"] = usage.audio_output
    out: dict[str, object] = {
        "prompt_tokens": usage.input_total,
        "completion_tokens": usage.output_total,
        "total_tokens": usage.input_total + usage.output_total,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": completion,
    }
    return merged(out, extra)


def messages_usage(usage: Usage, extra: Mapping[str, object] | None = None) -> dict[str, object]:
    """Cached and written tokens stand beside `input_tokens`; thinking is inside `output_tokens`."""
    out: dict[str, object] = {
        "input_tokens": usage.input + usage.audio_input + usage.image_input,
        "cache_creation_input_tokens": usage.cache_write_5m + usage.cache_write_1h,
        "cache_read_input_tokens": usage.cached_read,
        "output_tokens": usage.output_total,
    }
    if usage.reasoning:
        out["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return merged(out, extra)
