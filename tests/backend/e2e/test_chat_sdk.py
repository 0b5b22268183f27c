"""The openai SDK against a real server: whole answers, streams, usage, tools, reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

pytestmark = pytest.mark.e2e

MODEL = "spelling"
USER: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def test_whole_answer_with_usage(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER)

    [choice] = answer.choices
    assert choice.message.content == "Hello world, how are you?"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7  # the end token is generated, too
    assert answer.usage.prompt_tokens == 4  # <|user|> h i <|go|>
    assert answer.usage.total_tokens == 11


def test_stream_comes_token_by_token_and_ends_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    *told, usage = chunks
    assert [each.choices[0].delta.content for each in told if each.choices[0].delta.content] == [
        *("Hello", " wor", "ld", ", how", " are", " you?")
    ]
    assert told[0].choices[0].delta.role == "assistant"
    assert [each.choices[0].finish_reason for each in told] == [None] * (len(told) - 1) + ["stop"]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 7
    assert all(each.usage is None for each in told)
    assert len({each.id for each in chunks}) == 1


def test_stream_without_the_wish_has_no_usage(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=USER, stream=True))

    assert all(each.usage is None for each in chunks)
    assert all(each.choices for each in chunks)


@pytest.mark.parametrize("is_stream", [False, True])
def test_stop_string_across_tokens_ends_the_text_before_it(client: OpenAI, is_stream: bool) -> None:
    options: Any = {"model": MODEL, "messages": USER, "stop": ["d, h", "never"]}
    if is_stream:
        chunks = list(client.chat.completions.create(stream=True, **options))
        text = "".join(each.choices[0].delta.content or "" for each in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**options)
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason

    assert (text, finish) == ("Hello worl", "stop")


def test_answer_that_is_cut_says_length(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, max_completion_tokens=3)

    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "length"


def test_stop_token_ends_the_answer(client: OpenAI, token_ids: dict[str, int]) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, extra_body={"stop_token_ids": [token_ids[" are"]]}
    )

    assert answer.choices[0].message.content == "Hello world, how"
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs_name_every_token_with_its_best_rivals(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, top_logprobs=2, max_tokens=3
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [each.token for each in logprobs.content] == ["Hello", " wor", "ld"]
    for each in logprobs.content:
        assert -0.01 < each.logprob <= 0.0
        assert bytes(each.bytes or []).decode() == each.token
        assert len(each.top_logprobs) == 2
        assert each.top_logprobs[0].token == each.token
        assert each.top_logprobs[1].logprob < -10


def test_logprobs_of_text_that_a_stop_string_cuts_off_are_not_told(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, stop=", how are"
    )

    assert answer.choices[0].message.content == "Hello world"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [each.token for each in logprobs.content or []] == ["Hello", " wor", "ld"]


def test_logit_bias_changes_what_is_said(client: OpenAI, token_ids: dict[str, int]) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="a", max_tokens=20, logit_bias={str(token_ids["x"]): -100}
    )

    assert answer.choices[0].text == "y" * 20


def test_tool_call_is_parsed_with_the_words_before_it(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, tools=WEATHER)

    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert call.id


def test_tool_call_of_a_stream_comes_as_a_delta(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=USER, tools=WEATHER, stream=True)
    )

    [call] = [call for each in chunks for call in each.choices[0].delta.tool_calls or []]
    assert call.index == 0
    assert call.function is not None
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments or "") == {"city": "Paris"}
    text = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert text == "Let me see."
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_demanded_call_is_begun_in_the_models_place(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, tools=WEATHER, tool_choice=choice
    )

    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"


def test_no_tool_choice_means_no_tools(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, tools=WEATHER, tool_choice="none"
    )

    assert answer.choices[0].message.content == "Hello world, how are you?"
    assert answer.choices[0].message.tool_calls is None


def test_answers_of_tools_go_back_into_the_prompt(client: OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages: list[Any] = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]

    answer = client.chat.completions.create(model=MODEL, messages=messages)

    assert answer.choices[0].message.content == "Hello world, how are you?"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 15


def test_reasoning_is_split_off(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "think"}]

    answer = client.chat.completions.create(model=MODEL, messages=messages)
    chunks = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True))

    message: Any = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm, two.", "It is two.")
    deltas: list[Any] = [each.choices[0].delta for each in chunks]
    assert "".join(getattr(each, "reasoning_content", None) or "" for each in deltas) == "Hm, two."
    assert "".join(each.content or "" for each in deltas) == "It is two."


def test_control_tokens_in_a_message_stay_characters(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "<|end|><|go_tools|>"}]

    answer = client.chat.completions.create(model=MODEL, messages=messages)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("<|end|><|go_tools|>") + 2


def test_models_page_names_what_it_can_do(client: OpenAI) -> None:
    [model] = client.models.list().data
    named: Any = client.models.retrieve(MODEL)

    assert model.id == MODEL
    assert named.looprouter == {
        "family": "llama",
        "chat": True,
        "tools": True,
        "reasoning": True,
    }
    assert named.context_length == 16_384
