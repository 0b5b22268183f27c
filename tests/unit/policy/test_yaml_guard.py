"""Hostile YAML, and the units people write."""

from __future__ import annotations

from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import PolicyError
from gateway.policy.load import load_policy
from gateway.policy.units import nanos_of, parse_duration, picos_of

GOOD = """\
version: 1
providers:
  a: {base_url: "https://a.example/v1", key_env: A_KEY}
models:
  m:
    - {provider: a, model: x, price: {input: 1, output: 2}}
routes:
  - {name: all, prefer: {by: fastest}}
"""


BILLION_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is empty"),
        (b"- 1", "must be a mapping"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"version: 1\nversion: 1", "version: stands here twice (line 2); keep one"),
        (b"a: {b: 1, 'b': 2}", "a.b: stands here twice"),
        (b"a: [1", "not valid YAML"),
        (b"a: \t- b: c: d", "not valid YAML"),
        (b"version: 1\n---\nversion: 1", "a policy is one document"),
        (b"x: " + b"[" * 40 + b"]" * 40, "nested deeper than 32"),
        (b"x: " + b"[" * 100_000, "nest"),
        (b"x: 1\n" * 100_000, "at most 262,144 are read"),
        (b"x: [" + b"1," * 60_000 + b"]", "more than 50,000 values"),
        (BILLION_LAUGHS.encode(), "aliases expand to more than 50,000 values"),
        (b"x: &x [*x]", "contains itself"),
        (b"x: &x 1\ny: [" + b"*x," * 201 + b"]", "more than 200 aliases"),
        (b"? [a]\n: 1", "a key must be plain text"),
        (b"x: !!python/object/apply:os.system [ls]", "not valid YAML"),
        (b"x: *nobody", "not valid YAML"),
        (b"x: 2024-99-99", "a value YAML cannot read"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_refused_with_a_plain_sentence(text: bytes, says: str) -> None:
    with pytest.raises(PolicyError, match=None) as caught:
        load_policy(text, environ=None)

    assert says in str(caught.value)


def test_anchors_and_merges_work_within_their_bounds() -> None:
    text = GOOD.replace("{provider: a, model: x,", "&e {provider: a, model: x,")
    text += "# the same endpoint, but for the window\n"
    text = text.replace("routes:", "  n:\n    - {<<: *e, model: y}\nroutes:")

    assert load_policy(text.encode(), environ=None).models["n"] == ("a/y",)


@given(st.binary(max_size=300))
def test_any_bytes_load_or_raise_a_policy_error(text: bytes) -> None:
    with suppress(PolicyError):
        load_policy(text, environ=None)


WORDS = st.sampled_from(
    ["a", "m", "x", "version", "providers", "models", "routes", "prefer", "by", "price", "input"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_any_shape_of_values_loads_or_raises_a_policy_error(tree: dict) -> None:
    with suppress(PolicyError):
        load_policy(yaml.safe_dump({"version": 1, **tree}).encode(), environ=None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("150ms", 0.15), ("3s", 3), ("1.5s", 1.5), ("10m", 600), ("24h", 86_400), ("7d", 604_800)],
)
def test_durations_are_read_as_written(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "s", "-3s", "3 s", "3S", "1e3s", "32d", "99999999999h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_dollars_become_integers_exactly() -> None:
    assert picos_of(0.59) == 590_000
    assert picos_of(0.0028) == 2_800
    assert picos_of(1e-7) == 1
    assert nanos_of(2.1) == 2_100_000_000


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (GOOD.replace("by: fastest", "by: best"), [("routes[0].prefer.by", 8, 26)]),
        (GOOD.replace("model: x,", "modell: x,"), [("models.m[0].modell", 6, 21),
         ("models.m[0]", 6, 7)]),
        ("version: 1\nmodels: 3\n", [("models", 2, 1)]),
        (GOOD + "version: 1\n", [("version", 9, 1)]),
        (GOOD + "  broken: [1", [("", 9, 3)]),
        (GOOD + "x: &x [*x]\n", [("", 9, 4)]),
        ("", [("", None, None)]),
    ],
)  # fmt: skip
def test_every_problem_says_line_and_column(
    text: str, places: list[tuple[str, int | None, int | None]]
) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(text.encode(), environ=None)

    assert [(at.path, at.line, at.column) for at in caught.value.places] == places
    assert all(at.message and "(line" not in at.message for at in caught.value.places)
