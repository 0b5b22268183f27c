"""What a body may hold, and that what is wrong is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.api.bodies import ChatBody, CompletionsBody
from backend.api.chat import chat_request
from backend.api.fields import decode_body
from backend.engine.interface import SpeculationWish
from backend.errors import BadRequest

CHAT = msgspec.json.Decoder(ChatBody)
TEXT = msgspec.json.Decoder(CompletionsBody)
VOCAB = 100


def chat(**fields: Any) -> ChatBody:
    given = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return decode_body(CHAT, msgspec.json.encode(given))


def text(**fields: Any) -> CompletionsBody:
    return decode_body(TEXT, msgspec.json.encode({"model": "m", "prompt": "hi", **fields}))


def params(body: ChatBody | CompletionsBody) -> Any:
    return body.params(max_tokens=5, logprobs=None, vocab_size=VOCAB)


def test_defaults_are_openais_and_null_is_the_same_as_absent() -> None:
    body = chat(temperature=None, top_p=None, stop=None, n=None, seed=None, tools=None)

    made = params(body)

    assert (made.temperature, made.top_p, made.top_k, made.seed) == (1.0, 1.0, 0, None)
    assert body.stops() == ()
    assert body.wish() == SpeculationWish()
    assert not body.includes_usage


def test_every_sampling_field_arrives() -> None:
    body = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        logit_bias={"7": -100, "8": 2.5},
        seed=-5,
        stop_token_ids=[1, 99],
        ignore_eos=True,
    )

    made = params(body)

    assert (made.temperature, made.top_p, made.top_k, made.min_p) == (0.5, 0.9, 40, 0.05)
    assert made.repetition_penalty == 1.1
    assert (made.presence_penalty, made.frequency_penalty) == (0.2, -0.3)
    assert dict(made.logit_bias) == {7: -100.0, 8: 2.5}
    assert (made.seed, made.stop_token_ids, made.ignore_eos) == (-5, (1, 99), True)


def test_top_k_of_minus_one_means_all() -> None:
    assert params(chat(top_k=-1)).top_k == 0


def test_unknown_fields_are_ignored() -> None:
    assert chat(store=True, metadata={"a": 1}, whatever=[1, {"b": None}]).model == "m"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 7}, "stop"),
        ({"stop": ["a", 7]}, "stop[1]"),
        ({"seed": 2**63}, "seed"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[...]"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search", "function": {"name": "a"}}]}, "tools[0].type"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"priority": "high"}, "priority"),
        ({"speculation": {"n": -1}}, "speculation.n"),
        ({"speculation": "off"}, "speculation"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"model": ""}, "model"),
        ({"top_k": -2}, "top_k"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ],
)
def test_wrong_type_is_a_bad_request_that_names_the_field(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        chat(**fields)

    assert refused.value.param == param
    assert f"`{param}`" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"stop_token_ids": [100]}, "stop_token_ids"),
    ],
)
def test_value_out_of_range_is_a_bad_request_that_names_the_field(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        params(chat(**fields))

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "a"}}],
                "tool_choice": {"type": "function", "function": {"name": "b"}},
            },
            "tool_choice",
        ),
    ],
)
def test_what_would_be_answered_wrongly_if_ignored_is_refused(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        chat(**fields).check()

    assert refused.value.param == param


@pytest.mark.parametrize("stop", [[""], ["x" * 300], ["a"] * 17])
def test_stop_strings_are_bounded(stop: list[str]) -> None:
    with pytest.raises(BadRequest, match="stop"):
        chat(stop=stop).stops()


def test_speculation_is_a_method_with_a_number_or_off() -> None:
    assert chat(speculation={"method": "none", "n": 3}).wish() == SpeculationWish(False, "none", 3)
    assert chat(speculation={"off": True}).wish() == SpeculationWish(True)
    with pytest.raises(BadRequest, match="off"):
        chat(speculation={"off": True, "n": 3}).wish()


def test_newer_name_of_max_tokens_counts_first() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).tokens_wanted == 7
    assert chat(max_tokens=5).tokens_wanted == 5
    assert chat().tokens_wanted is None


def test_logprobs_of_a_chat_are_a_switch_and_a_number() -> None:
    assert chat().num_logprobs is None
    assert chat(logprobs=True).num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).num_logprobs == 4
    with pytest.raises(BadRequest, match="needs logprobs"):
        _ = chat(top_logprobs=4).num_logprobs


def test_messages_reach_the_template_as_plain_values_without_absent_ones() -> None:
    made = chat_request(
        chat(
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
            ]
        )
    )

    assert made.messages == [
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]


def test_content_that_is_no_text_names_its_place() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]

    with pytest.raises(BadRequest) as refused:
        chat_request(chat(messages=[{"role": "user", "content": parts}]))

    assert refused.value.param == "messages[0].content[1]"


@pytest.mark.parametrize(
    ("choice", "forced", "num_tools"),
    [
        (None, None, 1),
        ("auto", None, 1),
        ("none", None, 0),
        ("required", "", 1),
        ({"type": "function", "function": {"name": "f"}}, "f", 1),
    ],
)
def test_tool_choice_decides_what_is_offered_and_demanded(
    choice: Any, forced: str | None, num_tools: int
) -> None:
    body = chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice=choice)

    made = chat_request(body)

    assert made.forced_tool == forced
    assert len(made.tools) == num_tools


def test_reasoning_effort_none_turns_thinking_off_for_the_template() -> None:
    assert chat_request(chat(reasoning_effort="none")).variables == {"enable_thinking": False}
    assert chat_request(chat(reasoning_effort="low")).variables == {"reasoning_effort": "low"}
    given = chat_request(chat(chat_template_kwargs={"enable_thinking": True, "x": 1}))
    assert given.variables == {"enable_thinking": True, "x": 1}


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, read: Any) -> None:
    assert text(prompt=prompt).prompts() == read


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]]])
def test_prompts_of_mixed_kinds_or_none_are_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest, match="prompt"):
        text(prompt=prompt).prompts()


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}, {"echo": True, "logprobs": 1}])
def test_completions_refuse_what_they_cannot_do(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(fields))):
        text(**fields).check()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe{}",
        b'{"model": "a", "model": "b"}',
        b'{"model": "m", "messages": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"model": "m", "temperature": 1e999}',
    ],
)
def test_body_that_is_no_json_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_body(CHAT, body)
