"""Chat requests as messages requests."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from gateway.wire.translate import Target, target_of, translate_request
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


@pytest.mark.parametrize(
    ("given", "max_tokens"),
    [
        ({}, 4096),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
        ({"max_tokens": None}, 4096),
    ],
)
def test_max_tokens(given: dict[str, Any], max_tokens: int) -> None:
    assert max_tokens == chat(**given)[0]["max_tokens"]


def test_sampling_and_identity_fields() -> None:
    body, dropped = chat(
        temperature=0.5, top_p=0.9, top_k=5, stop="END", user="u-1", service_tier="default"
    )

    assert (
        body["temperature"],
        body["top_p"],
        body["top_k"],
        body["stop_sequences"],
        body["metadata"],
        body["service_tier"],
    ) == (0.5, 0.9, 5, ["END"], {"user_id": "u-1"}, "standard_only")
    assert dropped == ()


def test_temperature_beyond_the_dialect_is_clamped_and_reported() -> None:
    body, dropped = chat(temperature=1.7)

    assert (body["temperature"], dropped) == (1, ("temperature",))


def test_blank_stop_sequences_are_left_out_and_reported() -> None:
    body, dropped = chat(stop=["\n", "END"])

    assert (body["stop_sequences"], dropped) == (["END"], ("stop",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"1": 2}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("seed", 7),
        ("store", True),
        ("metadata", {"a": "b"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("verbosity", "low"),
        ("prompt_cache_key", "k"),
        ("web_search_options", {}),
        ("response_format", {"type": "json_object"}),
        ("service_tier", "flex"),
        ("some_new_field", 1),
        ("speculation", {"off": True}),
    ],
)
def test_field_without_counterpart_is_reported(field: str, value: object) -> None:
    body, dropped = chat(**{field: value})

    assert (field,) == dropped
    assert {"model", "max_tokens", "messages"} == set(body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("logprobs", False),
        ("frequency_penalty", 0),
        ("presence_penalty", 0.0),
        ("store", False),
        ("modalities", ["text"]),
        ("seed", None),
        ("provider", {"order": ["a"]}),
        ("models", ["b"]),
        ("parallel_tool_calls", True),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "text"}),
    ],
)
def test_field_that_asks_for_what_happens_anyway_is_not_reported(field: str, value: object) -> None:
    body, dropped = chat(**{field: value})

    assert dropped == ()
    assert {"model", "max_tokens", "messages"} == set(body)


def test_unknown_message_fields_are_reported_too() -> None:
    _, dropped = chat(
        messages=[
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "x", "odd": 1}]}
        ],
        tools=[{**WEATHER, "odd": 1}],
        stream_options={"include_obfuscation": True},
    )

    assert {
        "messages.name", "messages.content.odd", "tools.odd", "stream_options.include_obfuscation",
    } == set(dropped)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "a", "format": "wav"}}, "audio"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
                        ],
                    }
                ]
            },
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "audio": {"id": "a"}}]},
            "messages[0].audio",
        ),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}
                ]
            },
            "messages[0].content[0].file.file_id",
        ),
    ],
)
def test_shape_without_counterpart_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert param == refused(chat, **fields)


def test_json_schema_becomes_output_format() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    body, dropped = chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": True, "description": "d"},
        },
        reasoning_effort="low",
    )

    assert {"effort": "low", "format": {"type": "json_schema", "schema": schema}} == body[
        "output_config"
    ]
    assert dropped == ("response_format.json_schema.description",)


@pytest.mark.parametrize(
    ("effort", "thinking", "config", "dropped"),
    [
        ("none", {"type": "disabled"}, None, ()),
        ("minimal", {"type": "adaptive"}, {"effort": "low"}, ("reasoning_effort",)),
        ("low", {"type": "adaptive"}, {"effort": "low"}, ()),
        ("xhigh", {"type": "adaptive"}, {"effort": "xhigh"}, ()),
    ],
)
def test_effort_becomes_adaptive_thinking(
    effort: str, thinking: object, config: object, dropped: tuple[str, ...]
) -> None:
    body, found = chat(reasoning_effort=effort)

    assert (thinking, config, dropped) == (body["thinking"], body.get("output_config"), found)


def test_effort_becomes_a_budget_where_the_endpoint_takes_only_that() -> None:
    target = target_of(frozenset({"thinking_budget"}))
    body, dropped = chat(target=target, reasoning_effort="medium", max_tokens=10_000)

    assert body["thinking"] == {"type": "enabled", "budget_tokens": 5_000}
    assert dropped == ()

    body, dropped = chat(target=target, reasoning_effort="medium", max_tokens=1_000)

    assert "thinking" not in body
    assert dropped == ("reasoning_effort",)


def test_openrouter_reasoning_object_is_understood() -> None:
    body, dropped = chat(reasoning={"max_tokens": 2_000, "exclude": True})

    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2_000, "display": "omitted"}
    assert dropped == ()
    assert chat(reasoning={"enabled": False})[0]["thinking"] == {"type": "disabled"}
    assert chat(reasoning={"effort": "high"})[0]["output_config"] == {"effort": "high"}


def test_thinking_excludes_what_the_dialect_forbids_beside_it() -> None:
    body, dropped = chat(reasoning_effort="high", temperature=0.2, top_p=0.5, top_k=3)

    assert not {"temperature", "top_p", "top_k"} & set(body)
    assert dropped == ("temperature", "top_p", "top_k")

    body, dropped = chat(reasoning_effort="high", tools=[WEATHER], tool_choice="required")

    assert "thinking" not in body
    assert dropped == ("reasoning_effort",)


def test_budget_thinking_does_not_start_inside_an_unthought_tool_loop() -> None:
    loop = [
        USER,
        {"role": "assistant", "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    body, dropped = chat(
        target=Target(thinking="budget"), messages=loop, reasoning_effort="low", tools=[WEATHER]
    )

    assert "thinking" not in body
    assert dropped == ("reasoning_effort",)


def test_cache_control_of_chat_clients_is_carried() -> None:
    mark = {"type": "ephemeral"}
    part = {"type": "text", "text": "x", "cache_control": mark}
    body, dropped = chat(
        messages=[{"role": "system", "content": [part]}, {"role": "user", "content": [part]}],
        tools=[{**WEATHER, "cache_control": mark}],
    )

    assert [part] == body["system"] == body["messages"][0]["content"]
    assert mark == body["tools"][0]["cache_control"]
    assert dropped == ()


def test_fields_that_an_endpoint_refuses_are_left_out_and_reported() -> None:
    body, dropped = chat(target=Target(refuses=frozenset({"temperature"})), temperature=0.1)

    assert "temperature" not in body
    assert dropped == ("temperature",)
