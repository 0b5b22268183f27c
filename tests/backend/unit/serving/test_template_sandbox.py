"""Hostile chat templates: nothing is reached, nothing is changed, and everything ends."""

from __future__ import annotations

import copy
import json
import tracemalloc

import pytest

from backend.errors import BadRequest, UnsafeFormat
from backend.serving import template_budget
from backend.serving.chat_template import ChatTemplate
from backend.serving.control_guard import ControlGuard

MESSAGES = [{"role": "user", "content": "hi"}]
BYTES_MAX = 120_000_000


def render(source: str) -> str:
    return ChatTemplate(source, {}, ControlGuard([])).render(MESSAGES).text


def grown(expression: str, start: str = "'a'", times: int = 60) -> str:
    """Puts `expression` of ns.x into ns.x, many times over."""
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for i in range({times}) %}}"
        f"{{% set ns.x = {expression} %}}{{% endfor %}}{{{{ ns.x }}}}"
    )


def repeated(statement: str) -> str:
    return f"{{% for i in range(100000) %}}{statement}{{% endfor %}}"


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "RENDER_S_MAX", 0.3)
    monkeypatch.setattr(template_budget, "ELEMENTS_MAX", 5_000)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ messages['__class__'] }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ range.__class__ }}",
        "{{ self._TemplateReference__context }}",
        "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
        "{% macro f() %}{% endmacro %}{{ f._environment }}",
        "{{ (1).real }}{{ (1.5).hex }}{{ none.__class__ }}{{ true.numerator }}",
        "{{ 'x'.encode }}{{ 'x'.__len__ }}{{ 'x'.translate }}",
    ],
)
def test_attributes_that_are_not_listed_are_not_there(source: str) -> None:
    assert render(source) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '{0[role]}'.format(messages[0]) }}",
        "{{ '%s' % messages }}",
        "{{ dict.fromkeys([1]) }}",
        "{{ [messages] | map('attr', '__class__') | list }}",
        "{{ 'x'() }}",
        "{% set n = namespace(unsafe_callable=true) %}{{ n() }}",
        "{{ lipsum() }}",
        "{{ strftime_now('%Y' * 1000) }}",
    ],
)
def test_ways_out_of_the_sandbox_fail(source: str) -> None:
    with pytest.raises(BadRequest):
        render(source)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{% include '/etc/passwd' %}", "include"),
        ("{% import '/etc/passwd' as x %}", "import"),
        ("{% from '/etc/passwd' import x %}", "import"),
        ("{% extends '/etc/passwd' %}", "extends"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape"),
        ("{{ messages | attr('__class__') }}", "attr"),
        ("{{ 'a' | center(10000000000) }}", "center"),
        ("{% if false %}{{ 'a' | pprint }}{% endif %}", "pprint"),
        ("{% filter wordwrap(1) %}a{% endfilter %}", "wordwrap"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
    ],
)
def test_what_chat_templates_never_need_is_refused_at_start(source: str, named: str) -> None:
    with pytest.raises(UnsafeFormat, match=named):
        ChatTemplate(source, {}, ControlGuard([]))


@pytest.mark.parametrize(
    "statement",
    [
        "messages.append(1)",
        "messages.clear()",
        "messages[0].pop('role')",
        "messages[0].update({'role': 'x'})",
        "messages[0].setdefault('x', 1)",
        "messages.sort()",
    ],
)
def test_nothing_can_be_changed(statement: str) -> None:
    before = copy.deepcopy(MESSAGES)

    with pytest.raises(BadRequest, match="unsafe"):
        render(f"{{% set _ = {statement} %}}")

    assert before == MESSAGES


ENDLESS = {
    "nested loops": repeated(repeated(repeated(""))),
    "recursive macro": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "long searches": "{% set s = 'x' * 3000000 %}" + repeated("{% if 'y' in s %}{% endif %}"),
    "sorting": repeated("{% set x = range(2000) | sort %}"),
    "lazy filters": repeated("{% if 'q' in range(2000) | map('string') %}{% endif %}"),
    "comparisons": "{% set a = range(2000) | list %}" + repeated("{% set x = a == a + [] %}"),
    "copies": "{% set s = 'x' * 3000000 %}" + repeated("{% set x = s[1:] %}"),
    "upper": "{% set s = 'x' * 3000000 %}" + repeated("{% set x = s.upper() %}"),
    "huge range": "{{ range(1000000000) | list }}",
}

