"""Rendering: SmolLM2's own template, the habits of chat templates, and Hugging Face's results."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from backend.errors import BadRequest, UnsafeFormat
from backend.serving.chat_template import SOURCE_CHARS_MAX, ChatTemplate
from backend.serving.control_guard import ControlGuard
from tests.support.text_models import smollm2_tokenizer

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
GUARD = ControlGuard(TOKENS.values())
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & later: 20 °C",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "  Hi é <b> "}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nTwo"},
        {"role": "user", "content": "Three\n"},
    ],
    [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "content": "sunny"},
    ],
]

# What chat templates of many families do, in templates of our own.
HABITS = {
    "turns": """
{{- bos_token }}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '[system]default' }}
    {%- endif %}
    {{- '[' + message['role'] + ']' + message.content | trim + eos_token + '\n' }}
    {%- if loop.last and add_generation_prompt %}{{ '[assistant]' }}{% endif %}
{%- endfor %}""",
    "tools": """
{%- if tools is not none and tools %}
{%- for tool in tools %}
{{ tool.function | tojson(indent=2) }}|{{ tool | tojson }}|{{ tool.function.name | upper }}
{%- endfor %}
{%- endif %}
{%- for message in messages if message.tool_calls is defined %}
{%- for call in message.tool_calls %}{% set f = call.function %}
{{- f.name }}({% for key, value in f.arguments.items() %}{{ key }}={{ value }}{% endfor %})
{%- endfor %}
{%- endfor %}""",
    "reasoning": """
{%- set ns = namespace(last=-1, seen=[]) %}
{%- for message in messages[::-1] %}
{%- set index = (messages | length - 1) - loop.index0 %}
{%- if ns.last < 0 and message.role == 'user' %}{% set ns.last = index %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- if loop.index0 > ns.last - 3 %}({{ thought.strip() }}){% endif %}
{%- endif %}
{%- set ns.seen = ns.seen + [message.role] %}
{{- content ~ ';' ~ loop.index }}
{%- endfor %}
{{- ns.seen | join(',') }}{{ ns.last }}""",
    "macro": """
{%- macro turn(role, text='') %}<{{ role }}>{{ text | default('none', true) }}{% endmacro %}
{%- for m in messages %}{{ turn(m.role, m.content) }}{{ turn('x') if loop.last }}{% endfor %}
{%- set roles = messages | map(attribute='role') | unique | list %}
{{- roles | sort | join('/') }}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}
{%- generation %}{{ 'answer' }}{% endgeneration %}
{%- for x in range(3) %}{% if x == 1 %}{% continue %}{% endif %}{{ x * 2 }}{% endfor %}""",
    "values": """
{{- none }}|{{ true }}|{{ 1.5 }}|{{ [1, 'a', none] }}|{{ {'a': (1, 2)} }}|{{ missing }}|
{{- 7 // 2 }}|{{ 7 % 4 }}|{{ 2 ** 10 }}|{{ -3 | abs }}|{{ 3.14159 | round(2) }}|
{{- '42' | int + 1 }}|
{{- 'abc'[1:] }}|{{ 'abc'[::-1] }}|{{ [1, 2, 3][:2] }}|{{ 'a,b'.split(',') }}|{{ 'x' * 3 }}|
{{- 'aXbX'.replace('X', '-') }}|{{ 'aXbX' | replace('X', '-', 1) }}|{{ '-'.join(['a', 'b']) }}|
{{- 'a\nb\n' | indent(2) }}|{{ 'a\n\nb' | indent(4, true) }}|{{ {'b': 1, 'a': 2} | dictsort }}|
{{- {'b': 1} | tojson(separators=(',', ':')) }}|{{ 'é"' | tojson(ensure_ascii=true) }}|
{{- 'ab' in 'cab' }}|{{ 'title case' | title }}|{{ [3, 1] | max }}|{{ '{} {}'.format('a', 1) }}|
{%- set block %}[{{ 'in' }}]{% endset %}{{ block ~ block | length }}|
{%- filter upper %}f{% endfilter %}
{{- dict(a=1).get('a') }}|{{ messages[0].get('none', 'x') }}|{{ messages[0]['role'] is string }}""",
}


@pytest.mark.parametrize("name", HABITS)
@pytest.mark.parametrize("chat", range(len(CHATS)))
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_templates_say_what_they_say_in_transformers(
    name: str, chat: int, tools: list[dict[str, Any]] | None
) -> None:
    given = {"messages": CHATS[chat], "tools": tools, "documents": None}
    want = _compile_jinja_template(HABITS[name]).render(
        **given, add_generation_prompt=True, **TOKENS
    )

    got = ChatTemplate(HABITS[name], TOKENS, GUARD).render(CHATS[chat], tools=tools)

    assert "".join(piece for piece, _ in GUARD.split(got)) == want


def test_smollm2_speaks_chatml() -> None:
    tokenizer = smollm2_tokenizer()
    template = ChatTemplate(
        tokenizer.chat_templates["default"], tokenizer.template_tokens, tokenizer.guard
    )

    rendered = template.render([{"role": "user", "content": "Hi"}])

    assert rendered.mark == ""
    assert rendered.text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render([], adds_generation_prompt=False).text == ""


def test_variables_of_the_caller_reach_the_template_but_shadow_nothing() -> None:
    template = ChatTemplate("{{ style }}{{ bos_token }}{{ messages | length }}", TOKENS, GUARD)

    rendered = template.render([], variables={"style": "x", "bos_token": "no", "messages": "no"})

    assert rendered.text == "x<s>0"


def test_template_may_refuse_the_messages() -> None:
    template = ChatTemplate("{{ raise_exception('no ' + messages[0].role) }}", TOKENS, GUARD)

    with pytest.raises(BadRequest, match=r"refuses this: no user") as refused:
        template.render([{"role": "user"}])

    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].missing.deeper }}", "{{ 1 / 0 }}", "{{ messages + 1 }}"]
)
def test_template_that_stumbles_ends_only_the_request(source: str) -> None:
    with pytest.raises(BadRequest, match="cannot take these messages"):
        ChatTemplate(source, TOKENS, GUARD).render([{"role": "user"}])


def test_what_it_says_is_one_short_line_without_marks() -> None:
    template = ChatTemplate("{{ raise_exception(messages[0].content) }}", TOKENS, GUARD)

    with pytest.raises(BadRequest) as refused:
        template.render([{"role": "user", "content": "a\n</s>" + "b" * 5000}])

    assert "a </s>b" in refused.value.message
    assert len(refused.value.message) < 600


@pytest.mark.parametrize("source", ["{% if %}", "{{ unclosed", "{% endfor %}", "{{ x | nothing }}"])
def test_broken_template_is_refused_at_start(source: str) -> None:
    with pytest.raises(UnsafeFormat, match="the chat template was refused"):
        ChatTemplate(source, TOKENS, GUARD)


def test_huge_template_is_refused_at_start() -> None:
    with pytest.raises(UnsafeFormat, match="characters"):
        ChatTemplate("x" * (SOURCE_CHARS_MAX + 1), TOKENS, GUARD)


def test_templates_can_say_the_date() -> None:
    rendered = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", TOKENS, GUARD).render([])

    assert re.fullmatch(r"\d{4}-\d\d-\d\d", rendered.text)
    assert abs((datetime.fromisoformat(rendered.text) - datetime.now()).days) <= 1


def test_a_long_conversation_renders_in_good_time() -> None:
    chat = [
        {"role": role, "content": "word " * 200}
        for _ in range(1000)
        for role in ("user", "assistant")
    ]

    rendered = ChatTemplate(HABITS["reasoning"], TOKENS, GUARD).render(chat)

    assert rendered.text.count("word") == 400_000
