"""Tool calls, thinking and oddly ordered frames: the right content in the right place, as it comes.

gateways.md 4.3, 4.5, 4.8 and the deviations of its section 5; reliability.md E, choices by index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.ears import Heard
from tests.support.hostile_provider import CHUNKINGS, Chunking, Gate, Script, Turn
from tests.support.hostile_scripts import HALF, half, says
from tests.support.hostile_world import (
    CHAT,
    CHAT_OF_MESSAGES,
    COMPLETIONS,
    MESSAGES,
    MESSAGES_OF_CHAT,
    RESPONSES,
    HostileWorld,
    Talk,
    bill,
    hostile_world,
    nanos,
)
from tests.support.voices import (
    DONE,
    USED,
    ChatVoice,
    MessagesVoice,
    ResponsesVoice,
    Voice,
)

pytestmark = pytest.mark.e2e

WHOLE = "".join(HALF)
FRAGMENTS = ('{"city":', '"ALPHA', "BRAVO", "CHARLIE", '"}')
THOUGHTS = ("First I THINK, ", "then I think – again.")
ENCRYPTED = "c2lnbmF0dXJl"


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("content")
    with hostile_world(home, request.session, num_models=80) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


def talks(*chosen: Talk) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("talk", chosen, ids=lambda talk: talk.name)


def play(world: HostileWorld, talk: Talk, script: Script, chunking: Chunking) -> str:
    model = world.model(talk)
    world.provider.play(talk.first, model, script, chunking=chunking)
    return model


def tool_start(voice: Voice) -> bytes:
    if isinstance(voice, ChatVoice):
        function = {"name": "weather", "arguments": ""}
        return voice.delta({"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                                            "function": function}]})  # fmt: skip
    if isinstance(voice, MessagesVoice):
        block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
        start = voice.event("content_block_start", index=1, content_block=block)
        return voice.event("content_block_stop", index=0) + start
    assert isinstance(voice, ResponsesVoice)
    item = {"id": "fc_1", "type": "function_call", "name": "weather", "call_id": "call_1",
            "arguments": ""}  # fmt: skip
    return voice.event("response.output_item.added", output_index=1, item=item)


def tool_fragment(voice: Voice, fragment: str) -> bytes:
    if isinstance(voice, ChatVoice):
        call = {"index": 0, "function": {"arguments": fragment}}
        return voice.delta({"tool_calls": [call]})
    if isinstance(voice, MessagesVoice):
        delta = {"type": "input_json_delta", "partial_json": fragment}
        return voice.event("content_block_delta", index=1, delta=delta)
    assert isinstance(voice, ResponsesVoice)
    return voice.event(
        "response.function_call_arguments.delta", output_index=1, item_id="fc_1", delta=fragment
    )


def tool_end(voice: Voice) -> bytes:
    if isinstance(voice, ChatVoice):
        return voice.stop("tool_calls") + voice.usage(USED) + DONE
    if isinstance(voice, MessagesVoice):
        delta = {"stop_reason": "tool_use", "stop_sequence": None}
        stop = voice.event("message_delta", delta=delta, usage={"output_tokens": USED.completion})
        return voice.event("content_block_stop", index=1) + stop + voice.end()
    return voice.finish((), USED)


@talks(CHAT, RESPONSES, MESSAGES, CHAT_OF_MESSAGES, MESSAGES_OF_CHAT)
def test_tool_arguments_arrive_piece_by_piece_though_usage_is_asked_for(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.3: with include_usage they arrived in one burst. Here each piece waits until the
    client has the one before.
    """
    gates = [Gate() for _ in FRAGMENTS]

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        await turn.begin()
        await turn.say(voice.opening(), tool_start(voice))
        for fragment, gate in zip(FRAGMENTS, gates, strict=True):
            await turn.say(tool_fragment(voice, fragment))
            await gate.passed()
        await turn.say(tool_end(voice))
        await turn.end()

    def see(got: bytes) -> None:
        for fragment, gate in zip(FRAGMENTS, gates, strict=True):
            if json.dumps(fragment)[1:-1].encode() in got:
                gate.open()

    model = play(world, talk, script, chunking)
    heard = world.ask(talk, model, on_bytes=see)

    (call,) = heard.tools.values()
    assert call["arguments"] == "".join(FRAGMENTS)
    assert talk is RESPONSES or call["name"] == "weather"
    assert heard.finishes == ["tool_use" if talk.surface == "messages" else
                              "completed" if talk is RESPONSES else "tool_calls"]  # fmt: skip
    world.check_good(talk, model, heard, "")


