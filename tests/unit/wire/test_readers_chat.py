"""Chat and completions streams: the documented shape and every deviation seen in the wild.

Numbers name the items of the project's survey of gateways (streaming and cost complaints).
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.readers import stream_reader
from gateway.wire.usage import Usage
from tests.support.wire_streams import DONE, ROLE, chunk, golden, payloads, read

META, GENERATED, FINISH = PieceKind.META, PieceKind.GENERATED, PieceKind.FINISH
USAGE, END, ERROR = PieceKind.USAGE, PieceKind.DONE, PieceKind.ERROR


def kinds(pieces: list[Piece]) -> list[PieceKind]:
    return [piece.kind for piece in pieces]


def chat(*chunks: bytes) -> list[Piece]:
    return read(Surface.CHAT, *chunks)


def test_openai_stream_reads_as_role_text_finish_usage_end() -> None:
    pieces = chat(golden("chat_openai"))

    assert kinds(pieces) == [META, GENERATED, GENERATED, FINISH, USAGE, END]
    assert [piece.visible_chars for piece in pieces] == [0, 5, 7, 0, 0, 0]
    assert pieces[3].finish == "stop"
    assert pieces[4].usage == Usage(input=11, cached_read=8, output=7, reasoning=3)


def test_payloads_are_the_bytes_received() -> None:
    stream = golden("chat_openai")

    payload = b"".join(b"data: " + piece.payload + b"\n\n" for piece in chat(stream)[:-1])
    assert payload + DONE == stream


def test_role_only_frame_does_not_stop_the_clock() -> None:
    """Pitfall 3: a role frame with empty content is no token."""
    reader = stream_reader(Surface.CHAT)

    assert kinds(reader.feed(ROLE)) == [META]
    assert reader.num_generated == 0
    assert kinds(reader.feed(chunk({"content": "x"}))) == [GENERATED]
    assert reader.num_generated == 1


def test_azure_first_frame_without_choices_is_meta() -> None:
    pieces = chat(golden("chat_azure"))

    assert kinds(pieces) == [META, META, GENERATED, FINISH, USAGE, END]
    assert b"prompt_filter_results" in pieces[0].payload


def test_azure_empty_id_before_the_real_one_is_no_changed_id() -> None:
    reader = stream_reader(Surface.CHAT)
    reader.feed(golden("chat_azure"))

    assert reader.protocol_faults == 0


def test_usage_on_every_frame_is_cumulative_and_the_last_wins() -> None:
    pieces = chat(golden("chat_vllm_continuous"))

    assert kinds(pieces) == [META, GENERATED, GENERATED, FINISH, USAGE, END]
    assert [piece.usage.output for piece in pieces if piece.usage is not None] == [0, 1, 2, 3, 3]


def test_usage_in_the_finish_frame_is_read() -> None:
    """Item 2, pitfall 9: the last chunk has choices and usage; cached tokens must not be lost."""
    finish = chat(golden("chat_usage_in_finish"))[-2]

    assert (finish.kind, finish.finish) == (FINISH, "stop")
    assert finish.usage == Usage(input=11, cached_read=8, output=7, reasoning=3)


def test_usage_one_frame_before_an_empty_last_one_is_read() -> None:
    """Item 4: Grok; its second finish_reason is dropped, its reported price kept."""
    reader = stream_reader(Surface.CHAT)
    pieces = read(Surface.CHAT, golden("chat_usage_before_last"), reader=reader)

    assert kinds(pieces) == [META, GENERATED, FINISH, USAGE, END]
    assert pieces[3].cost_nanos == 3_775_600
    assert reader.protocol_faults == 1


def test_usage_frame_with_choices_is_a_usage_frame() -> None:
    """Item 1: a synthetic usage chunk with non-empty choices."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    pieces = chat(ROLE, chunk({"content": "x"}), chunk({}, "stop"), chunk({}, usage=usage), DONE)

    assert kinds(pieces) == [META, GENERATED, FINISH, USAGE, END]


