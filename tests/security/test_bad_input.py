"""Bad input: a clear error in the caller's dialect, nothing sent upstream, nothing charged."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.guarded_world import (
    GOOD,
    GuardedWorld,
    checked_error,
    dialect_of,
    guarded_world,
)

pytestmark = pytest.mark.e2e

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BOTH = (CHAT, MESSAGES)
MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedWorld]:
    with guarded_world(tmp_path_factory.mktemp("bad")) as found:
        # The gateway is whole to begin with: what follows is refused for what it is.
        found.serve_all()
        yield found


@dataclass(frozen=True, slots=True)
class Bad:
    """One wrong thing, and what the caller is told of it."""

    name: str
    says: str  # a pattern in the message
    raw: bytes | None = None  # the whole body
    change: dict[str, Any] = field(default_factory=dict)  # to the good body
    drop: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 400
    param: str | None = None
    paths: tuple[str, ...] = BOTH

    def body(self, path: str) -> bytes:
        if self.raw is not None:
            return self.raw
        good = {name: value for name, value in GOOD[path].items() if name not in self.drop}
        return json.dumps({**good, **self.change}).encode()


def with_member(text: str) -> bytes:
    """A good chat body that both dialects take, with one more member written as is."""
    head = json.dumps({"model": "gpt", "messages": [], "max_tokens": 8})[:-1]
    return f"{head},{text}}}".encode()


BODIES = (
    Bad("empty", "JSON", b""),
    Bad("spaces", "JSON", b"   \n"),
    Bad("not JSON", "JSON", b"model=gpt&messages=hi"),
    Bad("cut short", "JSON", b'{"model": "gpt", "messages": ['),
    Bad("list", "object", b"[1, 2]"),
    Bad("text", "object", b'"hello"'),
    Bad("null", "object", b"null"),
    Bad("more behind it", "JSON", b'{"model": "gpt"} {"model": "claude"}'),
    Bad("NUL behind it", "JSON", b'{"model": "gpt"}\x00'),
    Bad("single quotes", "JSON", b"{'model': 'gpt'}"),
    Bad("comment", "JSON", b'{"model": "gpt" /* x */}'),
    Bad("comma at the end", "JSON", b'{"model": "gpt",}'),
    Bad("model twice", "model.*twice|duplicate", with_member('"model": "claude"')),
    Bad("messages twice", "twice|duplicate", with_member('"messages": [1]')),
    Bad("twice by escape", "twice|duplicate", with_member('"\\u006dodel": "claude"')),
    Bad("unknown field twice", "twice|duplicate", with_member('"x": 1, "x": 2')),
    Bad("NaN", "JSON", with_member('"temperature": NaN')),
    Bad("Infinity", "JSON", with_member('"temperature": Infinity')),
    Bad("minus Infinity", "JSON", with_member('"x": [-Infinity]')),
    Bad("hex number", "JSON", with_member('"x": 0x10')),
    Bad("leading zero", "JSON", with_member('"x": 01')),
    Bad("not UTF-8", "UTF-8", with_member('"x": "?"').replace(b"?", b"\xff\xfe")),
    Bad("cut UTF-8", "UTF-8", with_member('"x": "?"').replace(b"?", b"\xe2\x82")),
    Bad("overlong UTF-8", "UTF-8", with_member('"x": "?"').replace(b"?", b"\xc0\xaf")),
    Bad("surrogate in UTF-8", "UTF-8", with_member('"x": "?"').replace(b"?", b"\xed\xa0\x80")),
    Bad("UTF-16", "JSON|UTF-8", json.dumps(GOOD[CHAT]).encode("utf-16")),
    Bad("byte order mark", "JSON", b"\xef\xbb\xbf" + json.dumps(GOOD[CHAT]).encode()),
    Bad("raw control character", "JSON", with_member('"x": "a\x01b"')),
    Bad("lone surrogate", "surrogate|JSON", with_member('"x": "\\ud800"')),
    Bad("deep lists", "deep|nest|values", with_member('"x": ' + "[" * 100_000 + "]" * 100_000)),
    Bad("deep objects", "deep|nest", with_member('"x": ' + '{"a":' * 9_000 + "1" + "}" * 9_000)),
    Bad("65 deep", "deep|nest", with_member('"x": ' + "[" * 65 + "]" * 65)),
    Bad("deep and cut", "deep|nest|JSON", b'{"x": ' + b"[" * 100_000),
    Bad("very many values", "values|nodes|many", with_member(f'"x": [{"1," * 150_000}1]')),
    Bad("very many members", "members|many", b"{%b}" % b",".join(
        b'"k%d":1' % idx for idx in range(2_000))),
    Bad("too large", "10485760|larger|bytes", b'{"x": "%b"}' % (b"a" * (10 * MEBIBYTE)),
        status=413),
)  # fmt: skip

FIELDS = (
    Bad("no model", "model.*missing", drop=("model",), param="model"),
    Bad("model is a number", "model|str", change={"model": 7}, param="model"),
    Bad("model is null", "model", change={"model": None}, param="model"),
    Bad("unknown model", "does not exist.*known: claude, gpt", change={"model": "gpt-99"},
        status=404, param="model"),
    Bad("empty model", "model.*length >= 1", change={"model": ""}, param="model"),
    Bad("endless model", "model.*length <= 256", change={"model": "g" * 100_000}, param="model"),
    Bad("line break in model", "model", change={"model": "gpt\r\nx-a: b"}, status=404),
    Bad("unknown suffix", "does not exist", change={"model": "gpt:fastest"}, status=404),
    Bad("endpoint of nobody", "does not exist", change={"model": "nobody/gpt"}, status=404),
    Bad("no messages", "messages", drop=("messages",), param="messages"),
    Bad("messages are text", "messages", change={"messages": "hi"}, param="messages"),
    Bad("message is text", "messages", change={"messages": ["hi"]}),
    Bad("stream is text", "stream", change={"stream": "yes"}, param="stream"),
    Bad("max_tokens is text", "max_tokens", change={"max_tokens": "many"}, param="max_tokens"),
    Bad("max_tokens has a fraction", "max_tokens", change={"max_tokens": 1.5}, param="max_tokens"),
    Bad("max_tokens is negative", "max_tokens", change={"max_tokens": -1}, param="max_tokens"),
    Bad("max_tokens is no 64-bit number", "max_tokens|JSON", change={"max_tokens": 10**30}),
    Bad("models is text", "models", change={"models": "gpt"}, param="models"),
    Bad("too many models", "models", change={"models": ["gpt"] * 1_000}, param="models"),
    Bad("provider is text", "provider", change={"provider": "openai"}, param="provider"),
    Bad("provider sorts by colour", "provider.sort", change={"provider": {"sort": "colour"}}),
    Bad("provider names an address", "base_url",
        change={"provider": {"base_url": "http://127.0.0.1:1/"}}),
    Bad("provider has headers", "headers", change={"provider": {"headers": {"a": "b"}}}),
    Bad("n is zero", r"\bn\b", change={"n": 0}, paths=(CHAT,)),
    Bad("n is huge", r"\bn\b", change={"n": 10**6}, paths=(CHAT,)),
    Bad("stream_options is a list", "stream_options", change={"stream_options": [1]},
        paths=(CHAT,)),
)  # fmt: skip

HEADERS = (
    Bad("compressed", "compressed|Content-Encoding", gzip.compress(json.dumps(GOOD[CHAT]).encode()),
        headers={"content-encoding": "gzip"}),
    Bad("said to be compressed", "compressed|Content-Encoding",
        headers={"content-encoding": "br"}),
    Bad("two keys", "two different API keys", headers={"x-api-key": "lr-other"}),
    Bad("lane", "lane", headers={"x-looprouter-lane": "express"}),
    Bad("tags", "tag", headers={"x-looprouter-tags": "a b\tc;d"}),
    Bad("deadline", "deadline", headers={"x-looprouter-deadline": "soon"}),
    Bad("idempotency key with spaces", "Idempotency-Key", headers={"idempotency-key": "a b"}),
    Bad("endless idempotency key", "Idempotency-Key", headers={"idempotency-key": "a" * 300}),
    Bad("damaged key", "key is damaged", headers={"authorization": "Bearer lr-nonsense"},
        status=401),
    Bad("basic authorisation", "Authorization", headers={"authorization": "Basic Zm9vOmJhcg=="},
        status=401),
    Bad("empty key", "API key|Authorization", headers={"authorization": "Bearer"}, status=401),
)  # fmt: skip


def named(bads: tuple[Bad, ...]) -> list[Any]:
    return [
        pytest.param(bad, path, id=f"{bad.name}-{path.rsplit('/', 1)[1]}")
        for bad in bads
        for path in bad.paths
    ]


@pytest.mark.parametrize(("bad", "path"), [*named(BODIES), *named(FIELDS), *named(HEADERS)])
def test_bad_input_is_refused_clearly_and_costs_nothing(
    world: GuardedWorld, bad: Bad, path: str
) -> None:
    with world.untouched():
        answer = world.post(path, bad.body(path), **bad.headers)

    error = checked_error(answer, dialect_of(path), bad.status)
    assert re.search(bad.says, error["message"], re.IGNORECASE), error["message"]
    if bad.param is not None and path == CHAT:
        assert error["param"] == bad.param
    # What was wrong is shown in part at most.
    assert len(answer.content) < 4_096


@pytest.mark.parametrize("path", sorted(GOOD))
def test_every_surface_refuses_a_body_that_is_no_json(world: GuardedWorld, path: str) -> None:
    with world.untouched():
        answer = world.post(path, b"{nothing")

    checked_error(answer, dialect_of(path), 400)


@pytest.mark.parametrize("path", BOTH)
def test_no_eligible_endpoint_names_the_rule_that_excluded_each(
    world: GuardedWorld, path: str
) -> None:
    body = {**GOOD[path], "provider": {"only": ["nobody"]}, "models": ["gpt", "claude"]}
    with world.untouched():
        answer = world.post(path, body)

    error = checked_error(answer, dialect_of(path), 503)
    assert "open-sim/gpt-sim (only: " in error["message"]
    assert "anth-sim/claude-sim (only: " in error["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_a_prompt_longer_than_every_window_says_so(world: GuardedWorld) -> None:
    body = {**GOOD[CHAT], "messages": [{"role": "user", "content": "word " * 140_000}]}
    with world.untouched():
        answer = world.post(CHAT, body)

    error = checked_error(answer, dialect_of(CHAT), 400)
    assert error["code"] == "context_length_exceeded"
    assert "context: the prompt is about" in error["message"]


def test_whatever_went_wrong_before_the_next_good_request_is_served(world: GuardedWorld) -> None:
    world.serve_all()
