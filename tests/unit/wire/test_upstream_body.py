"""The body for an upstream: what must change does, every other byte stays."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.pieces import Surface
from gateway.wire.requests import (
    ParsedRequest,
    parse_request,
    upstream_body,
)

USER = {"role": "user", "content": "Grüße"}  # 7 bytes of text


def parse(surface: Surface = Surface.CHAT, **fields: Any) -> ParsedRequest:
    if surface in (Surface.CHAT, Surface.MESSAGES, Surface.COUNT_TOKENS):
        fields.setdefault("messages", [USER])
    body = {"model": "m", **fields}
    return parse_request(surface, msgspec.json.encode(body))


def test_upstream_body_of_the_same_model_is_the_body_itself() -> None:
    parsed = parse(temperature=0.5)

    assert upstream_body(parsed, model="m") is parsed.members.body


def test_upstream_body_changes_the_model_and_no_other_byte() -> None:
    body = b'{ "temperature": 0.10,\n "model": "chat", "messages": [ {"role":"user"} ] }'
    parsed = parse_request(Surface.CHAT, body)

    out = upstream_body(parsed, model="llama-3")
    assert out == b'{"temperature": 0.10,"model": "llama-3","messages": [ {"role":"user"} ]}'


def test_upstream_body_takes_out_what_only_gateways_know() -> None:
    parsed = parse(
        provider={"order": []}, models=["a"], route="fallback", speculation={"off": True},
        session_id="s", usage={"include": True}, seed=1,
    )  # fmt: skip

    assert json.loads(upstream_body(parsed, model="m")).keys() == {"model", "messages", "seed"}
    assert parsed.include_usage
    kept = json.loads(upstream_body(parsed, model="m", keep=("speculation",), remove=("seed",)))
    assert kept.keys() == {"model", "messages", "speculation"}


def test_upstream_body_names_the_model_where_only_models_did() -> None:
    body = msgspec.json.encode({"models": ["m", "spare"], "messages": [USER]})

    out = upstream_body(parse_request(Surface.CHAT, body), model="m")
    assert json.loads(out) == {"model": "m", "messages": [USER]}


@pytest.mark.parametrize("surface", [Surface.RESPONSES, Surface.MESSAGES])
def test_wish_for_the_cost_stays_here(surface: Surface) -> None:
    parsed = parse(surface, usage={"include": True})

    assert "usage" not in json.loads(upstream_body(parsed, model="m"))


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"stream": True}, {"include_usage": True}),
        ({"stream": True, "stream_options": None}, {"include_usage": True}),
        ({"stream": True, "stream_options": {"a": 1}}, {"a": 1, "include_usage": True}),
        (
            {"stream": True, "stream_options": {"include_usage": False, "a": 1}},
            {"include_usage": True, "a": 1},
        ),
        ({"stream": False}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.COMPLETIONS])
def test_usage_is_asked_for_in_streams_only(
    surface: Surface, fields: dict[str, Any], options: dict[str, Any] | None
) -> None:
    parsed = parse(surface, **fields)

    assert (
        json.loads(upstream_body(parsed, model="m", ask_usage=True)).get("stream_options")
        == options
    )


def test_a_client_that_asked_already_keeps_its_bytes() -> None:
    parsed = parse(stream=True, stream_options={"include_usage": True, "x": 1})

    assert upstream_body(parsed, model="m", ask_usage=True) is parsed.members.body


@pytest.mark.parametrize(
    ("surface", "fields", "more", "name"),
    [
        (Surface.CHAT, {}, {}, "max_tokens"),
        (Surface.CHAT, {}, {"max_tokens_field": "max_completion_tokens"}, "max_completion_tokens"),
        (Surface.CHAT, {"max_completion_tokens": 5}, {}, "max_completion_tokens"),
        (Surface.CHAT, {"max_completion_tokens": None}, {}, "max_tokens"),
        (Surface.COMPLETIONS, {}, {}, "max_tokens"),
        (Surface.RESPONSES, {}, {}, "max_output_tokens"),
        (Surface.MESSAGES, {"max_tokens": 5}, {}, "max_tokens"),
    ],
)
def test_max_tokens_go_under_the_surfaces_own_name(
    surface: Surface, fields: dict[str, Any], more: dict[str, str], name: str
) -> None:
    out = json.loads(upstream_body(parse(surface, **fields), model="m", max_tokens=77, **more))

    assert out[name] == 77
    assert [
        out.get(other) for other in ("max_tokens", "max_completion_tokens") if other != name
    ].count(77) == 0


def test_embeddings_have_no_max_tokens_to_set() -> None:
    parsed = parse(Surface.EMBEDDINGS, input="x")

    assert upstream_body(parsed, model="m", max_tokens=5) is parsed.members.body


@given(
    st.dictionaries(
        st.text(max_size=6), st.none() | st.integers() | st.text(max_size=5), max_size=5
    )
)
def test_unknown_fields_pass_byte_for_byte(fields: dict[str, Any]) -> None:
    fields = {f"x-{name}": value for name, value in fields.items()}
    body = json.dumps({**fields, "model": "m", "messages": [USER]}, indent=1).encode()

    sent = json.loads(upstream_body(parse_request(Surface.CHAT, body), model="other"))
    assert sent == {**json.loads(body), "model": "other"}