def thinking(voice: Voice, thoughts: tuple[str, ...]) -> list[bytes]:
    """Thoughts before the text, in the upstream's own words."""
    if isinstance(voice, ChatVoice):
        return [voice.delta({"reasoning_content": thought}) for thought in thoughts]
    assert isinstance(voice, MessagesVoice)
    block = {"type": "thinking", "thinking": "", "signature": ""}
    signed = {"type": "signature_delta", "signature": ENCRYPTED}
    return [
        voice.event("content_block_stop", index=0),
        voice.event("content_block_start", index=1, content_block=block),
        *(
            voice.event(
                "content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": said}
            )
            for said in thoughts
        ),
        voice.event("content_block_delta", index=1, delta=signed),
        voice.event("content_block_stop", index=1),
    ]


def text_after(voice: Voice, texts: tuple[str, ...]) -> list[bytes]:
    if isinstance(voice, ChatVoice):
        return [*map(voice.text, texts), voice.finish(texts), voice.end()]
    assert isinstance(voice, MessagesVoice)
    block = {"type": "text", "text": ""}
    deltas = [
        voice.event("content_block_delta", index=2, delta={"type": "text_delta", "text": said})
        for said in texts
    ]
    start = voice.event("content_block_start", index=2, content_block=block)
    ending = voice.finish(texts).replace(b'"index": 0', b'"index": 2')
    return [start, *deltas, ending, voice.end()]