def test_usage_frame_with_an_unknown_field_in_its_delta_is_not_hidden() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    pieces = chat(chunk({"annotations": [{"url": "u"}]}, usage=usage), chunk({}, "stop"), DONE)

    assert kinds(pieces) == [META, FINISH, END]
    assert pieces[0].usage == Usage(input=5, output=2)


def test_usage_beside_the_role_frame_does_not_hide_the_role() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    pieces = chat(chunk({"role": "assistant", "content": ""}, usage=usage))

    assert kinds(pieces) == [META, ERROR]


def test_groq_usage_under_its_own_name_is_read() -> None:
    finish = chat(golden("chat_groq"))[-2]

    assert finish.usage == Usage(input=19, output=10)


def test_openrouter_reasoning_counts_and_comments_are_signs_of_life() -> None:
    reader = stream_reader(Surface.CHAT)
    pieces = read(Surface.CHAT, golden("chat_openrouter"), reader=reader)

    assert kinds(pieces) == [GENERATED, GENERATED, FINISH, USAGE, END]
    assert [piece.reasoning_chars for piece in pieces] == [12, 0, 0, 0, 0]
    assert pieces[3].usage == Usage(input=11, cached_read=8, output=7, reasoning=3)
    assert pieces[3].cost_nanos == 123_400
    assert reader.num_comments == 2


def test_openrouter_error_in_a_chunk_is_an_error_with_its_own_words() -> None:
    """Item 7: the payload of an upstream error must not be lost."""
    pieces = chat(golden("chat_openrouter_error"))

    assert kinds(pieces) == [GENERATED, ERROR]
    assert pieces[-1].error is not None
    assert pieces[-1].error.message == "Provider disconnected unexpectedly"
    assert pieces[-1].error.code == "502"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error":{"message":"quota","type":"insufficient_quota","code":null}}', "quota"),
        (b'data: {"error":"plain words"}', "plain words"),
        (b'event: error\ndata: {"message":"named"}', "named"),
        (b'data: {"object":"error","message":"older vLLM","code":400}', "older vLLM"),
        (b'data: {"detail":"bare"}', "bare"),
        (b'data: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}', "busy"),
        (chunk({}, "error").strip(), "the upstream ended the answer with finish_reason error"),
        (b'data: {"choices":[{"delta":{},"error":{"message":"in choice"}}]}', "in choice"),
        (b'data: {"x_groq":{"error":"tool use failed"},"choices":[]}', "ended the stream"),
    ],
)
def test_an_error_in_band_is_an_error_and_never_a_token(event: bytes, message: str) -> None:
    """Pitfall 5: an error frame must not be taken for a first token."""
    reader = stream_reader(Surface.CHAT)
    pieces = read(Surface.CHAT, event + b"\n\n", chunk({"content": "late"}), reader=reader)

    assert kinds(pieces) == [ERROR]
    assert pieces[0].error is not None
    assert message in pieces[0].error.message
    assert reader.num_generated == 0


@pytest.mark.parametrize("nothing", [None, False, "", {}])
def test_an_empty_error_field_is_no_error(nothing: object) -> None:
    assert kinds(chat(chunk({"content": "x"}, error=nothing), chunk({}, "stop"), DONE)) == [
        GENERATED,
        FINISH,
        END,
    ]


def test_reasoning_content_counts_as_generated_but_not_visible() -> None:
    pieces = chat(golden("chat_reasoning"))

    assert kinds(pieces) == [META, GENERATED, GENERATED, FINISH, END]
    assert (pieces[1].reasoning_chars, pieces[1].visible_chars) == (3, 0)
    assert (pieces[2].reasoning_chars, pieces[2].visible_chars) == (0, 2)
    assert pieces[3].usage == Usage(input=8, cached_read=12, output=4, reasoning=5)


def test_the_same_reasoning_under_two_names_counts_once() -> None:
    delta = {"reasoning": "abc", "reasoning_content": "abc", "reasoning_details": [{"text": "abc"}]}

    assert chat(chunk(delta))[0].reasoning_chars == 3


