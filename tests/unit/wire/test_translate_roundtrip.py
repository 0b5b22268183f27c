"""Whatever is said survives the way there and back, and a stream says what a plain answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from gateway.wire.translate import translate_answer, translate_request
from tests.support import sdk_types
from tests.support.translating import (
    ALL,
    PIXEL,
    fragment,
    heard_as_chat,
    heard_as_messages,
    sse,
    translated,
)

# Longer than `make check` may take; `make test` runs it.
pytestmark = pytest.mark.slow

Json = dict[str, Any]

texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n{}[]:,😀'), min_size=1
)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
inputs = st.dictionaries(texts, values, max_size=3)
image_urls = st.sampled_from([f"data:image/png;base64,{PIXEL}", "https://a.example/b.webp"])


@st.composite
def chat_talks(draw: st.DrawFn) -> list[Json]:
    """A conversation as chat messages: calls are answered at once, as the dialects demand."""
    parts = st.lists(
        st.builds(lambda t: {"type": "text", "text": t}, texts)
        | st.builds(lambda u: {"type": "image_url", "image_url": {"url": u}}, image_urls),
        min_size=1,
        max_size=3,
    )
    talk: list[Json] = [
        {"role": role, "content": content}
        for role, content in draw(
            st.lists(st.tuples(st.sampled_from(["system", "developer"]), texts), max_size=2)
        )
    ]
    talk.append({"role": "user", "content": draw(texts | parts)})
    for turn in range(draw(st.integers(0, 3))):
        reply: Json = {"role": "assistant", "content": draw(st.none() | texts)}
        arguments = draw(st.lists(inputs, max_size=3, min_size=0 if reply["content"] else 1))
        if arguments:
            reply["tool_calls"] = [
                {
                    "id": f"call_{turn}_{i}",
                    "type": "function",
                    "function": {"name": draw(names), "arguments": json.dumps(value)},
                }
                for i, value in enumerate(arguments)
            ]
        talk.append(reply)
        for call in reply.get("tool_calls", []):
            talk.append({"role": "tool", "tool_call_id": call["id"], "content": draw(texts)})
        if draw(st.booleans()):
            talk.append({"role": "user", "content": draw(texts | parts)})
    return talk


def essence(talk: list[Json]) -> list[tuple[Any, ...]]:
    """What chat messages say, whatever way of saying it was chosen."""
    said: list[tuple[Any, ...]] = []
    for message in talk:
        role = "system" if message["role"] == "developer" else message["role"]
        content = message.get("content") or []
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for part in content:
            said.append((role, part.get("text") or part["image_url"]["url"]))
        for call in message.get("tool_calls", []):
            said.append(("call", call["id"], *call["function"].values()))
        if role == "tool":
            said[-1] += (message["tool_call_id"],)
    return said


def over(body: Json, surface: Surface, to: Surface) -> Json:
    parsed = parse_request(surface, json.dumps(body).encode())
    out = translate_request(parsed, to, model="m", max_tokens_default=64, target=ALL)

    assert out.dropped == ()
    return json.loads(out.body)  # type: ignore[no-any-return]


@given(chat_talks())
def test_chat_conversation_survives_messages_and_back(talk: list[Json]) -> None:
    there = over({"model": "p", "messages": talk}, Surface.CHAT, Surface.MESSAGES)
    back = over(there, Surface.MESSAGES, Surface.CHAT)

    sdk_types.messages_request(json.dumps(there).encode())
    assert essence(back["messages"]) == essence(talk)


@st.composite
def messages_talks(draw: st.DrawFn) -> Json:
    """A conversation of the messages dialect, with all that chat can carry as an extension."""
    text = st.builds(lambda t: {"type": "text", "text": t}, texts)
    image = st.builds(
        lambda url: {"type": "image", "source": url},
        st.sampled_from(
            [
                {"type": "base64", "media_type": "image/gif", "data": PIXEL},
                {"type": "url", "url": "https://a.example/b.png"},
            ]
        ),
    )
    thinking = st.builds(
        lambda t, s: {"type": "thinking", "thinking": t, "signature": s}, texts, names
    ) | st.builds(lambda d: {"type": "redacted_thinking", "data": d}, names)
    turns: list[Json] = [{"role": "user", "content": draw(st.lists(text | image, min_size=1))}]
    for turn in range(draw(st.integers(0, 3))):
        uses = [
            {"type": "tool_use", "id": f"t_{turn}_{i}", "name": draw(names), "input": value}
            for i, value in enumerate(draw(st.lists(inputs, max_size=3)))
        ]
        said = [*draw(st.lists(thinking, max_size=2)), draw(text)]
        turns.append({"role": "assistant", "content": said + uses})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": use["id"],
                "content": draw(st.lists(text | image, min_size=1, max_size=2)),
                **({"is_error": True} if draw(st.booleans()) else {}),
            }
            for use in uses
        ]
        rest = draw(st.lists(text | image, min_size=0 if results else 1, max_size=2))
        turns.append({"role": "user", "content": results + rest})
    body: Json = {"model": "p", "max_tokens": 64, "messages": turns}
    if draw(st.booleans()):
        body["system"] = draw(st.lists(text, min_size=2, max_size=3))
    return body


def unfolded(content: Any) -> Any:
    """A string is shorthand for one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {**block, "content": unfolded(block["content"])} if "content" in block else block
        for block in content
    ]


