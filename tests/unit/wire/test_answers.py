"""Complete answers: usage, lengths, and 200s that are errors in disguise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.wire.answers import Answer, read_answer
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-x-2026",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hallo",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cost": 0.001},
}


def answer(surface: Surface, body: Any) -> Answer:
    return read_answer(surface, msgspec.json.encode(body))


def test_chat_answer() -> None:
    assert answer(Surface.CHAT, CHAT) == Answer(
        usage=Usage(input=9, output=4),
        cost_nanos=1_000_000,
        visible_chars=5,
        reasoning_chars=2,
        tool_chars=3,
        finish="tool_calls",
        model="gpt-x-2026",
    )


def test_chat_answer_of_several_choices_counts_them_all() -> None:
    choice = {"index": 0, "message": {"content": "abc"}, "finish_reason": "stop"}

    said = answer(Surface.CHAT, {"choices": [choice, choice]})
    assert (said.visible_chars, said.finish, said.error) == (6, "stop", None)


def test_completions_answer() -> None:
    body = {"choices": [{"text": "abc", "finish_reason": "length"}], "usage": {"prompt_tokens": 1}}

    said = answer(Surface.COMPLETIONS, body)
    assert (said.visible_chars, said.finish, said.usage) == (3, "length", Usage(input=1))


def test_messages_answer() -> None:
    body = {
        "type": "message",
        "model": "claude-x",
        "content": [
            {"type": "thinking", "thinking": "abc", "signature": "s"},
            {"type": "text", "text": "Hallo"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 2},
    }

    assert answer(Surface.MESSAGES, body) == Answer(
        usage=Usage(input=5, cached_read=2, output=7),
        visible_chars=5,
        reasoning_chars=3,
        tool_chars=8,
        finish="tool_use",
        model="claude-x",
    )


def test_messages_answer_without_content_is_an_answer() -> None:
    said = answer(Surface.MESSAGES, {"type": "message", "content": [], "stop_reason": "end_turn"})

    assert (said.error, said.finish) == (None, "end_turn")


def test_responses_answer() -> None:
    body = {
        "object": "response",
        "status": "completed",
        "error": None,
        "model": "gpt-x",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ab"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Hallo"}]},
            {"type": "function_call", "name": "f", "arguments": "{}"},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    }

    assert answer(Surface.RESPONSES, body) == Answer(
        usage=Usage(input=3, output=2),
        visible_chars=5,
        reasoning_chars=2,
        tool_chars=3,
        finish="completed",
        model="gpt-x",
    )


def test_responses_answer_cut_short_names_its_reason() -> None:
    body = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [],
    }

    assert answer(Surface.RESPONSES, body).finish == "max_output_tokens"


def test_embeddings_answer() -> None:
    body = {"object": "list", "data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 8}}

    said = answer(Surface.EMBEDDINGS, body)
    assert (said.usage, said.error) == (Usage(input=8), None)


def test_token_count_answer() -> None:
    assert answer(Surface.COUNT_TOKENS, {"input_tokens": 12}).error is None


@pytest.mark.parametrize(
    ("surface", "body", "message"),
    [
        (Surface.CHAT, b'{"error":{"message":"no","type":"x","code":"quota"}}', "no"),
        (Surface.CHAT, b'{"error":"plain"}', "plain"),
        (Surface.CHAT, b'{"object":"error","message":"older vLLM","code":400}', "older vLLM"),
        (Surface.CHAT, b'{"code":50501,"msg":"busy","data":null}', "busy"),
        (Surface.CHAT, b'{"detail":"not found"}', "not found"),
        (Surface.CHAT, b'{"choices":[]}', "`choices` is missing"),
        (Surface.CHAT, b'{"choices":null,"usage":{"prompt_tokens":1}}', "`choices` is missing"),
        (Surface.CHAT, b'{"choices":[{"error":{"message":"down","code":502}}]}', "down"),
        (Surface.CHAT, b'{"choices":[{"message":{},"finish_reason":"error"}]}', "with an error"),
        (Surface.CHAT, b"", "empty answer"),
        (Surface.CHAT, b"  \n", "empty answer"),
        (Surface.CHAT, b"<html><title>Sign in</title></html>", "web page"),
        (Surface.CHAT, b"[]", "not a JSON object"),
        (Surface.CHAT, b'{"choices":', "not a JSON object"),
        (Surface.CHAT, b'[{"error":{"code":400,"message":"Gemini"}}]', "Gemini"),
        (Surface.MESSAGES, b'{"type":"error","error":{"type":"api_error","message":"a"}}', "a"),
        (Surface.MESSAGES, b'{"type":"message"}', "`content` is missing"),
        (Surface.RESPONSES, b'{"status":"failed","error":{"code":"c","message":"r"}}', "r"),
        (Surface.RESPONSES, b'{"status":"failed","output":[]}', "with an error"),
        (Surface.RESPONSES, b'{"status":"completed"}', "`output` is missing"),
        (Surface.EMBEDDINGS, b'{"object":"list"}', "`data` is missing"),
        (Surface.COUNT_TOKENS, b'{"input_tokens":"5"}', "`input_tokens` is missing"),
    ],
)
def test_a_200_that_is_no_answer_is_an_error(surface: Surface, body: bytes, message: str) -> None:
    said = read_answer(surface, body)

    assert said.error is not None
    assert message in said.error.message


@pytest.mark.parametrize("nothing", [None, "", {}, False])
def test_an_empty_error_member_is_no_error(nothing: object) -> None:
    assert answer(Surface.CHAT, {**CHAT, "error": nothing}).error is None


def test_leading_white_space_is_passed_over() -> None:
    """OpenRouter sends line feeds while it waits for a plain answer."""
    body = b"\n" * 40 + msgspec.json.encode(CHAT)

    assert read_answer(Surface.CHAT, body).visible_chars == 5


def test_a_cut_emoji_does_not_spoil_the_answer() -> None:
    body = b'{"choices":[{"message":{"content":"ab\\ud83d"},"finish_reason":"length"}]}'

    said = read_answer(Surface.CHAT, body)
    assert (said.error, said.visible_chars) == (None, 3)


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        (Surface.CHAT, {"choices": [{"message": {"content": "x"}}], "service_tier": "flex"}),
        (Surface.RESPONSES, {"output": [], "service_tier": "flex"}),
        (Surface.MESSAGES, {"content": [], "usage": {"input_tokens": 1, "service_tier": "flex"}}),
    ],
)
def test_answer_says_the_tier_it_was_served_at(surface: Surface, body: dict[str, Any]) -> None:
    assert answer(surface, body).tier == "flex"


@pytest.mark.parametrize("odd", [None, 5, ["flex"]])
def test_tier_of_another_type_is_none(odd: Any) -> None:
    body = {"choices": [{"message": {"content": "x"}}], "service_tier": odd, "usage": odd}

    assert answer(Surface.CHAT, body).tier == ""