@pytest.mark.parametrize(
    ("delta", "counts"),
    [
        ({"content": "é世"}, (2, 0, 0)),
        ({"refusal": "no"}, (2, 0, 0)),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "abc"}]}, (0, 3, 0)),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "xx"}]}, (0, 0, 0)),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, (0, 0, 1)),
        ({"tool_calls": [{"index": 0, "custom": {"name": "f", "input": "ab"}}]}, (0, 0, 3)),
        ({"function_call": {"arguments": "{}"}}, (0, 0, 2)),
        ({"audio": {"id": "a", "data": "UklG"}}, (0, 0, 0)),
        ({"audio": {"id": "a", "transcript": "hi"}}, (2, 0, 0)),
        ({"images": [{"type": "image_url"}]}, (0, 0, 0)),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "yes"},
                ]
            },
            (3, 2, 0),
        ),
    ],
)
def test_every_kind_of_output_is_generated(
    delta: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    piece = chat(chunk(delta))[0]

    assert piece.kind is GENERATED
    assert (piece.visible_chars, piece.reasoning_chars, piece.tool_chars) == counts


@pytest.mark.parametrize(
    "delta",
    [{}, {"role": "assistant"}, {"content": None}, {"tool_calls": []}, {"audio": {"id": "a"}},
     {"reasoning_content": "", "content": ""}, {"annotations": []}],
)  # fmt: skip
def test_an_empty_delta_is_meta(delta: dict[str, Any]) -> None:
    assert chat(chunk(delta))[0].kind is META


def test_text_and_finish_and_usage_in_one_frame_all_count() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    piece = chat(chunk({"content": "all"}, "stop", usage=usage), DONE)[0]

    assert (piece.kind, piece.visible_chars, piece.finish) == (GENERATED, 3, "stop")
    assert piece.usage == Usage(input=5, output=2)


def test_tool_calls_pass_by_index() -> None:
    pieces = chat(golden("chat_tools"))

    assert kinds(pieces) == [META, *[GENERATED] * 5, FINISH, USAGE, END]
    assert sum(piece.tool_chars for piece in pieces) == len('weather{"city":"Ulm"}time{}')


def test_tool_calls_without_index_get_one() -> None:
    reader = stream_reader(Surface.CHAT)
    pieces = read(Surface.CHAT, golden("chat_tools_without_index"), reader=reader)

    calls = [
        frame["choices"][0]["delta"]["tool_calls"][0]
        for frame in payloads(
            b"".join(b"data: " + piece.payload + b"\n\n" for piece in pieces[1:4])
        )
    ]
    assert [call["index"] for call in calls] == [0, 0, 1]
    assert [call["function"]["arguments"] for call in calls] == ['{"city":', '"Ulm"}', "{}"]
    assert reader.protocol_faults == 3


def test_id_changing_between_frames_is_held_to_the_first() -> None:
    reader = stream_reader(Surface.CHAT)
    pieces = read(
        Surface.CHAT, chunk({"content": "a"}), chunk({"content": "b"}, id="other"), reader=reader
    )

    assert b'"id":"chatcmpl-7"' in pieces[1].payload
    assert b'"content":"b"' in pieces[1].payload
    assert reader.protocol_faults == 1


def test_choices_finish_one_by_one_in_any_order() -> None:
    pieces = chat(golden("chat_two_choices"))

    assert [piece.finish for piece in pieces if piece.finish] == ["stop", "length"]
    assert pieces[-1].kind is END


def test_one_finished_choice_of_two_is_a_truncated_stream() -> None:
    stream = golden("chat_two_choices").split(b"data: ")
    head = b"data: ".join(stream[:6])

    last = chat(head)[-1]
    assert last.error is not None
    assert last.error.code == "stream_truncated"


def test_completions_stream_counts_its_text() -> None:
    pieces = read(Surface.COMPLETIONS, golden("completions"))

    assert kinds(pieces) == [GENERATED, GENERATED, FINISH, USAGE, END]
    assert [piece.visible_chars for piece in pieces] == [4, 5, 0, 0, 0]
