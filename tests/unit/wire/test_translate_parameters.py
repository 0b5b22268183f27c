"""The parameters of a chat request, all but the talk, in the messages dialect."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.translate import Target, target_of
from tests.support.translating import (
    USER,
    WEATHER,
    call,
    chat,
    refused,
)


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


@pytest.mark.parametrize(("tokens", "effort"), [(1_024, "low"), (5_000, "medium"), (9_000, "high")])
def test_budget_becomes_an_effort_where_the_endpoint_takes_only_that(
    tokens: int, effort: str
) -> None:
    target = target_of(frozenset({"thinking_effort"}))
    body, dropped = chat(target=target, reasoning={"max_tokens": tokens}, max_tokens=10_000)

    assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": effort})
    assert dropped == ("reasoning.max_tokens",)


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