SWELLING = {
    "~": grown("ns.x ~ ns.x"),
    "+": grown("ns.x + ns.x"),
    "list +": grown("ns.x + ns.x", "['a']"),
    "block": "{% set ns = namespace(x='a') %}{% for i in range(60) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "macro": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}" + grown("d(ns.x)"),
    "replace": grown("ns.x.replace('a', 'aaaaaaaa')"),
    "replace filter": grown("ns.x | replace('a', 'aaaaaaaa')"),
    "replace nothing": grown("ns.x.replace('', 'aaaaaaaa')"),
    "join": grown("ns.x.join(['a'] * 50)"),
    "join filter": grown("['a', 'b', 'c'] | join(ns.x)"),
    "format": grown("'{0}{0}'.format(ns.x)"),
    "times": "{{ 'a' * 10000000000 }}",
    "times left": "{{ 10000000000 * 'a' }}",
    "list times": "{{ [0] * 10000000000 }}",
    "width": "{{ '{:1000000000}'.format(1) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": grown("ns.x * ns.x", "10"),
    "indent": "{{ 'a' | indent(10000000000, true) }}",
    "json indent": "{{ [1] | tojson(indent=1000000000) }}",
    "json separators": "{{ [1, 2] | tojson(separators=('x' * 100000, ':')) }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "sum of lists": "{{ [[1], [2]] | sum }}",
    "output": repeated("{{ 'x' * 1000 }}"),
    "template text": repeated("x" * 2000),
    "nested lists": grown("[ns.x, ns.x]"),
    "nested tuples": grown("(ns.x, ns.x)"),
    "nested mappings": grown("{'a': ns.x, 'b': ns.x}"),
    "nested dict()": grown("dict(a=ns.x, b=ns.x)"),
    "nested times": grown("[ns.x] * 2"),
    "nested namespaces": grown("namespace(a=ns.x, b=ns.x)"),
    "namespace in itself": "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}",
    "keyword arguments": "{% set ns = namespace(x='a') %}"
    "{% macro f() %}{% set ns.x = kwargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ f(a=ns.x, b=ns.x) }}{% endfor %}{{ ns.x }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_never_ends_is_ended(name: str) -> None:
    with pytest.raises(BadRequest, match=r"cannot take|too many|too much|longer|recursion"):
        render(ENDLESS[name])


@pytest.mark.parametrize("name", SWELLING)
def test_a_template_that_wants_all_memory_gets_little(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest) as refused:
            render(SWELLING[name])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < BYTES_MAX
    assert "MemoryError" not in refused.value.message


def test_constants_are_not_computed_while_compiling() -> None:
    """A template that is only loaded has cost nothing yet."""
    ChatTemplate(SWELLING["times"], {}, ControlGuard([]))
    ChatTemplate("{{ 'a' | indent(10000000000, true) }}", {}, ControlGuard([]))


def test_a_large_request_gets_a_larger_budget() -> None:
    text = "x" * 5_000_000
    template = ChatTemplate("{{ messages[0].content }}" * 3, {}, ControlGuard([]))

    rendered = template.render([{"role": "user", "content": text}])

    assert len(rendered.text) == 3 * len(text)


def test_guard_survives_what_templates_do_to_json() -> None:
    guard = ControlGuard(["</s>"])
    template = ChatTemplate("{{ messages | tojson(ensure_ascii=true) }}", {}, guard)

    rendered = template.render([{"role": "é</s>"}])

    assert [piece for piece, is_control in guard.split(rendered) if is_control] == []
    assert json.loads(rendered.text.replace(rendered.mark, "")) == [{"role": "é</s>"}]
    assert "\\u00e9" in rendered.text
