"""A choice's events → deltas: where it ends, what it held back, what is told of logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backend.engine.interface import FinishReason, TokenEvent, TokenLogprob
from backend.models.loading import TokenizerSource
from backend.serving.choice import AnswerShape, Choice, Delta
from backend.serving.prompting import ChatRequest, TextSide
from backend.serving.stop_strings import StopAutomaton
from backend.serving.tokenizer_files import load_tokenizer
from backend.serving.tool_calls import ToolFormat
from tests.support.spelling_model import save_spelling_model

CALL = ["<tool_call>", '{"name": "', "get_weather", '", "arguments": ', '{"city": "Rome"}', "}\n"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextSide:
    folder = tmp_path_factory.mktemp("spelling")
    save_spelling_model(folder)
    return TextSide(load_tokenizer(TokenizerSource("hf_directory", folder, {})))


def ids(text: TextSide, pieces: Sequence[str]) -> list[int]:
    found = [text.tokenizer.token_id(each) for each in pieces]
    assert None not in found
    return [each for each in found if each is not None]


def run(
    text: TextSide,
    pieces: Sequence[str],
    finish: FinishReason | None = FinishReason.STOP,
    *,
    at_once: bool = False,
    **shape: Any,
) -> tuple[Delta, list[Delta]]:
    """All deltas joined, and each; the choice is fed until it has ended."""
    choice = Choice(AnswerShape(tokenizer=text.tokenizer, **shape))
    tokens = ids(text, pieces)
    groups = [tokens] if at_once else [[each] for each in tokens]
    deltas, count = [], 0
    for idx, group in enumerate(groups):
        count += len(group)
        event = TokenEvent(
            "r",
            tuple(group),
            logprobs=tuple(TokenLogprob(each, -0.5) for each in group),
            finish=finish if idx == len(groups) - 1 else None,
            num_generated=count,
        )
        deltas.append(choice.take(event))
        if choice.has_ended:
            break
    joined = Delta()
    for each in deltas:
        joined.content += each.content
        joined.reasoning += each.reasoning
        joined.calls += each.calls
        joined.logprobs += each.logprobs
        joined.finish = each.finish or joined.finish
    return joined, deltas


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("finish", "said"), [(FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")]
)
def test_text_goes_out_as_it_comes_and_the_end_in_openais_words(
    text: TextSide, finish: FinishReason, said: str, at_once: bool
) -> None:
    joined, _ = run(text, ["Hello", " wor", "ld"], finish, at_once=at_once)

    assert (joined.content, joined.finish) == ("Hello world", said)
    assert len(joined.logprobs) == 3


@pytest.mark.parametrize("at_once", [False, True])
def test_stop_string_ends_the_choice_before_the_engine_does(text: TextSide, at_once: bool) -> None:
    joined, deltas = run(
        text,
        ["Hello", " wor", "ld", ", how", " are"],
        FinishReason.LENGTH,
        at_once=at_once,
        stops=StopAutomaton(["d, h"]),
    )

    assert (joined.content, joined.finish) == ("Hello worl", "stop")
    assert [text.tokenizer.decode([each.token_id]) for each in joined.logprobs] == [
        *("Hello", " wor", "ld")
    ]
    assert len(deltas) == (1 if at_once else 4)


def test_what_a_stop_string_held_back_comes_at_the_end(text: TextSide) -> None:
    joined, deltas = run(text, ["Hello", " wor", "ld"], stops=StopAutomaton(["world!"]))

    assert [each.content for each in deltas] == ["Hello", " ", "world"]
    assert [len(each.logprobs) for each in deltas] == [1, 1, 1]
    assert joined.finish == "stop"


def test_reasoning_is_split_off_and_a_stop_string_counts_in_it_too(text: TextSide) -> None:
    pieces = ["<think>", "\nHm", ", two.", "\n</think>", "\n\nIt is", " two."]

    whole, _ = run(text, pieces, splits_reasoning=True)
    stopped, _ = run(text, pieces, splits_reasoning=True, stops=StopAutomaton(["two."]))
    plain, _ = run(text, pieces)

    assert (whole.reasoning, whole.content) == ("Hm, two.", "It is two.")
    assert (stopped.reasoning, stopped.content) == ("Hm, ", "")
    assert plain.content == "".join(pieces)


def test_call_makes_the_end_tool_calls(text: TextSide) -> None:
    joined, _ = run(
        text,
        ["Hello", *CALL, "</tool_call>"],
        tool_format=ToolFormat.HERMES,
        tool_names=frozenset({"get_weather"}),
    )

    assert joined.content == "Hello"
    assert [(each.name, each.arguments) for each in joined.calls] == [
        ("get_weather", '{"city": "Rome"}')
    ]
    assert joined.finish == "tool_calls"


def test_answer_cut_within_a_call_is_text_and_says_length(text: TextSide) -> None:
    joined, _ = run(
        text,
        ["Hello", *CALL[:4]],
        FinishReason.LENGTH,
        tool_format=ToolFormat.HERMES,
        tool_names=frozenset({"get_weather"}),
    )

    assert joined.content == "Hello" + "".join(CALL[:4])
    assert (joined.calls, joined.finish) == ([], "length")


def test_one_call_is_enough_where_only_one_is_wanted(text: TextSide) -> None:
    joined, deltas = run(
        text,
        [*CALL, "</tool_call>", *CALL, "</tool_call>"],
        FinishReason.LENGTH,
        tool_format=ToolFormat.HERMES,
        tool_names=frozenset({"get_weather"}),
        is_one_call=True,
    )

    assert len(joined.calls) == 1
    assert joined.finish == "tool_calls"
    assert len(deltas) == len(CALL) + 1  # the rest is never asked for


def test_call_begun_by_the_prompt_is_read_with_its_beginning(text: TextSide) -> None:
    joined, _ = run(
        text,
        ['{"city": "Rome"}', "}\n", "</tool_call>"],
        tool_format=ToolFormat.HERMES,
        tool_names=frozenset({"get_weather"}),
        call_start='<tool_call>\n{"name": "get_weather", "arguments": ',
    )

    assert [each.arguments for each in joined.calls] == ['{"city": "Rome"}']
    assert joined.content == ""


@pytest.mark.parametrize(
    ("forced", "ending"),
    [
        (None, "<|go_tools|>"),
        ("", '<|go_tools|><tool_call>\n{"name": "'),
        ("f", '<|go_tools|><tool_call>\n{"name": "f", "arguments": '),
    ],
)
def test_prompt_of_a_demanded_call_ends_with_its_beginning(
    text: TextSide, forced: str | None, ending: str
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat = ChatRequest(
        messages=[{"role": "user", "content": "hi"}], tools=tools, forced_tool=forced
    )

    prompt = text.chat_prompt(chat)

    rendered = text.tokenizer.decode(prompt.token_ids, shows_control=True)
    assert rendered.endswith(ending)
    assert prompt.shape.call_start == ending.removeprefix("<|go_tools|>")
    assert prompt.shape.splits_reasoning is (forced is None)


def test_arguments_of_earlier_calls_reach_the_template_as_objects(text: TextSide) -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    chat = ChatRequest(
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
            {"role": "user", "content": "and?"},
        ]
    )

    rendered = text.tokenizer.decode(text.chat_prompt(chat).token_ids, shows_control=True)

    assert '"arguments": {"a": 1}' in rendered
