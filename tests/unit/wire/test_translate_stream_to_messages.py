"""Chat streams, however odd, as messages streams that break no rule of their grammar."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.translate.streams import MessagesFromChat
from tests.support.translating import (
    chunk,
    events_of,
    fragment,
    heard_as_messages,
    sse,
    tools,
    translated,
    usage_chunk,
)

ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")


def heard(*payloads: object, done: bool = True) -> dict[str, Any]:
    return heard_as_messages(translated(sse(*payloads, done=done), Surface.CHAT))


def text_of(message: dict[str, Any]) -> str:
    return "".join(b["text"] for b in message["content"] if b["type"] == "text")


def test_plain_text_stream() -> None:
    stream = sse(
        ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), STOP, usage_chunk(), done=True
    )
    kinds = [name for name, _ in events_of(translated(stream, Surface.CHAT))]

    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert heard_as_messages(translated(stream, Surface.CHAT)) == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "up-1",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


def test_final_usage_waits_for_the_frame_after_the_finish() -> None:
    writer = MessagesFromChat(include_usage=False)
    writer.write(piece(ROLE))
    writer.write(piece(chunk({"content": "x"}), PieceKind.GENERATED))
    after_finish = writer.write(piece(STOP, PieceKind.FINISH))

    assert b"message_delta" not in after_finish

    message = heard(
        ROLE,
        chunk({"content": "x"}),
        STOP,
        usage_chunk(
            prompt_tokens=100,
            prompt_tokens_details={"cached_tokens": 60, "cache_write_tokens": 10},
            completion_tokens=20,
            completion_tokens_details={"reasoning_tokens": 8},
            total_tokens=120,
        ),
    )

    assert message["usage"] == {
        "input_tokens": 30,
        "cache_creation_input_tokens": 10,
        "cache_read_input_tokens": 60,
        "output_tokens": 20,
        "output_tokens_details": {"thinking_tokens": 8},
    }


def piece(payload: dict[str, Any], kind: PieceKind = PieceKind.META) -> Piece:
    return Piece(kind=kind, payload=sse(payload)[6:-2])


def test_extra_members_go_into_the_final_usage() -> None:
    stream = sse(ROLE, chunk({"content": "x"}), STOP, usage_chunk(), done=True)
    message = heard_as_messages(translated(stream, Surface.CHAT, extra={"cost": "0.000123"}))

    assert message["usage"]["cost"] == "0.000123"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_block_of_its_own(name: str) -> None:
    message = heard(
        ROLE,
        chunk({name: "Hm", "content": None}),
        chunk({name: "m", "content": ""}),
        chunk({"content": "Yes"}),
        chunk({name: "Wait"}),
        chunk({"content": "No"}),
        STOP,
    )

    assert message["content"] == [
        {"type": "thinking", "thinking": "Hmm", "signature": ""},
        {"type": "text", "text": "Yes"},
        {"type": "thinking", "thinking": "Wait", "signature": ""},
        {"type": "text", "text": "No"},
    ]


def test_reasoning_said_under_both_names_is_written_once() -> None:
    message = heard(ROLE, chunk({"reasoning_content": "Hm", "reasoning": "Hm"}), STOP)

    assert message["content"][0]["thinking"] == "Hm"


def test_signatures_of_reasoning_details_are_kept() -> None:
    first = {"type": "reasoning.text", "text": "Hm", "index": 0}
    signed = {"type": "reasoning.text", "signature": "S", "index": 0}
    hidden = {"type": "reasoning.encrypted", "data": "R", "index": 1}
    message = heard(
        ROLE,
        chunk({"reasoning": "Hm", "reasoning_details": [first]}),
        chunk({"reasoning_details": [signed, hidden]}),
        chunk({"content": "Yes"}),
        STOP,
    )

    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": "S"},
        {"type": "redacted_thinking", "data": "R"},
        {"type": "text", "text": "Yes"},
    ]


def test_content_as_a_list_of_parts_is_understood() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    message = heard(
        ROLE,
        chunk({"content": [thinking]}),
        chunk({"content": [{"type": "text", "text": "Yes"}]}),
        STOP,
    )

    assert [b["type"] for b in message["content"]] == ["thinking", "text"]
    assert text_of(message) == "Yes"


def test_tool_call_is_streamed_fragment_by_fragment() -> None:
    stream = sse(
        ROLE,
        chunk({"content": "Look"}),
        tools(fragment(0, "", call_id="c1", name="weather")),
        tools(fragment(0, '{"city"')),
        tools(fragment(0, ': "Rome"}')),
        chunk(finish="tool_calls"),
        done=True,
    )
    out = translated(stream, Surface.CHAT)
    message = heard_as_messages(out)

    assert out.count(b"input_json_delta") == 2
    assert message["content"][1] == {
        "type": "tool_use",
        "id": "c1",
        "name": "weather",
        "input": {"city": "Rome"},
    }
    assert message["stop_reason"] == "tool_use"


def test_interleaved_parallel_calls_are_put_in_order() -> None:
    message = heard(
        ROLE,
        tools(
            fragment(0, '{"a"', call_id="c0", name="f"), fragment(1, '{"b"', call_id="c1", name="g")
        ),
        tools(fragment(1, ":"), fragment(0, ":")),
        chunk({"content": "meanwhile"}),
        tools(fragment(0, "1}"), fragment(2, "", call_id="c2", name="h"), fragment(1, "2}")),
        chunk(finish="tool_calls"),
    )

    assert [(b.get("id"), b.get("input")) for b in message["content"]] == [
        ("c0", {"a": 1}),
        ("c1", {"b": 2}),
        (None, None),
        ("c2", {}),
    ]
    assert text_of(message) == "meanwhile"


def test_second_call_streams_live_once_the_first_is_whole() -> None:
    writer = MessagesFromChat(include_usage=False)
    for payload in (ROLE, tools(fragment(0, "{}", call_id="c0", name="f"))):
        writer.write(piece(payload, PieceKind.GENERATED))
    out = writer.write(
        piece(tools(fragment(1, '{"b"', call_id="c1", name="g")), PieceKind.GENERATED)
    )

    assert [name for name, _ in events_of(out)] == [
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
    ]


@pytest.mark.parametrize("with_ids", [True, False])
def test_calls_without_index_are_told_apart(with_ids: bool) -> None:
    ids = ("c0", "c1") if with_ids else ("", "")
    message = heard(
        ROLE,
        tools(fragment(None, '{"a":', call_id=ids[0], name="f")),
        tools(fragment(None, "1}")),
        tools(fragment(None, '{"b":2}', call_id=ids[1], name="g")),
        chunk(finish="tool_calls"),
    )

    assert [(b["name"], b["input"]) for b in message["content"]] == [
        ("f", {"a": 1}),
        ("g", {"b": 2}),
    ]
    assert len({b["id"] for b in message["content"]}) == 2


def test_writer_tells_calls_without_index_apart_by_itself() -> None:
    writer = MessagesFromChat(include_usage=False, request_id="r")
    out = b""
    for payload in (
        ROLE,
        tools(fragment(None, '{"a":', call_id="c0", name="f"), fragment(None, "1}")),
        tools(fragment(None, '{"b":2}', call_id="c1", name="g")),
        tools(fragment(None, '{"c":3}', name="h")),
    ):
        out += writer.write(piece(payload, PieceKind.GENERATED))
    message = heard_as_messages(out + writer.finish(None))

    assert [b["input"] for b in message["content"]] == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_one_index_for_several_whole_calls_is_several_calls() -> None:
    message = heard(
        ROLE,
        tools(fragment(0, '{"a":1}', call_id="c0", name="f")),
        tools(fragment(0, '{"b":2}', call_id="c1", name="g")),
        chunk(finish="stop"),
    )

    assert [b["id"] for b in message["content"]] == ["c0", "c1"]
    assert message["stop_reason"] == "tool_use"


def test_changing_call_id_keeps_the_first() -> None:
    message = heard(
        ROLE,
        tools(fragment(0, '{"a"', call_id="c0", name="f")),
        tools(fragment(0, ":1}", call_id="c9", name="f")),
        chunk(finish="tool_calls"),
    )

    assert [(b["id"], b["input"]) for b in message["content"]] == [("c0", {"a": 1})]


def test_call_waits_for_its_name() -> None:
    message = heard(
        ROLE,
        tools(fragment(0, '{"a":', call_id="c0")),
        tools(fragment(0, "1}", name="f")),
        chunk(finish="tool_calls"),
    )

    assert [(b["name"], b["input"]) for b in message["content"]] == [("f", {"a": 1})]


def test_arguments_sent_as_an_object_are_text() -> None:
    entry = {"index": 0, "id": "c0", "function": {"name": "f", "arguments": {"a": 1}}}

    assert heard(ROLE, tools(entry), STOP)["content"][0]["input"] == {"a": 1}


def test_call_ids_are_made_fit_for_the_dialect() -> None:
    message = heard(ROLE, tools(fragment(0, "{}", call_id="functions.f:0", name="f")), STOP)

    assert message["content"][0]["id"] == "functions_2ef_3a0"


def test_refusal_is_visible_text_and_a_refusal() -> None:
    message = heard(ROLE, chunk({"refusal": "I "}), chunk({"refusal": "cannot"}), STOP)

    assert (text_of(message), message["stop_reason"]) == ("I cannot", "refusal")


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("function_call", "tool_use"),
        ("eos", "end_turn"),
    ],
)
def test_finish_reasons(finish: str, stop: str) -> None:
    assert heard(ROLE, chunk({"content": "x"}), chunk(finish=finish))["stop_reason"] == stop


def test_stop_string_met_is_named_where_the_server_says_it() -> None:
    last = chunk(finish="stop")
    last["choices"][0]["stop_reason"] = "END"
    message = heard(ROLE, chunk({"content": "x"}), last)

    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_first_of_two_finishes_stands() -> None:
    message = heard(ROLE, chunk({"content": "x"}, finish="length"), STOP, usage_chunk())

    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 5)


def test_first_frame_without_id_is_passed_over() -> None:
    filters = {"id": "", "model": "", "choices": [], "prompt_filter_results": []}
    message = heard(filters, ROLE, chunk({"content": "x"}), STOP)

    assert (message["id"], message["model"]) == ("chatcmpl-1", "up-1")


def test_names_of_ours_stand_in_where_the_upstream_has_none() -> None:
    bare = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    message = heard(bare)

    assert (message["id"], message["model"], text_of(message)) == ("req-1", "public", "x")


def test_other_choices_are_not_mixed_in() -> None:
    other = {**chunk(), "choices": [{"index": 1, "delta": {"content": "B"}}]}

    assert text_of(heard(ROLE, other, chunk({"content": "A"}), STOP)) == "A"


def test_halves_of_an_emoji_over_two_events_meet_again() -> None:
    halves = [
        sse(chunk({"content": "@"}))[6:-2].replace(b"@", half) for half in (b"\\ud83d", b"\\ude00")
    ]
    out = translated(sse(ROLE, *halves, STOP, done=True), Surface.CHAT)

    assert b'"text":"\\ud83d"' in out
    assert b'"text":"\\ude00"' in out


def test_answer_without_content_is_still_a_message() -> None:
    message = heard(ROLE, STOP, usage_chunk())

    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


def test_literal_done_inside_text_is_text() -> None:
    assert text_of(heard(ROLE, chunk({"content": "data: [DONE]\n\n"}), STOP)) == "data: [DONE]\n\n"
