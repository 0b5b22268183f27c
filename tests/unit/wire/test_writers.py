"""The client's stream: payloads untouched, one usage frame if asked, one end mark, true errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.wire.pieces import Piece, PieceKind, Surface, WireError
from gateway.wire.translate.shapes import CannotTranslate
from gateway.wire.usage import Usage
from gateway.wire.writers import keep_alive, stream_writer
from tests.support.wire_streams import (
    DONE,
    ROLE,
    chunk,
    cut,
    golden,
    golden_names,
    payloads,
    read,
    relay,
    surface_of,
)

BROKEN = WireError(message="it broke", type="server_error", code="stream_interrupted")
CHAT_GOLDENS = [
    name
    for name in golden_names()
    if surface_of(name) in (Surface.CHAT, Surface.COMPLETIONS) and "error" not in name
]


def usage_frames(frames: list[Any]) -> list[Any]:
    return [frame for frame in frames if isinstance(frame, dict) and frame.get("usage")]


@pytest.mark.parametrize("name", ["chat_openai", "chat_azure", "chat_tools", "completions"])
def test_regular_stream_asked_with_usage_passes_byte_for_byte(name: str) -> None:
    assert relay(surface_of(name), golden(name)) == golden(name)


@pytest.mark.parametrize("name", ["messages_text", "messages_thinking_tools", "responses_text"])
def test_named_events_pass_byte_for_byte(name: str) -> None:
    assert relay(surface_of(name), golden(name), include_usage=False) == golden(name)
    assert relay(surface_of(name), golden(name), include_usage=True) == golden(name)


@pytest.mark.parametrize("name", [*CHAT_GOLDENS, "messages_text", "responses_text"])
@pytest.mark.parametrize("include_usage", [True, False])
def test_output_is_the_same_at_every_chunking(name: str, include_usage: bool) -> None:
    stream, surface = golden(name), surface_of(name)
    whole = relay(surface, stream, include_usage=include_usage)

    for size in (1, 13):
        chunks = cut(stream, [size] * (len(stream) // size))
        assert relay(surface, *chunks, include_usage=include_usage) == whole


@pytest.mark.parametrize("name", CHAT_GOLDENS)
def test_who_asked_gets_exactly_one_usage_frame_without_choices_before_one_end(name: str) -> None:
    frames = payloads(relay(surface_of(name), golden(name)))

    if name == "chat_tools_without_index":  # its upstream says no usage at all
        assert usage_frames(frames) == []
    else:
        assert frames[-2]["choices"] == []
        assert frames[-2]["usage"]["prompt_tokens"] > 0
    assert frames.count("[DONE]") == 1
    assert frames[-1] == "[DONE]"


@pytest.mark.parametrize("name", [name for name in CHAT_GOLDENS if "continuous" not in name])
def test_usage_stands_in_no_other_frame_for_who_asked(name: str) -> None:
    frames = payloads(relay(surface_of(name), golden(name)))

    assert len(usage_frames(frames)) == (name != "chat_tools_without_index")


@pytest.mark.parametrize("name", CHAT_GOLDENS)
def test_who_did_not_ask_gets_no_usage_frame(name: str) -> None:
    """Only frames that also carry choices may still say it; they pass untouched."""
    frames = payloads(relay(surface_of(name), golden(name), include_usage=False))

    assert all(frame["choices"] for frame in usage_frames(frames))
    assert frames[-1] == "[DONE]"


@pytest.mark.parametrize("name", CHAT_GOLDENS)
@pytest.mark.parametrize("include_usage", [True, False])
def test_text_and_finish_are_those_of_the_upstream(name: str, include_usage: bool) -> None:
    def spoken(stream: bytes) -> list[Any]:
        choices = [
            choice
            for frame in payloads(stream)
            if isinstance(frame, dict)
            for choice in frame["choices"]
        ]
        said = [choice.get("delta", {}).get("content") or choice.get("text") for choice in choices]
        return [text for text in said if text]

    stream = golden(name)
    assert spoken(relay(surface_of(name), stream, include_usage=include_usage)) == spoken(stream)


def test_cost_is_merged_into_the_usage_frame_and_its_other_bytes_stay() -> None:
    out = relay(Surface.CHAT, golden("chat_openai"), extra={"cost": "0.000123"})

    assert out == golden("chat_openai").replace(
        b'"reasoning_tokens":3,"audio_tokens":0}}}',
        b'"reasoning_tokens":3,"audio_tokens":0},"cost":"0.000123"}}',
    )


def test_cost_replaces_a_cost_of_the_upstream_instead_of_doubling_the_name() -> None:
    out = relay(Surface.CHAT, golden("chat_openrouter"), extra={"cost": "0.5"})

    assert out.count(b'"cost":') == 1
    assert payloads(out)[-2]["usage"]["cost"] == "0.5"


def test_cost_is_not_shown_to_who_did_not_ask() -> None:
    out = relay(
        Surface.CHAT, golden("chat_openai"), include_usage=False, extra={"cost": "0.000123"}
    )

    assert b"cost" not in out
    assert b'"choices":[]' not in out


def test_usage_of_the_finish_frame_moves_to_a_frame_of_its_own() -> None:
    frames = payloads(relay(Surface.CHAT, golden("chat_usage_in_finish"), extra={"cost": "0.1"}))

    assert frames[-3]["choices"][0]["finish_reason"] == "stop"
    assert frames[-3]["usage"] is None
    assert frames[-2]["choices"] == []
    assert frames[-2]["id"] == "chatcmpl-7"
    assert frames[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 8, "audio_tokens": 0}
    assert frames[-2]["usage"]["cost"] == "0.1"


def test_finish_frame_with_usage_is_untouched_for_who_did_not_ask() -> None:
    stream = golden("chat_usage_in_finish")

    assert relay(Surface.CHAT, stream, include_usage=False) == stream


def test_frames_with_usage_on_each_pass_untouched() -> None:
    stream = golden("chat_vllm_continuous")
    events = stream.split(b"\n\n")
    out = relay(Surface.CHAT, stream, include_usage=False).split(b"\n\n")

    assert out == events[:4] + events[5:]


def test_groq_usage_becomes_a_usage_frame() -> None:
    frame = payloads(relay(Surface.CHAT, golden("chat_groq")))[-2]

    assert frame["choices"] == []
    assert (frame["usage"]["prompt_tokens"], frame["usage"]["completion_tokens"]) == (19, 10)


def test_the_last_usage_wins() -> None:
    early = chunk(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 1})
    late = chunk(choices=[], usage={"prompt_tokens": 2, "completion_tokens": 2})
    out = relay(Surface.CHAT, chunk({"content": "x"}), early, chunk({}, "stop"), late, DONE)

    assert [frame["usage"]["prompt_tokens"] for frame in usage_frames(payloads(out))] == [2]


def test_explicit_zero_usage_is_passed_on_as_zero() -> None:
    """Item 18: an explicit zero must not be replaced."""
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    zero = chunk(choices=[], usage=usage)
    pieces = read(Surface.CHAT, chunk({"content": "x"}), chunk({}, "stop"), zero, DONE)
    out = relay(Surface.CHAT, chunk({"content": "x"}), chunk({}, "stop"), zero, DONE)

    assert pieces[2].usage == Usage()
    assert payloads(out)[-2]["usage"] == usage


def test_missing_end_mark_is_added_once() -> None:
    out = relay(Surface.CHAT, ROLE, chunk({"content": "x"}), chunk({}, "stop"))

    assert out == ROLE + chunk({"content": "x"}) + chunk({}, "stop") + DONE


def test_doubled_end_mark_is_written_once() -> None:
    out = relay(Surface.CHAT, ROLE, chunk({"content": "x"}), chunk({}, "stop"), DONE, DONE)

    assert out.count(DONE) == 1


def test_finish_twice_writes_nothing_more() -> None:
    writer = stream_writer(Surface.CHAT, Surface.CHAT, include_usage=True)

    assert writer.finish(None) == DONE
    assert writer.finish(None) == b""
    assert writer.write(Piece(kind=PieceKind.META, payload=b"{}")) == b""


def test_truncated_stream_ends_in_an_error_and_no_end_mark() -> None:
    out = relay(Surface.CHAT, ROLE, chunk({"content": "half"}))

    assert b"[DONE]" not in out
    assert payloads(out)[-1]["error"]["code"] == "stream_truncated"


def test_upstream_error_frame_is_written_in_our_shape_once() -> None:
    frames = payloads(relay(Surface.CHAT, golden("chat_openrouter_error")))

    assert frames[-1] == {
        "error": {
            "message": "Provider disconnected unexpectedly",
            "type": "server_error",
            "param": None,
            "code": "502",
        }
    }
    assert len(frames) == 2


def test_multi_line_data_goes_out_on_one_line() -> None:
    stream = b'data: {"choices":[\ndata: {"index":0,"delta":{"content":"a\\nb"}}\ndata: ]}\n\n'
    out = relay(Surface.CHAT, stream, chunk({}, "stop"), DONE)

    first = out.split(b"\n\n")[0]
    assert b"\n" not in first
    assert payloads(out)[0]["choices"][0]["delta"]["content"] == "a\nb"


def test_upstream_comments_ids_and_retries_do_not_reach_the_client() -> None:
    stream = (
        b"retry: 5\nid: 9\n: hello\n" + ROLE + chunk({"content": "x"}) + chunk({}, "stop") + DONE
    )

    assert relay(Surface.CHAT, stream) == ROLE + chunk({"content": "x"}) + chunk({}, "stop") + DONE


def test_cut_emoji_passes_byte_for_byte() -> None:
    stream = (
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    )

    assert relay(Surface.CHAT, stream, DONE, include_usage=False) == stream + DONE
    assert relay(Surface.CHAT, stream, DONE).startswith(stream)


def test_messages_error_is_a_named_event() -> None:
    """Item 8: errors sent as bare data are invisible to Anthropic clients."""
    out = relay(Surface.MESSAGES, golden("messages_error"))
    last = out.split(b"\n\n")[-2]

    assert last.startswith(b"event: error\ndata: ")
    assert b"message_stop" not in out
    assert payloads(last + b"\n\n") == [
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "Overloaded"},
            "request_id": "req_1",
        }
    ]


def test_messages_missing_stop_event_is_added() -> None:
    stream = golden("messages_text")
    without = stream[: stream.index(b"event: message_stop")]

    assert payloads(relay(Surface.MESSAGES, without)) == payloads(stream)


def test_messages_usage_takes_the_cost_only_when_asked() -> None:
    stream = golden("messages_text")

    assert relay(Surface.MESSAGES, stream, include_usage=False, extra={"cost": "1"}) == stream
    out = relay(Surface.MESSAGES, stream, include_usage=True, extra={"cost": "1"})
    assert out == stream.replace(
        b'"usage":{"output_tokens":15}', b'"usage":{"output_tokens":15,"cost":"1"}'
    )


def test_an_upstream_that_goes_on_after_its_end_is_not_kept_back_for_ever() -> None:
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    stream = golden("messages_text")
    endless = stream[: stream.index(b"event: message_stop")] + ping * 50

    out = relay(Surface.MESSAGES, endless, include_usage=True, extra={"cost": "1"})
    assert out == endless + stream[stream.index(b"event: message_stop") :]


def test_responses_usage_takes_the_cost_only_when_asked() -> None:
    stream = golden("responses_text")

    assert relay(Surface.RESPONSES, stream, include_usage=False, extra={"cost": "1"}) == stream
    out = relay(Surface.RESPONSES, stream, include_usage=True, extra={"cost": "1"})
    assert payloads(out)[-1]["response"]["usage"]["cost"] == "1"
    assert out.replace(b',"cost":"1"', b"") == stream


def test_responses_error_goes_on_counting_and_keeps_the_response() -> None:
    stream = golden("responses_text")
    pieces = read(Surface.RESPONSES, stream[: stream.index(b"event: response.completed")])
    writer = stream_writer(Surface.RESPONSES, Surface.RESPONSES, include_usage=False)
    for piece in pieces[:-1]:
        writer.write(piece)

    error, failed = payloads(writer.error(BROKEN, "req_1"))
    assert (error["type"], error["sequence_number"]) == ("error", 11)
    assert error["error"]["message"] == error["message"] == "it broke"
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 12)
    assert (failed["response"]["id"], failed["response"]["status"]) == ("resp_1", "failed")
    assert failed["response"]["error"] == {"code": "stream_interrupted", "message": "it broke"}
    assert writer.finish(None) == b""


@pytest.mark.parametrize(
    "surface", [Surface.CHAT, Surface.COMPLETIONS, Surface.MESSAGES, Surface.RESPONSES]
)
def test_nothing_follows_an_error(surface: Surface) -> None:
    writer = stream_writer(surface, surface, include_usage=True)

    assert b"it broke" in writer.error(BROKEN, "req_1")
    assert writer.write(Piece(kind=PieceKind.GENERATED, payload=b'{"a":1}')) == b""
    assert writer.finish({"cost": "1"}) == b""


@pytest.mark.parametrize(
    ("client", "upstream"),
    [
        (Surface.RESPONSES, Surface.CHAT),
        (Surface.COMPLETIONS, Surface.CHAT),
        (Surface.RESPONSES, Surface.MESSAGES),
        (Surface.EMBEDDINGS, Surface.EMBEDDINGS),
    ],
)
def test_surfaces_without_a_translation_are_refused(client: Surface, upstream: Surface) -> None:
    with pytest.raises(CannotTranslate):
        stream_writer(client, upstream, include_usage=False)


@pytest.mark.parametrize(
    ("client", "upstream", "name"),
    [
        (Surface.CHAT, Surface.MESSAGES, "messages_text"),
        (Surface.MESSAGES, Surface.CHAT, "chat_openai"),
    ],
)
def test_other_dialects_are_translated(client: Surface, upstream: Surface, name: str) -> None:
    writer = stream_writer(client, upstream, include_usage=True, model="m", request_id="req_1")
    out = b"".join(writer.write(piece) for piece in read(upstream, golden(name)))
    out += writer.finish(None)

    text = "".join(
        frame["delta"].get("text", "")
        if frame.get("type") == "content_block_delta"
        else "".join(c["delta"].get("content") or "" for c in frame.get("choices", ()))
        for frame in payloads(out)
        if isinstance(frame, dict)
    )
    assert text == {"messages_text": "Grüß Gott", "chat_openai": "Grüße, 世界 🌍!"}[name]


def test_keep_alive_is_a_comment_or_a_ping() -> None:
    assert payloads(keep_alive(Surface.CHAT)) == []
    assert msgspec.json.encode(payloads(keep_alive(Surface.MESSAGES))) == b'[{"type":"ping"}]'
