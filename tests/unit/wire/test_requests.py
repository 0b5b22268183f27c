"""Requests: what routing and money read of a body."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.wire.pieces import Surface
from gateway.wire.rawjson import WireFormatError
from gateway.wire.requests import (
    PROMPT_PREFIX_BYTES_MAX,
    FieldError,
    ParsedRequest,
    parse_request,
)

USER = {"role": "user", "content": "Grüße"}  # 7 bytes of text


def parse(surface: Surface = Surface.CHAT, **fields: Any) -> ParsedRequest:
    if surface in (Surface.CHAT, Surface.MESSAGES, Surface.COUNT_TOKENS):
        fields.setdefault("messages", [USER])
    body = {"model": "m", **fields}
    return parse_request(surface, msgspec.json.encode(body))


def test_a_plain_chat_request() -> None:
    parsed = parse(temperature=0.5, top_p=None)

    assert (parsed.model, parsed.stream, parsed.include_usage) == ("m", False, False)
    assert (parsed.max_tokens, parsed.num_choices, parsed.text_bytes) == (None, 1, 7)
    assert parsed.needs == frozenset()
    assert parsed.parameters == {"temperature"}  # null is not sent, the others all endpoints take


def test_models_may_stand_in_for_the_model() -> None:
    body = msgspec.json.encode({"models": ["a", "b", "a"], "messages": [USER]})
    parsed = parse_request(Surface.CHAT, body)

    assert (parsed.model, parsed.models) == ("a", ("b",))


@pytest.mark.parametrize("body", [{}, {"model": None}, {"models": []}, {"models": None}])
def test_a_request_without_any_model_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="`model` is missing"):
        parse_request(Surface.CHAT, msgspec.json.encode({**body, "messages": [USER]}))


@pytest.mark.parametrize(
    ("surface", "fields"),
    [
        (Surface.CHAT, {}),
        (Surface.COMPLETIONS, {"prompt": "x"}),
        (Surface.RESPONSES, {"input": "x"}),
        (Surface.MESSAGES, {}),
    ],
)
def test_every_stream_may_ask_for_its_cost(surface: Surface, fields: dict[str, Any]) -> None:
    assert parse(surface, usage={"include": True}, **fields).include_usage
    assert not parse(surface, usage={"include": False}, **fields).include_usage


def test_everything_a_chat_request_can_ask_for() -> None:
    parsed = parse(
        stream=True,
        stream_options={"include_usage": True, "other": 1},
        n=3,
        max_tokens=10,
        max_completion_tokens=20,
        tools=[{"type": "function", "function": {"name": "f"}}],
        parallel_tool_calls=True,
        response_format={"type": "json_schema", "json_schema": {"name": "s"}},
        logprobs=True,
        reasoning_effort="low",
        modalities=["text", "audio"],
        models=["m", "spare"],
        provider={"order": ["groq"]},
        service_tier="flex",
        prompt_cache_key="talk-1",
        user="u",
    )

    assert parsed.needs == {
        "tools", "json_schema", "logprobs", "reasoning", "audio", "parallel_tool_calls", "n",
    }  # fmt: skip
    assert (parsed.stream, parsed.include_usage, parsed.num_choices) == (True, True, 3)
    assert parsed.max_tokens == 20
    assert parsed.models == ("spare",)
    assert parsed.provider == b'{"order":["groq"]}'
    assert (parsed.service_tier, parsed.session_id, parsed.user) == ("flex", "talk-1", "u")


@pytest.mark.parametrize(
    ("fields", "need"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"functions": [{"name": "f"}]}, "tools"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"thinking": {"type": "enabled"}}, "reasoning"),
    ],
)
def test_other_ways_to_need_it(fields: dict[str, Any], need: str) -> None:
    assert parse(**fields).needs == {need}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"reasoning_effort": "none"},
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": None, "summary": None}},
        {"thinking": {"type": "disabled"}},
        {"n": 1},
        {"modalities": ["text"]},
    ],
)
def test_a_switch_that_is_off_needs_nothing(fields: dict[str, Any]) -> None:
    assert parse(**fields).needs == frozenset()


def test_chat_parts_are_counted_by_kind() -> None:
    content = [
        {"type": "text", "text": "abc"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 6400, "format": "wav"}},
    ]
    parsed = parse(messages=[{"role": "user", "content": content}])

    assert parsed.num_images == 1
    assert parsed.needs == {"vision", "audio"}
    assert 3 + 6400 // 64 <= parsed.text_bytes <= 3 + 6500 // 64


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"arguments": "x" * 99}}],
        },
        {"role": "assistant", "content": "", "reasoning_content": "x" * 99},
        {"role": "assistant", "refusal": "x" * 99},
        {"role": "tool", "content": [{"type": "text", "text": "x" * 99}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "x" * 99}}]},
    ],
)
def test_no_text_of_a_chat_message_goes_uncounted(message: dict[str, Any]) -> None:
    assert parse(messages=[message]).text_bytes >= 99


def test_tools_and_schemas_are_prompt_text_too() -> None:
    schema = {"name": "s", "schema": {"type": "object", "description": "x" * 500}}
    parsed = parse(
        tools=[{"type": "function", "function": {"description": "x" * 500}}],
        response_format={"type": "json_schema", "json_schema": schema},
    )

    assert parsed.text_bytes > 1000


def test_messages_request() -> None:
    parsed = parse(
        Surface.MESSAGES,
        max_tokens=100,
        system=[{"type": "text", "text": "abc", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "image", "source": {"data": "A" * 4000}}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "name": "f", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "content": [{"type": "text", "text": "12345"}]},
                    {"type": "tool_result", "content": "678"},
                ],
            },
        ],
        tools=[{"name": "f"}],
        thinking={"type": "adaptive"},
        metadata={"user_id": "talk-2"},
        output_config={"format": {"type": "json_schema", "schema": {}}},
    )

    assert (parsed.max_tokens, parsed.num_images) == (100, 1)
    assert parsed.text_bytes == 3 + len('{"a":1}') + 5 + 3 + len('[{"name":"f"}]') + len("{}")
    assert parsed.needs == {"tools", "reasoning", "vision", "json_schema"}
    assert (parsed.session_id, parsed.user) == ("talk-2", "talk-2")


def test_messages_documents_count_as_text() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "A" * 4000}
    parsed = parse(
        Surface.MESSAGES,
        messages=[{"role": "user", "content": [{"type": "document", "source": source}]}],
    )

    assert parsed.text_bytes >= 4000


def test_unknown_block_shapes_are_no_error() -> None:
    error = {"type": "web_search_tool_result_error", "error_code": "x"}
    block = {"type": "web_search_tool_result", "content": error}

    parse(Surface.MESSAGES, messages=[{"role": "assistant", "content": [block]}])


def test_count_tokens_request_needs_no_max_tokens() -> None:
    assert parse(Surface.COUNT_TOKENS).text_bytes == 7


def test_responses_request() -> None:
    parsed = parse(
        Surface.RESPONSES,
        instructions="abc",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "de"},
                                         {"type": "input_image", "image_url": "data:x"}]},
            {"type": "function_call", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "output": "fgh"},
            {"type": "computer_call_output",
             "output": {"type": "computer_screenshot", "image_url": "data:y"}},
        ],
        max_output_tokens=50,
        text={"format": {"type": "json_schema", "name": "s", "schema": {"a": 1}}},
        reasoning={"effort": "low"},
        tools=[{"type": "web_search"}],
        top_logprobs=2,
    )  # fmt: skip

    assert (parsed.max_tokens, parsed.num_images) == (50, 2)
    assert parsed.needs == {"json_schema", "reasoning", "tools", "logprobs", "vision"}
    assert parsed.text_bytes == 3 + 2 + len('"{}"') + 3 + len('{"a":1}') + len(
        '[{"type":"web_search"}]'
    )


def test_responses_input_may_be_a_string() -> None:
    assert parse(Surface.RESPONSES, input="Grüße").text_bytes == 7


@pytest.mark.parametrize(
    ("prompt", "text_bytes", "num_choices"),
    [
        ("Grüße", 7, 1),
        (["abc", "de"], 5, 2),
        ([1, 2, 3], 12, 1),
        ([[1, 2], [3]], 12, 2),
        ([], 0, 1),
        (None, 0, 1),
    ],
)
def test_completions_prompts_in_every_form(
    prompt: object, text_bytes: int, num_choices: int
) -> None:
    parsed = parse(Surface.COMPLETIONS, prompt=prompt)

    assert (parsed.text_bytes, parsed.num_choices) == (text_bytes, num_choices)
    assert parsed.needs == frozenset()


def test_completions_pay_for_every_answer_that_is_drawn() -> None:
    parsed = parse(Surface.COMPLETIONS, prompt=["a", "b"], n=2, best_of=5, logprobs=0, suffix="xyz")

    assert (parsed.num_choices, parsed.text_bytes) == (10, 5)
    assert parsed.needs == {"n", "logprobs"}


@pytest.mark.parametrize(
    ("text", "text_bytes"), [("abc", 3), (["abc", "d"], 4), ([1, 2], 8), ([[1], [2, 3]], 12)]
)
def test_embeddings_inputs_in_every_form(text: object, text_bytes: int) -> None:
    assert parse(Surface.EMBEDDINGS, input=text).text_bytes == text_bytes


def test_embeddings_take_as_many_tokens_as_openai_does() -> None:
    tokens = [[7] * 2048] * 146  # 299,008 tokens

    assert parse(Surface.EMBEDDINGS, input=tokens).text_bytes == 299_008 * 4
    with pytest.raises(WireFormatError, match="values"):
        parse(Surface.CHAT, seed=tokens)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 257}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [USER, {"content": 5}]}, "messages[1].content"),
        ({"messages": [{"content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_completion_tokens": 10**10}, "max_completion_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"models": "a"}, "models"),
        ({"models": ["a"] * 33}, "models"),
        ({"service_tier": 1}, "service_tier"),
        ({"response_format": {"type": 1}}, "response_format.type"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()

    with pytest.raises(FieldError) as caught:
        parse_request(Surface.CHAT, body)
    assert caught.value.param == param
    assert f"`{param}`" in caught.value.message


def test_a_missing_field_is_named() -> None:
    with pytest.raises(FieldError, match="`model` is missing") as caught:
        parse_request(Surface.CHAT, b'{"messages":[]}')
    assert caught.value.param == "model"


def test_bodies_that_are_no_object_are_format_errors() -> None:
    with pytest.raises(WireFormatError):
        parse_request(Surface.CHAT, b"[]")
    with pytest.raises(WireFormatError, match="twice"):
        parse_request(Surface.CHAT, b'{"model":"a","messages":[],"model":"b"}')


def test_a_surface_without_body_cannot_be_parsed() -> None:
    with pytest.raises(ValueError, match="no body"):
        parse_request(Surface.MODELS, b"{}")


def test_prompt_prefix_of_one_turn_begins_the_next_turns() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    first = parse(messages=[USER], tools=tools, temperature=1)
    answer = {"role": "assistant", "content": "Hallo"}
    second = parse(temperature=0, tools=tools, messages=[USER, answer, USER])

    assert second.prompt_prefix.startswith(first.prompt_prefix)
    assert first.prompt_prefix != parse(messages=[answer], tools=tools).prompt_prefix


def test_prompt_prefix_is_bounded() -> None:
    parsed = parse(Surface.MESSAGES, system="s" * 60_000, messages=[USER] * 5_000)

    assert len(parsed.prompt_prefix) == PROMPT_PREFIX_BYTES_MAX


@pytest.mark.parametrize(
    ("fields", "session_id"),
    [
        ({"session_id": "s", "prompt_cache_key": "p", "user": "u"}, "s"),
        ({"prompt_cache_key": "p", "user": "u"}, "p"),
        ({"user": "u"}, "u"),
        ({}, ""),
    ],
)
def test_session_ids_in_order(fields: dict[str, Any], session_id: str) -> None:
    assert parse(**fields).session_id == session_id
