"""Messages streams as chat streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.translate import stream_to_chat
from gateway.wire.translate.streams import ChatFromMessages
from tests.support.translating import events_of, heard_as_chat, sse, translated

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 9, "cache_read_input_tokens": 4,
                  "cache_creation_input_tokens": 2, "output_tokens": 1},
    },
}  # fmt: skip
STOP = {"type": "message_stop"}
PING = {"type": "ping"}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **said: Any) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": f"{kind}_delta", **said},
    }


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None, **more},
        "usage": {"output_tokens": 7},
    }


TEXT = (
    begin(0, type="text", text=""),
    delta(0, "text", text="Hel"),
    delta(0, "text", text="lo"),
    end(0),
)


def stream(*events: dict[str, Any]) -> bytes:
    return sse(START, *events, STOP, event_names=True)


def heard(*events: dict[str, Any], include_usage: bool = True) -> dict[str, Any]:
    out = translated(stream(*events), Surface.MESSAGES, include_usage=include_usage)
    return heard_as_chat(out, include_usage=include_usage)


def test_plain_text_stream() -> None:
    answer = heard(PING, *TEXT, ended("end_turn"))

    assert (answer["id"], answer["model"], answer["created"]) == ("msg_1", "claude-x", 7)
    assert (answer["message"]["content"], answer["finish"]) == ("Hello", "stop")
    assert answer["usage"] == {
        "prompt_tokens": 15,
        "completion_tokens": 7,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_usage_is_told_only_if_asked_for() -> None:
    assert heard(*TEXT, ended("end_turn"), include_usage=False)["usage"] is None


def test_unknown_usage_is_not_told_as_zero() -> None:
    start = {**START, "message": {**START["message"], "usage": None}}
    ending = {**ended("end_turn"), "usage": None}
    out = translated(sse(start, *TEXT, ending, STOP, event_names=True), Surface.MESSAGES)

    assert b'"usage":{' not in out
    assert heard_as_chat(out, has_usage=False)["usage"] is None


def test_extra_members_go_into_the_usage_frame() -> None:
    out = translated(stream(*TEXT, ended("end_turn")), Surface.MESSAGES, extra={"cost": "0.000123"})

    assert heard_as_chat(out)["usage"]["cost"] == "0.000123"


def test_thinking_is_reasoning_content_and_its_signature_is_kept() -> None:
    answer = heard(
        begin(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking", thinking="H"),
        delta(0, "thinking", thinking="m"),
        delta(0, "signature", signature="S"),
        end(0),
        begin(1, type="redacted_thinking", data="R"),
        end(1),
        begin(2, type="text", text=""),
        delta(2, "text", text="Yes"),
        end(2),
        ended("end_turn"),
    )

    assert answer["message"]["reasoning_content"] == "Hm"
    assert answer["message"]["content"] == "Yes"
    assert answer["message"]["reasoning_details"] == [
        {
            "type": "reasoning.text",
            "text": "Hm",
            "signature": "S",
            "format": "anthropic-claude-v1",
            "index": 0,
        },
        {
            "type": "reasoning.encrypted",
            "data": "R",
            "format": "anthropic-claude-v1",
            "index": 1,
        },
    ]


def test_tool_calls_are_counted_from_zero_whatever_their_block() -> None:
    answer = heard(
        *TEXT,
        begin(1, type="tool_use", id="t1", name="f", input={}),
        delta(1, "input_json", partial_json=""),
        delta(1, "input_json", partial_json='{"a"'),
        delta(1, "input_json", partial_json=":1}"),
        end(1),
        begin(2, type="tool_use", id="t2", name="g", input={}),
        end(2),
        begin(3, type="tool_use", id="t3", name="h", input={"z": 1}),
        end(3),
        ended("tool_use"),
    )

    assert answer["message"]["tool_calls"] == [
        {"id": "t1", "name": "f", "arguments": '{"a":1}'},
        {"id": "t2", "name": "g", "arguments": "{}"},
        {"id": "t3", "name": "h", "arguments": '{"z": 1}'},
    ]
    assert answer["finish"] == "tool_calls"


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "stop"),
        ("refusal", "content_filter"),
        ("some_new_reason", "stop"),
    ],
)
def test_stop_reasons(stop: str, finish: str) -> None:
    assert heard(*TEXT, ended(stop))["finish"] == finish


def test_stop_sequence_met_is_named() -> None:
    answer = heard(*TEXT, ended("stop_sequence", stop_sequence="END"))

    assert (answer["finish"], answer["stop"]) == ("stop", "END")


def test_explanation_of_a_refusal_is_said() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "Not this"}
    answer = heard(*TEXT, ended("refusal", stop_details=details))

    assert (answer["message"]["refusal"], answer["finish"]) == ("Not this", "content_filter")


def test_second_finish_is_ignored() -> None:
    assert heard(*TEXT, ended("max_tokens"), ended("end_turn"))["finish"] == "length"


def test_halves_of_an_emoji_over_two_events_meet_again() -> None:
    halves = [
        json.dumps(delta(0, "text", text="@")).encode().replace(b"@", half)
        for half in (b"\\ud83d", b"\\ude00")
    ]
    body = sse(
        START, TEXT[0], *halves, end(0), ended("end_turn"), STOP, event_names=True
    )  # the halves go without an event name, as their type says enough
    out = translated(body, Surface.MESSAGES)

    assert b'"content":"\\ud83d"' in out
    assert b'"content":"\\ude00"' in out


def test_error_is_a_data_frame_and_no_end_mark_follows() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    out = translated(sse(START, *TEXT, error, event_names=True), Surface.MESSAGES)
    name, data = events_of(out)[-1]

    assert (name, json.loads(data)["error"]["message"]) == ("", "busy")
    assert b"[DONE]" not in out


def test_stream_without_a_start_still_begins_with_the_role() -> None:
    writer = ChatFromMessages(include_usage=False, model="public", request_id="req-1", created=7)
    payload = json.dumps(delta(0, "text", text="x")).encode()
    out = writer.write(Piece(kind=PieceKind.GENERATED, payload=payload)) + writer.finish(None)
    answer = heard_as_chat(out, include_usage=False)

    assert (answer["id"], answer["model"]) == ("req-1", "public")
    assert (answer["message"]["content"], answer["finish"]) == ("x", "stop")


def test_overlong_thinking_is_streamed_but_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_to_chat, "THOUGHT_CHARS_MAX", 3)
    answer = heard(
        begin(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking", thinking="long"),
        delta(0, "signature", signature="S"),
        end(0),
        ended("end_turn"),
    )

    assert answer["message"]["reasoning_content"] == "long"
    assert answer["message"]["reasoning_details"] == []


def test_payload_of_another_shape_counts_as_a_fault() -> None:
    writer = ChatFromMessages(include_usage=False)

    assert writer.write(Piece(kind=PieceKind.GENERATED, payload=b'{"type":7}')) == b""
    assert writer.protocol_faults == 1
