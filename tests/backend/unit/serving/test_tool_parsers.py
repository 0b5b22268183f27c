"""Tool calls in text: found whole, found in pieces, and text where they are none."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving.tool_calls import ToolCall, ToolFormat, format_of, id_maker, markers_of
from backend.serving.tool_parsers import Piece, make_parser
from tests.support.text_models import chunked

NAMES = ("get_weather", "add", "a.b-c")


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"id{next(numbers)}"


def parse(tool_format: ToolFormat, pieces: list[str]) -> list[Piece]:
    """Adjoining texts joined, as the division between them means nothing."""
    parser = make_parser(tool_format, NAMES, ids())
    found = [each for piece in pieces for each in parser.feed(piece)] + parser.finish()
    joined: list[Piece] = []
    for each in found:
        if isinstance(each, str) and joined and isinstance(joined[-1], str):
            joined[-1] += each
        else:
            joined.append(each)
    return joined


def call(number: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(f"id{number}", name, arguments)


WEATHER = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
WEATHER_3 = '{"name": "get_weather", "parameters": {"city": "Rome"}}'
ADD = '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}]"}]}}'
ROME, SUM = '{"city": "Rome"}', '{"a": 1, "b": [2, {"c": "}]"}]}'

CASES: dict[ToolFormat, list[tuple[str, list[Piece]]]] = {
    ToolFormat.HERMES: [
        ("Just text.", ["Just text."]),
        (f"<tool_call>\n{WEATHER}\n</tool_call>", [call(1, "get_weather", ROME)]),
        (
            f"Let me see.\n<tool_call>{WEATHER}</tool_call>\n<tool_call>\n{ADD}\n</tool_call>\n",
            ["Let me see.\n", call(1, "get_weather", ROME), call(2, "add", SUM)],
        ),
        (f"\n\n<tool_call>{ADD}</tool_call> done", [call(1, "add", SUM), " done"]),
        (f"<tool_call>{WEATHER}", [call(1, "get_weather", ROME)]),
        ("<tool_call>{broken</tool_call> x", ["<tool_call>{broken</tool_call> x"]),
        ('<tool_call>{"name": "rm"}</tool_call>', ['<tool_call>{"name": "rm"}</tool_call>']),
        ("<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
        ("A <tool_call> is a tag", ["A <tool_call> is a tag"]),
        ("a <tool_cal", ["a <tool_cal"]),
        ("<tool_call>  ", ["<tool_call>  "]),
        (
            f"<tool_call><tool_call>{WEATHER}</tool_call>",
            ["<tool_call>", call(1, "get_weather", ROME)],
        ),
        ('<tool_call>{"name": "add"}</tool_call>', [call(1, "add", "{}")]),
        (
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"é\\"}"}</tool_call>',
            [call(1, "add", '{"a": "é"}')],
        ),
        (
            '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
            ['<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'],
        ),
        (
            '<tool_call>{"name": ["add"], "arguments": 3}</tool_call>',
            ['<tool_call>{"name": ["add"], "arguments": 3}</tool_call>'],
        ),
        (" \n", [" \n"]),
    ],
    ToolFormat.LLAMA3: [
        ("Just text.", ["Just text."]),
        ("  Just text.", ["  Just text."]),
        (WEATHER_3, [call(1, "get_weather", ROME)]),
        (f"<|python_tag|>{WEATHER_3}", [call(1, "get_weather", ROME)]),
        (
            f"\n<|python_tag|> {WEATHER_3}; {ADD}\n",
            [call(1, "get_weather", ROME), call(2, "add", SUM)],
        ),
        (f"{ADD} and more; text", [call(1, "add", SUM), " and more; text"]),
        (f"{ADD}; {{broken", [call(1, "add", SUM), "; {broken"]),
        ('{"answer": 42}', ['{"answer": 42}']),
        ('{"answer": 42}; ' + ADD, ['{"answer": 42}; ' + ADD]),
        ('{"name": "Bob", "parameters": {}}', ['{"name": "Bob", "parameters": {}}']),
        (f"I call {ADD}", [f"I call {ADD}"]),
        ('<|python_tag|>print("x")', ['<|python_tag|>print("x")']),
        ("<|python_tag|>", ["<|python_tag|>"]),
        ("<|py", ["<|py"]),
        ('{"name": "add", ', ['{"name": "add", ']),
        (" ", [" "]),
    ],
    ToolFormat.MISTRAL: [
        ("Just text.", ["Just text."]),
        (f"[TOOL_CALLS] [{WEATHER}]", [call(1, "get_weather", ROME)]),
        (
            f"Sure.[TOOL_CALLS][{WEATHER}, {ADD}] ok",
            ["Sure.", call(1, "get_weather", ROME), call(2, "add", SUM), " ok"],
        ),
        (f"[TOOL_CALLS]add[ARGS]{SUM}", [call(1, "add", SUM)]),
        (
            f"[TOOL_CALLS]add{SUM}[TOOL_CALLS]a.b-c[CALL_ID]x1[ARGS]{{}}",
            [call(1, "add", SUM), call(2, "a.b-c", "{}")],
        ),
        (f"[TOOL_CALLS][{WEATHER}, 3]", [f"[TOOL_CALLS][{WEATHER}, 3]"]),
        ("[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
        ("[TOOL_CALLS]rm[ARGS]{}", ["[TOOL_CALLS]rm[ARGS]{}"]),
        ("[TOOL_CALLS]add[ARGS]{bad}", ["[TOOL_CALLS]add[ARGS]{bad}"]),
        ("[TOOL_CALLS] are a format {}", ["[TOOL_CALLS] are a format {}"]),
        (f"[TOOL_CALLS]{'x' * 300}{{}}", [f"[TOOL_CALLS]{'x' * 300}{{}}"]),
        (f"[TOOL_CALLS]{' ' * 300}[{ADD}]", [f"[TOOL_CALLS]{' ' * 300}[{ADD}]"]),
        (f"[TOOL_CALLS][{WEATHER}", [f"[TOOL_CALLS][{WEATHER}"]),
        ("[TOOL_", ["[TOOL_"]),
        (
            f"[TOOL_CALLS] no [TOOL_CALLS][{ADD}]",
            ["[TOOL_CALLS] no ", call(1, "add", SUM)],
        ),
    ],
}
FLAT = [(kind, text, want) for kind, cases in CASES.items() for text, want in cases]


@pytest.mark.parametrize(("tool_format", "text", "want"), FLAT)
def test_known_answers(tool_format: ToolFormat, text: str, want: list[Piece]) -> None:
    assert parse(tool_format, [text]) == want
    assert parse(tool_format, list(text)) == want, "character by character"


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<tool", "_call>", "[TOOL_CALLS]", "[ARGS]", "[", "]"),
            *("<|python_tag|>", WEATHER, ADD, WEATHER_3, "{", "}", '"', "\\", ";", ",", " ", "\n"),
            *("add", "text", "{}", '{"a": "\\""}', "<", "é"),
        ]
    ),
    max_size=10,
).map("".join)


@pytest.mark.parametrize("tool_format", ToolFormat)
@given(text=FRAGMENTS, cuts=st.lists(st.integers(0, 300), max_size=10))
def test_every_division_of_the_text_is_read_alike(
    tool_format: ToolFormat, text: str, cuts: list[int]
) -> None:
    whole = parse(tool_format, [text])

    assert parse(tool_format, chunked(text, cuts)) == whole
    assert parse(tool_format, list(text)) == whole


@pytest.mark.parametrize("tool_format", ToolFormat)
@given(text=FRAGMENTS)
def test_without_a_call_the_text_is_unchanged(tool_format: ToolFormat, text: str) -> None:
    found = parse(tool_format, [text])

    if not any(isinstance(each, ToolCall) for each in found):
        assert found == ([text] if text else [])


@pytest.mark.parametrize("tool_format", ToolFormat)
def test_text_is_not_held_back_longer_than_needed(tool_format: ToolFormat) -> None:
    parser = make_parser(tool_format, NAMES)

    assert parser.feed("Hello") == ["Hello"]
    assert parser.feed(" world.") == [" world."]
    assert parser.feed("\n") == ["\n"]


def test_a_call_goes_out_with_its_last_character() -> None:
    parser = make_parser(ToolFormat.HERMES, NAMES, ids())
    text = f"<tool_call>{WEATHER}</tool_call>"

    assert [each for character in text[:-1] for each in parser.feed(character)] == []
    assert parser.feed(text[-1]) == [call(1, "get_weather", ROME)]


@pytest.mark.parametrize(
    ("tool_format", "start"),
    [
        (ToolFormat.HERMES, '<tool_call>{"name": "add", "arguments": {"a": "'),
        (ToolFormat.LLAMA3, '{"name": "add", "parameters": {"a": "'),
        (ToolFormat.MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": "'),
    ],
)
def test_long_arguments_cost_time_in_proportion(tool_format: ToolFormat, start: str) -> None:
    parser = make_parser(tool_format, NAMES)
    parser.feed(start)
    began = time.process_time()

    for _ in range(20_000):
        parser.feed('text { \\" ')
    end = {"hermes": '"}}</tool_call>', "llama3": '"}}', "mistral": '"}}]'}[tool_format]
    found = parser.feed(end)

    assert time.process_time() - began < 3.0
    [made] = found
    assert isinstance(made, ToolCall)
    assert json.loads(made.arguments) == {"a": 'text { " ' * 20_000}


def test_deeply_nested_json_is_text() -> None:
    text = '<tool_call>{"name": "add", "arguments": ' + "[" * 100_000 + "</tool_call>"

    assert parse(ToolFormat.HERMES, [text]) == [text]


def test_ids_have_the_shape_that_templates_take() -> None:
    mistral, others = id_maker(ToolFormat.MISTRAL), id_maker(ToolFormat.HERMES)

    assert re.fullmatch(r"[A-Za-z0-9]{9}", mistral())
    assert re.fullmatch(r"call_[A-Za-z0-9]{24}", others())
    assert len({others() for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("template", "tool_format"),
    [
        ("{% if tools %}<tool_call></tool_call>{% endif %}", ToolFormat.HERMES),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", ToolFormat.MISTRAL),
        ('{% if tools %}{"name": name, "parameters": {}}{% endif %}', ToolFormat.LLAMA3),
        ("{% if tools %}<|python_tag|>{% endif %}", ToolFormat.LLAMA3),
        ("{% if tools %}some other way{% endif %}", None),
        ("{{ messages }} <tool_call>", None),
    ],
)
def test_format_is_read_off_the_template(template: str, tool_format: ToolFormat | None) -> None:
    assert format_of(template) is tool_format


def test_markers_of_a_format_are_those_its_parser_looks_for() -> None:
    assert "<tool_call>" in markers_of(ToolFormat.HERMES)
    assert "[TOOL_CALLS]" in markers_of(ToolFormat.MISTRAL)
    assert "<|python_tag|>" in markers_of(ToolFormat.LLAMA3)
