"""Messages requests as chat requests."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from gateway.wire.translate import CannotTranslate, Target, target_of, translate_request
from tests.support import sdk_types
from tests.support.translating import (
    ALL,
    PIXEL,
    USER,
    WEATHER,
    WEATHER_TOOL,
    chat,
    messages,
    refused,
)


def test_plain_messages_request_becomes_chat_request() -> None:
    assert messages(system="Be brief", stream=True) == (
        {
            "model": "c-1",
            "max_tokens": 100,
            "messages": [{"role": "system", "content": "Be brief"}, USER],
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        (),
    )


def test_quirks_choose_the_field_of_the_limit_and_the_form_of_text() -> None:
    target = target_of(frozenset({"max_completion_tokens", "no_stream_options", "string_content"}))
    system = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    body, dropped = messages(target=target, system=system, stream=True)

    assert body == {
        "model": "c-1",
        "max_completion_tokens": 100,
        "messages": [{"role": "system", "content": "One\n\nTwo"}, USER],
        "stream": True,
    }
    assert dropped == ()


def test_results_come_before_the_rest_of_their_turn() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    turn = {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "content": [{"type": "text", "text": "see"}, image],
                "is_error": True,
            },
            {"type": "tool_result", "tool_use_id": "b"},
            {"type": "text", "text": "Well?"},
        ],
    }
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    talk = [USER, {"role": "assistant", "content": [use, {**use, "id": "b"}]}, turn]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    body, dropped = messages(messages=talk)

    assert [
        {"role": "tool", "tool_call_id": "a", "content": "see"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": [picture, {"type": "text", "text": "Well?"}]},
    ] == body["messages"][2:]
    assert dropped == ("messages.content.is_error",)

    kept, dropped = messages(target=ALL, messages=talk)

    assert {
        "role": "tool",
        "tool_call_id": "a",
        "content": [{"type": "text", "text": "see"}, picture],
        "is_error": True,
    } == kept["messages"][2]
    assert dropped == ()


def test_tool_use_becomes_tool_calls_with_their_own_bytes() -> None:
    raw = (
        b'{"model":"p","max_tokens":9,"messages":[{"role":"assistant","content":['
        b'{"type":"tool_use","id":"a","name":"f","input":{"x": 1.0, "y":[ ]}}]}]}'
    )
    out = translate_request(
        parse_request(Surface.MESSAGES, raw), Surface.CHAT, model="c", max_tokens_default=9
    )
    message = sdk_types.chat_request(out.body)["messages"][0]

    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": 1.0, "y":[ ]}'


def test_thinking_is_carried_only_where_the_endpoint_takes_it() -> None:
    talk = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "S"},
                {"type": "redacted_thinking", "data": "R"},
                {"type": "text", "text": "Yes"},
            ],
        },
        USER,
    ]
    body, dropped = messages(messages=talk)

    assert body["messages"][1] == {"role": "assistant", "content": "Yes"}
    assert dropped == ("messages.content.thinking",)

    body, dropped = messages(target=ALL, messages=talk)

    assert (body["messages"][1]["reasoning_content"], dropped) == ("Hm", ())

    again, dropped = chat(messages=body["messages"])

    assert talk[1] == again["messages"][1]
    assert dropped == ()

    only_text = Target(extensions=frozenset({"reasoning_content"}))

    assert messages(target=only_text, messages=talk)[1] == ("messages.content.signature",)


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        (
            {"type": "tool", "name": "weather"},
            {"type": "function", "function": {"name": "weather"}},
            None,
        ),
    ],
)
def test_tools_and_choice_of_messages(choice: object, expected: object, parallel: object) -> None:
    body, dropped = messages(tools=[{**WEATHER_TOOL, "strict": True}], tool_choice=choice)
    function = {**WEATHER["function"], "strict": True}  # type: ignore[dict-item]

    assert [{"type": "function", "function": function}] == body["tools"]
    assert (expected, parallel) == (body["tool_choice"], body.get("parallel_tool_calls"))
    assert dropped == ()


@pytest.mark.parametrize(
    ("fields", "effort", "dropped"),
    [
        ({"thinking": {"type": "disabled"}}, "none", ()),
        ({"thinking": {"type": "adaptive"}}, "high", ()),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max", ()),
        ({"output_config": {"effort": "low"}}, "low", ()),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 10_000},
            "low",
            ("thinking.budget_tokens",),
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9_000}, "max_tokens": 10_000},
            "high",
            ("thinking.budget_tokens",),
        ),
        ({"thinking": {"type": "between_tools"}}, None, ("thinking.type",)),
    ],
)
def test_thinking_becomes_effort(
    fields: dict[str, Any], effort: str | None, dropped: tuple[str, ...]
) -> None:
    body, found = messages(**fields)

    assert (effort, dropped) == (body.get("reasoning_effort"), found)


@pytest.mark.parametrize(("required", "is_strict"), [(["a"], True), ([], False)])
def test_output_format_becomes_response_format(required: list[str], is_strict: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": required,
        "additionalProperties": False,
    }
    body, dropped = messages(output_config={"format": {"type": "json_schema", "schema": schema}})

    assert {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": schema, "strict": is_strict},
    } == body["response_format"]
    assert (() if is_strict else ("output_config.format.strict",)) == dropped


def test_sampling_and_identity_of_messages() -> None:
    body, dropped = messages(
        temperature=0.5,
        top_p=0.9,
        stop_sequences=["END"],
        metadata={"user_id": "u-1"},
        service_tier="standard_only",
    )

    assert (
        body["temperature"],
        body["top_p"],
        body["stop"],
        body["user"],
        body["service_tier"],
    ) == (0.5, 0.9, ["END"], "u-1", "default")
    assert dropped == ()


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("top_k", 5, "top_k"),
        ("container", "c", "container"),
        ("speed", "fast", "speed"),
        ("inference_geo", "us", "inference_geo"),
        ("cache_control", {"type": "ephemeral"}, "cache_control"),
        ("some_new_field", 1, "some_new_field"),
        (
            "system",
            [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
            "cache_control",
        ),
        ("tools", [{**WEATHER_TOOL, "defer_loading": True}], "tools.defer_loading"),
    ],
)
def test_messages_field_without_counterpart_is_reported(
    field: str, value: object, name: str
) -> None:
    assert (name,) == messages(**{field: value})[1]


def test_extensions_of_an_endpoint_are_carried() -> None:
    system = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    body, dropped = messages(target=ALL, top_k=5, system=system)

    assert (5, system) == (body["top_k"], body["messages"][0]["content"])
    assert dropped == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "search_result"}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                    }
                ]
            },
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_messages_shape_without_counterpart_is_refused(fields: dict[str, Any], param: str) -> None:
    assert param == refused(messages, **fields)


def test_only_chat_and_messages_are_bridged() -> None:
    parsed = parse_request(Surface.COMPLETIONS, b'{"model":"p","prompt":"x"}')
    with pytest.raises(CannotTranslate, match="only chat and messages"):
        translate_request(parsed, Surface.MESSAGES, model="m", max_tokens_default=1)