@given(messages_talks())
def test_messages_conversation_survives_chat_and_back(body: Json) -> None:
    there = over(body, Surface.MESSAGES, Surface.CHAT)
    back = over(there, Surface.CHAT, Surface.MESSAGES)

    assert back.get("system") == body.get("system")
    assert [(t["role"], unfolded(t["content"])) for t in back["messages"]] == [
        (t["role"], unfolded(t["content"])) for t in body["messages"]
    ]


# --- a stream says what the plain answer says ----------------------------------------------------


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in at most four pieces, none empty."""
    places = sorted(draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=3)))
    return [t for t in map(text.__getitem__, map(slice, [0, *places], [*places, None])) if t]


@st.composite
def chat_answers(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A completion, and the deltas of a stream that says the same, tool fragments interleaved."""
    thought, said = draw(st.just("") | texts), draw(st.just("") | texts)
    arguments = [json.dumps(value) for value in draw(st.lists(inputs, max_size=3))]
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": draw(names), "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    message: Json = {"role": "assistant", "content": said or None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in cut(draw, thought)]
    deltas += [{"content": piece} for piece in cut(draw, said)]
    queues = [
        [fragment(i, "", call_id=call["id"], name=call["function"]["name"])]
        + [fragment(i, piece) for piece in cut(draw, call["function"]["arguments"])]
        for i, call in enumerate(calls)
    ]
    deltas += [{"tool_calls": [queue.pop(0)]} for queue in queues]
    while any(queues):
        ready = [queue for queue in queues if queue]
        deltas.append({"tool_calls": [draw(st.sampled_from(ready)).pop(0)]})
    return message, deltas


@given(chat_answers(), st.integers(0, 40), st.sampled_from(["stop", "length"]))
def test_chat_stream_becomes_what_the_plain_answer_becomes(
    answer: tuple[Json, list[Json]], split: int, finish: str
) -> None:
    message, deltas = answer
    usage = {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}
    head = {"id": "c-1", "created": 5, "model": "up-1"}
    plain = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({**head, "choices": [], "usage": usage})
    expected = translate_answer(
        json.dumps(plain).encode(), Surface.CHAT, Surface.MESSAGES, model="p"
    )
    sdk_types.messages_answer(expected)

    assert json.loads(expected) == heard_as_messages(
        translated(sse(*chunks, done=True), Surface.CHAT, split=split)
    )


@st.composite
def message_contents(draw: st.DrawFn) -> list[tuple[Json, list[Json]]]:
    """Blocks of a message, each with the deltas that build it."""
    blocks = []
    for place in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use"]))
        if kind == "text":
            text = draw(texts)
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(draw, text)]
            blocks.append(({"type": kind, "text": text}, deltas))
        elif kind == "thinking":
            text, mark = draw(texts), draw(names)
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(draw, text)]
            deltas.append({"type": "signature_delta", "signature": mark})
            blocks.append(({"type": kind, "thinking": text, "signature": mark}, deltas))
        elif kind == "redacted_thinking":
            blocks.append(({"type": kind, "data": draw(names)}, []))
        else:
            value = draw(inputs)
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in cut(draw, json.dumps(value) if value else "")
            ]
            use = {"type": kind, "id": f"t{place}", "name": draw(names), "input": value}
            blocks.append((use, deltas))
    return blocks


EMPTY: Json = {"text": "", "thinking": "", "signature": "", "input": {}}


def stream_events(blocks: list[tuple[Json, list[Json]]], message: Json) -> list[Json]:
    start = {**message, "content": [], "stop_reason": None, "usage": {"input_tokens": 8}}
    start["usage"]["output_tokens"] = 1
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, (block, deltas) in enumerate(blocks):
        begun = {name: EMPTY.get(name, value) for name, value in block.items()}
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 5}})
    return [*events, {"type": "message_stop"}]


@given(message_contents(), st.integers(0, 40), st.sampled_from(["end_turn", "max_tokens"]))
def test_messages_stream_becomes_what_the_plain_answer_becomes(
    blocks: list[tuple[Json, list[Json]]], split: int, stop: str
) -> None:
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [block for block, _ in blocks],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 8, "output_tokens": 5},
    }
    events = sse(*stream_events(blocks, message), event_names=True)
    heard = heard_as_chat(translated(events, Surface.MESSAGES, split=split))
    plain = json.loads(
        translate_answer(
            json.dumps(message).encode(), Surface.MESSAGES, Surface.CHAT, model="p", created=7
        )
    )
    (choice,) = plain["choices"]
    said = choice["message"]

    assert heard["message"]["content"] == (said["content"] or "")
    assert heard["message"].get("reasoning_content") == said.get("reasoning_content")
    assert heard["message"].get("reasoning_details", []) == said.get("reasoning_details", [])
    assert [(c["id"], c["name"], c["arguments"]) for c in heard["message"]["tool_calls"]] == [
        (c["id"], c["function"]["name"], c["function"]["arguments"])
        for c in said.get("tool_calls", [])
    ]
    assert heard["finish"] == choice["finish_reason"]
    assert heard["usage"] == plain["usage"]
    assert (heard["id"], heard["model"], heard["created"]) == ("msg_1", "claude-x", 7)
