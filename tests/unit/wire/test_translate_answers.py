"""Plain answers between the chat and the messages dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.pieces import Surface
from gateway.wire.translate import CannotTranslate, count_tokens_answer, translate_answer
from gateway.wire.translate.endings import chat_usage, messages_usage
from gateway.wire.usage import Usage
from tests.support import sdk_types


def to_chat(content: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": content,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
        **fields,
    }
    out = translate_answer(
        json.dumps(message).encode(), Surface.MESSAGES, Surface.CHAT, model="public", created=7
    )
    sdk_types.chat_answer(out)
    answer: dict[str, Any] = json.loads(out)
    return answer


def to_messages(message: dict[str, Any], finish: str = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "up-1",
        "choices": [choice],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **fields,
    }
    out = translate_answer(
        json.dumps(completion).encode(), Surface.CHAT, Surface.MESSAGES, model="public"
    )
    sdk_types.messages_answer(out)
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_text_message_becomes_completion() -> None:
    assert to_chat([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]) == {
        "id": "msg_1",
        "object": "chat.completion",
        "created": 7,
        "model": "claude-x",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_tool_use_keeps_the_bytes_of_its_input() -> None:
    body = (
        b'{"id":"m","model":"c","stop_reason":"tool_use","usage":{"input_tokens":1,'
        b'"output_tokens":1},"content":[{"type":"tool_use","id":"t","name":"f",'
        b'"input":{"x": 1.0e2, "b":[1 ]}}]}'
    )
    out = translate_answer(body, Surface.MESSAGES, Surface.CHAT, model="p")
    (choice,) = sdk_types.chat_answer(out).choices

    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert json.loads(out)["choices"][0]["message"]["tool_calls"] == [
        {
            "id": "t",
            "type": "function",
            "function": {"name": "f", "arguments": '{"x": 1.0e2, "b":[1 ]}'},
        }
    ]


def test_thinking_and_signatures_become_reasoning() -> None:
    message = to_chat(
        [
            {"type": "thinking", "thinking": "Hm", "signature": "S"},
            {"type": "redacted_thinking", "data": "R"},
            {"type": "text", "text": "Yes"},
        ]
    )["choices"][0]["message"]

    assert (message["reasoning_content"], message["content"]) == ("Hm", "Yes")
    assert [d.get("signature", d.get("data")) for d in message["reasoning_details"]] == ["S", "R"]


def test_usage_of_messages_counts_cached_tokens_into_the_prompt() -> None:
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15},
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
        "service_tier": "priority",
    }
    answer = to_chat([], usage=usage)

    assert answer["usage"] == {
        "prompt_tokens": 123,
        "completion_tokens": 9,
        "total_tokens": 132,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    assert answer["service_tier"] == "priority"


@pytest.mark.parametrize(
    ("stop", "finish"),
    [("max_tokens", "length"), ("refusal", "content_filter"), ("pause_turn", "stop")],
)
def test_stop_reasons_of_messages(stop: str, finish: str) -> None:
    answer = to_chat([{"type": "text", "text": "x"}], stop_reason=stop)

    assert answer["choices"][0]["finish_reason"] == finish


def test_refusal_keeps_its_explanation() -> None:
    details = {"type": "refusal", "category": None, "explanation": "Not this"}
    choice = to_chat([], stop_reason="refusal", stop_details=details)["choices"][0]

    assert (choice["message"]["refusal"], choice["message"]["content"]) == ("Not this", "")


def test_completion_becomes_message() -> None:
    assert to_messages({"content": "Hello"}) == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "up-1",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


def test_usage_of_chat_takes_cached_tokens_out_of_the_input() -> None:
    usage = {
        "prompt_tokens": 123,
        "completion_tokens": 9,
        "total_tokens": 132,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }

    assert to_messages({"content": "x"}, usage=usage)["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 100,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
    }


def test_tool_calls_follow_text_and_repair_the_finish() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "", "type": "function", "function": {"name": "g", "arguments": ""}},
        {"id": "c3", "type": "function", "function": {"name": "h", "arguments": '{"a": 1'}},
    ]
    answer = to_messages({"content": "Look", "tool_calls": calls, "reasoning": "Hm"})

    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "text", "text": "Look"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_chatcmpl-1_1", "name": "g", "input": {}},
        {"type": "tool_use", "id": "c3", "name": "h", "input": {"INVALID_JSON": '{"a": 1'}},
    ]
    assert answer["stop_reason"] == "tool_use"


def test_refusal_of_chat_is_text_and_a_refusal() -> None:
    answer = to_messages({"content": None, "refusal": "I cannot"})

    assert answer["content"] == [{"type": "text", "text": "I cannot"}]
    assert answer["stop_reason"] == "refusal"


def test_signed_details_of_chat_become_thinking_blocks() -> None:
    details = [
        {"type": "reasoning.text", "text": "Hm", "signature": "S"},
        {"type": "reasoning.encrypted", "data": "R"},
    ]
    answer = to_messages({"content": "x", "reasoning": "Hm", "reasoning_details": details})

    assert answer["content"][:2] == [
        {"type": "thinking", "thinking": "Hm", "signature": "S"},
        {"type": "redacted_thinking", "data": "R"},
    ]


def test_extra_usage_is_merged_on_both_sides() -> None:
    message = b'{"id":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}'
    chat = translate_answer(
        message, Surface.MESSAGES, Surface.CHAT, model="p", extra_usage={"cost": "0.5"}
    )
    completion = b'{"id":"c","choices":[{"index":0,"message":{"content":"x"}}]}'
    back = translate_answer(
        completion, Surface.CHAT, Surface.MESSAGES, model="p", extra_usage={"cost": "0.5"}
    )

    assert json.loads(chat)["usage"]["cost"] == json.loads(back)["usage"]["cost"] == "0.5"
    assert json.loads(chat)["model"] == json.loads(back)["model"] == "p"


@pytest.mark.parametrize(
    ("body", "upstream", "client"),
    [
        (b'{"choices":[]}', Surface.CHAT, Surface.MESSAGES),
        (b'{"choices":7}', Surface.CHAT, Surface.MESSAGES),
        (b"not json", Surface.CHAT, Surface.MESSAGES),
        (b'{"content":7}', Surface.MESSAGES, Surface.CHAT),
        (b"{}", Surface.CHAT, Surface.RESPONSES),
    ],
)
def test_what_is_no_answer_of_the_dialect_is_refused(
    body: bytes, upstream: Surface, client: Surface
) -> None:
    with pytest.raises(CannotTranslate):
        translate_answer(body, upstream, client, model="p")


def test_halves_of_an_emoji_survive_a_plain_answer() -> None:
    body = b'{"id":"m","content":[{"type":"text","text":"\\ud83d"}],"usage":{}}'

    assert b'"content":"\\ud83d"' in translate_answer(
        body, Surface.MESSAGES, Surface.CHAT, model="p"
    )


def test_both_cache_lifetimes_count_as_written() -> None:
    usage = Usage(input=1, cache_write_5m=2, cache_write_1h=3, output=4)

    assert messages_usage(usage)["cache_creation_input_tokens"] == 5
    assert chat_usage(usage)["prompt_tokens"] == 6


def test_count_tokens_answer() -> None:
    assert count_tokens_answer(12) == b'{"input_tokens":12}'
