"""Chat requests as messages requests."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from gateway.wire.translate import translate_request
from tests.support.translating import (
    ALL,
    PIXEL,
    USER,
    WEATHER,
    WEATHER_TOOL,
    call,
    chat,
    messages,
    refused,
)


def test_plain_chat_request_becomes_messages_request() -> None:
    assert chat(messages=[{"role": "system", "content": "Be brief"}, USER], stream=True) == (
        {
            "model": "m-1",
            "max_tokens": 4096,
            "system": "Be brief",
            "messages": [USER],
            "stream": True,
        },
        (),
    )


def test_all_leading_system_and_developer_messages_become_system_blocks() -> None:
    body, dropped = chat(
        messages=[
            {"role": "system", "content": "One"},
            {"role": "developer", "content": [{"type": "text", "text": "Two"}]},
            USER,
        ]
    )

    assert body["system"] == [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    assert dropped == ()


def test_late_system_message_moves_to_the_front_and_is_reported() -> None:
    talk = [USER, {"role": "system", "content": "Now in French"}, USER]
    body, dropped = chat(messages=talk)

    assert body["system"] == "Now in French"
    assert dropped == ("messages.system_position",)

    kept, dropped = chat(target=ALL, messages=talk)

    assert [turn["role"] for turn in kept["messages"]] == ["user", "system", "user"]
    assert dropped == ()


def test_images_keep_their_bytes_or_their_url() -> None:
    body, dropped = chat(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                    {
                        "type": "image_url",
                        "image_url": {"url": "https://a.example/b.jpg", "detail": "high"},
                    },
                ],
            }
        ]
    )

    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
        },
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.jpg"}},
    ]
    assert dropped == ("messages.content.image_url.detail",)


@pytest.mark.parametrize(
    "url", ["ftp://a/b.png", "file:///etc/passwd", "data:image/bmp;base64,AA", "data:image/png,AA"]
)
def test_image_that_the_dialect_cannot_say_is_refused_by_place(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}

    assert (
        refused(chat, messages=[{"role": "user", "content": [part]}])
        == "messages[0].content[0].image_url.url"
    )


def test_common_misnomer_of_jpeg_is_mended() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AA=="}}
    body, _ = chat(messages=[{"role": "user", "content": [part]}])

    assert body["messages"][0]["content"][0]["source"]["media_type"] == "image/jpeg"


def test_pdf_file_becomes_document() -> None:
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    body, _ = chat(messages=[{"role": "user", "content": [{"type": "file", "file": file}]}])

    assert body["messages"][0]["content"] == [
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            "title": "a.pdf",
        }
    ]


def test_tools_and_their_schemas_pass_byte_for_byte() -> None:
    schema = '{"type": "object",  "properties": {"n": {"maximum": 1.0e2, "z": 1, "a": 2}}}'
    raw = (
        '{"model":"p","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",'
        '"function":{"name":"f","strict":true,"parameters":' + schema + "}}]}"
    )
    out = translate_request(
        parse_request(Surface.CHAT, raw.encode()), Surface.MESSAGES, model="m", max_tokens_default=9
    )

    assert f'"input_schema":{schema},"strict":true'.encode() in out.body


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            {"type": "tool", "name": "weather"},
        ),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"parallel_tool_calls": True}, None),
    ],
)
def test_tool_choice_and_parallel_calls(given: dict[str, Any], expected: Any) -> None:
    body, dropped = chat(tools=[WEATHER], **given)

    assert body["tools"] == [WEATHER_TOOL]
    assert expected == body.get("tool_choice")
    assert dropped == ()


def test_allowed_tools_narrow_the_list() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}
    body, _ = chat(
        tools=[WEATHER, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )

    assert body["tools"] == [
        {"name": "other", "input_schema": {"type": "object", "properties": {}}}
    ]
    assert body["tool_choice"] == {"type": "any"}


def test_calls_and_their_results_become_blocks_in_one_turn() -> None:
    body, dropped = chat(
        messages=[
            USER,
            {
                "role": "assistant",
                "content": "Let me look",
                "tool_calls": [
                    call("a", '{"city": "Rome"}'),
                    call("functions.weather:1", ""),
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "sunny"},
            {
                "role": "tool",
                "tool_call_id": "functions.weather:1",
                "content": [{"type": "text", "text": "no city"}],
                "is_error": True,
            },
            {"role": "user", "content": "Well?"},
        ],
        tools=[WEATHER],
    )
    odd_id = "functions_2eweather_3a1"

    assert [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look"},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": odd_id, "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": odd_id,
                    "content": [{"type": "text", "text": "no city"}],
                    "is_error": True,
                },
                {"type": "text", "text": "Well?"},
            ],
        },
    ] == body["messages"]
    assert dropped == ()


@pytest.mark.parametrize("arguments", ['{"city": "Ro', "[1]", '"x"', "{} {}", "nan"])
def test_arguments_that_are_no_object_are_wrapped_and_come_back(arguments: str) -> None:
    body, _ = chat(messages=[USER, {"role": "assistant", "tool_calls": [call("a", arguments)]}])
    block = body["messages"][1]["content"][0]

    assert {"INVALID_JSON": arguments} == block["input"]

    back, _ = messages(messages=body["messages"])

    assert arguments == back["messages"][1]["tool_calls"][0]["function"]["arguments"]


def test_empty_content_is_left_out_since_the_dialect_refuses_it() -> None:
    body, _ = chat(
        messages=[
            {"role": "user", "content": ""},
            {
                "role": "user",
                "content": [{"type": "text", "text": ""}, {"type": "text", "text": "x"}],
            },
            {"role": "assistant", "content": "", "tool_calls": [call("a", "{}")]},
            {"role": "assistant", "content": None},
        ]
    )

    assert [[block["type"] for block in turn["content"]] for turn in body["messages"]] == [
        ["text"],
        ["tool_use"],
    ]
    assert refused(chat, messages=[{"role": "user", "content": ""}]) == "messages"


def test_signed_reasoning_returns_to_the_dialect_that_signed_it() -> None:
    details = [
        {
            "type": "reasoning.text",
            "text": "Hm",
            "signature": "S1",
            "format": "anthropic-claude-v1",
        },
        {"type": "reasoning.encrypted", "data": "R1", "format": "anthropic-claude-v1", "index": 1},
        {"type": "reasoning.encrypted", "data": "X", "format": "openai-responses-v1"},
    ]
    body, dropped = chat(
        messages=[
            USER,
            {
                "role": "assistant",
                "content": "Yes",
                "reasoning_content": "Hm",
                "reasoning_details": details,
            },
            USER,
        ]
    )

    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": "S1"},
        {"type": "redacted_thinking", "data": "R1"},
        {"type": "text", "text": "Yes"},
    ]
    assert dropped == ("messages.reasoning_details",)


def test_unsigned_reasoning_is_left_out_and_reported() -> None:
    body, dropped = chat(
        messages=[USER, {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}, USER]
    )

    assert body["messages"][1]["content"] == [{"type": "text", "text": "Yes"}]
    assert dropped == ("messages.reasoning_content",)