@talks(CHAT, MESSAGES, CHAT_OF_MESSAGES, MESSAGES_OF_CHAT)
def test_thinking_comes_in_thinking_blocks_and_text_in_text_blocks(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.5: a `thinking_delta` in a text block is rejected by Claude Code (the ears of
    these tests reject it too).
    """
    voice = talk.voice()
    said = [voice.opening(), *thinking(voice, THOUGHTS), *text_after(voice, HALF)]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    assert heard.reasoning == "".join(THOUGHTS)
    world.check_good(talk, model, heard, WHOLE)


@talks(MESSAGES, MESSAGES_OF_CHAT)
def test_error_for_an_anthropic_client_has_the_event_name_its_sdk_needs(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.8: errors sent as bare `data:` are invisible to Anthropic clients."""

    async def fails(turn: Turn) -> None:
        error = {"error": {"type": "overloaded_error", "message": "everyone is here"}}
        await turn.say(b"data: " + json.dumps(error).encode() + b"\n\n")
        await turn.end()

    model = play(world, talk, half(talk, fails), chunking)
    heard = world.ask(talk, model)

    world.check_broken(talk, model, heard, WHOLE, "stream_interrupted")
    assert b'\n\nevent: error\ndata: {"type":"error","error":{' in heard.body
    assert b"everyone is here" in heard.body


def by_index(heard: Heard) -> dict[int, str]:
    texts: dict[int, str] = {}
    for frame in heard.frames:
        for choice in frame["choices"]:
            said = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


def at(index: int, frame: bytes) -> bytes:
    return frame.replace(b'"index": 0', b'"index": %d' % index)


@talks(CHAT, COMPLETIONS)
def test_choices_out_of_order_keep_their_index_and_finish_once(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: finish_reason twice, out-of-order choice index: by index, first finish wins."""
    voice = talk.voice()
    assert isinstance(voice, ChatVoice)
    said = [
        at(1, voice.opening()),
        voice.opening(),
        at(1, voice.text("one")),
        voice.text("zero"),
        voice.stop("length"),
        at(1, voice.text(" more")),
        voice.stop("stop"),  # again, and something else
        at(1, voice.stop()),
        at(1, voice.stop()),
        voice.usage(USED),
        DONE,
        DONE,
    ]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model, n=2)

    assert by_index(heard) == {0: "zero", 1: "one more"}
    assert heard.finishes == ["length", "stop"]
    world.check_good(talk, model, heard, heard.text)


Frames = Callable[[ChatVoice], list[bytes]]


def azure(voice: ChatVoice) -> list[bytes]:
    """Filter results first, in a frame without choices, id or model."""
    first = voice.frame([], prompt_filter_results=[{"prompt_index": 0}])
    first = first.replace(b"chatcmpl-1", b"").replace(b"m-1", b"")
    return [first, voice.opening(), *map(voice.text, HALF), voice.finish(HALF), DONE]


def changing_ids(voice: ChatVoice) -> list[bytes]:
    frames = [voice.opening(), *map(voice.text, HALF), voice.stop(), voice.usage(USED)]
    changed = [
        frame.replace(b"chatcmpl-1", b"chatcmpl-%d" % (idx + 1)) for idx, frame in enumerate(frames)
    ]
    return [*changed, DONE]


def done_twice(voice: ChatVoice) -> list[bytes]:
    return [voice.opening(), *map(voice.text, HALF), voice.finish(HALF), DONE, DONE]


def finish_with_text(voice: ChatVoice) -> list[bytes]:
    """The last word and the finish reason in one frame."""
    return [
        voice.opening(),
        voice.text(HALF[0]),
        voice.delta({"content": HALF[1]}, "stop"),
        voice.usage(USED),
        DONE,
    ]


DEVIATIONS: dict[str, Frames] = {
    "azure": azure,
    "changing_ids": changing_ids,
    "done_twice": done_twice,
    "finish_with_text": finish_with_text,
}


@talks(CHAT, MESSAGES_OF_CHAT)
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_deviation_seen_in_the_wild_is_repaired(
    world: HostileWorld, talk: Talk, deviation: str, chunking: Chunking
) -> None:
    """Gateways 5: seen deviations to repair."""
    model = play(world, talk, says(*DEVIATIONS[deviation](ChatVoice())), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)
    if talk is CHAT:
        assert len({frame["id"] for frame in heard.frames if frame["id"]}) == 1


@talks(CHAT, MESSAGES_OF_CHAT)
def test_tool_calls_without_index_are_told_apart(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 5: missing `index` in tool calls; E: tool-call argument fragments by index."""
    voice = ChatVoice()

    def call(**members: Any) -> bytes:
        return voice.delta({"tool_calls": [members]})

    said = [
        voice.opening(),
        call(id="call_1", type="function", function={"name": "one", "arguments": '{"a":'}),
        call(function={"arguments": "1}"}),
        call(id="call_2", type="function", function={"name": "two", "arguments": '{"b":'}),
        call(function={"arguments": "2}"}),
        voice.stop("tool_calls"),
        voice.usage(USED),
        DONE,
    ]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    assert list(heard.tools.values()) == [
        {"name": "one", "arguments": '{"a":1}'},
        {"name": "two", "arguments": '{"b":2}'},
    ]
    world.check_good(talk, model, heard, "")


@talks(CHAT, MESSAGES, CHAT_OF_MESSAGES, MESSAGES_OF_CHAT)
def test_stream_that_breaks_inside_a_tool_call_is_no_finished_call(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: reset mid-stream: a half-written argument must not look like a whole one."""
    voice = talk.voice()
    said = [voice.opening(), tool_start(voice), *(tool_fragment(voice, f) for f in FRAGMENTS[:3])]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    assert heard.num_ends == 0
    assert heard.finishes == []
    assert heard.error is not None
    (call,) = heard.tools.values()
    assert call["arguments"] == "".join(FRAGMENTS[:3])
    row = world.row(heard.request_id)
    assert row["error"] == "stream_interrupted"
    assert row["is_estimated"]
    prompt = USED.prompt if talk.family == "n" else row["facts"]["prompt_tokens"]
    chars = len("weather") + len("".join(FRAGMENTS[:3]))
    cost = bill(talk.first, input=prompt, output=-(-chars // 4))
    assert nanos(row["cost"]) == cost
    world.owes(f"{talk.first}/{model}", cost)
