"""Usage in every shape that providers send it, and what must be billed and shown of it.

The usage rows of reliability.md E and D.2; gateways.md 4.1, 4.2, 4.4, 4.14, 4.18.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cache_forms import CACHE_FORMS, CACHED
from tests.support.hostile_provider import CHUNKINGS, Chunking, Script, Turn
from tests.support.hostile_scripts import HALF, good, says
from tests.support.hostile_world import (
    CHAT,
    CHAT_OF_MESSAGES,
    COMPLETIONS,
    MESSAGES_OF_CHAT,
    NATIVE,
    RESPONSES,
    TALKS,
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
    Tokens,
    chat_usage,
    response_object,
)

pytestmark = pytest.mark.e2e

WHOLE = "".join(HALF)
PARTLY = Tokens(prompt=1_103, completion=12)  # a running count, on the way to USED
ALL_ASKED = [CHAT, COMPLETIONS]  # where a usage frame is asked for


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("usage")
    with hostile_world(home, request.session, num_models=190) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
chat_like = pytest.mark.parametrize("talk", ALL_ASKED, ids=lambda talk: talk.name)


def voice_of(talk: Talk) -> ChatVoice:
    voice = talk.voice()
    assert isinstance(voice, ChatVoice)
    return voice


def play(world: HostileWorld, talk: Talk, script: Script, chunking: Chunking) -> str:
    model = world.model(talk)
    world.provider.play(talk.first, model, script, chunking=chunking)
    return model


def with_usage(frame: bytes, usage: Tokens) -> bytes:
    """A chat frame with usage beside its choices."""
    counted = json.dumps(chat_usage(usage)).encode()
    assert frame.endswith(b"}]}\n\n")
    return frame.removesuffix(b"}\n\n") + b', "usage": ' + counted + b"}\n\n"


@chat_like
def test_usage_in_the_finish_frame_becomes_one_frame_with_empty_choices(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.1: the usage chunk must have `choices: []` and come once."""
    voice = voice_of(talk)
    said = [voice.opening(), *map(voice.text, HALF), with_usage(voice.stop(), USED), DONE]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)
    assert len(heard.usages) == 1
    assert heard.beside == []
    assert heard.frames[-1]["choices"] == []
    assert heard.finishes == ["stop"]


@every_talk
def test_cached_tokens_of_the_last_chunk_keep_their_rate(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.2: usage was dropped where the last chunk had choices, and with it the cache."""
    voice = talk.voice()
    said = [voice.opening(CACHED), *map(voice.text, HALF), voice.finish(HALF, CACHED), voice.end()]
    if isinstance(voice, ChatVoice):
        said[-2] = with_usage(voice.stop(), CACHED)
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    row = world.check_good(talk, model, heard, WHOLE, usage=CACHED)
    assert row["usage"]["cached_read"] == 2_560
    assert row["usage"]["input"] == 52


@chat_like
def test_usage_one_chunk_before_an_extra_empty_last_one_is_kept(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.4: Grok."""
    voice = voice_of(talk)
    empty = voice.frame([])
    said = [voice.opening(), *map(voice.text, HALF), voice.finish(HALF), empty, DONE]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)
    assert len(heard.usages) == 1


@every_talk
def test_usage_said_twice_counts_once_and_the_last_is_right(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: duplicate usage: last valid cumulative value, billed once."""
    voice = talk.voice()
    twice = b""
    if isinstance(voice, ChatVoice):
        twice = voice.usage(PARTLY)
    elif isinstance(voice, MessagesVoice):
        twice = voice.event("message_delta", delta={}, usage={"output_tokens": 12})
    else:
        voice.event("response.in_progress", response=response_object("in_progress", "", PARTLY))
    said = [voice.opening(), *map(voice.text, HALF), twice, voice.finish(HALF), voice.end()]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)


@pytest.mark.parametrize("talk", [CHAT, COMPLETIONS, MESSAGES_OF_CHAT], ids=lambda talk: talk.name)
def test_usage_in_every_chunk_counts_once(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: usage in every chunk (vLLM's continuous statistics, xAI)."""
    voice = voice_of(talk)
    counted = [Tokens(1_103, 0), Tokens(1_103, 3), Tokens(1_103, 46)]
    frames = [voice.opening(), *map(voice.text, HALF)]
    said = [with_usage(frame, usage) for frame, usage in zip(frames, counted, strict=True)]
    said += [with_usage(voice.stop(), USED), voice.usage(USED), DONE]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)
    if talk.reads_usage_of_frame:
        assert len(heard.usages) == 1


@every_talk
def test_usage_after_the_end_mark_is_ignored(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: usage after `[DONE]`: the answer was closed."""
    voice = talk.voice()
    late = Tokens(999_999, 999_999)
    said = [voice.opening(), *map(voice.text, HALF), voice.finish(HALF), voice.end()]
    said += [voice.finish(HALF, late), voice.text("never"), voice.end()]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)


@chat_like
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_not_asked_for_is_asked_upstream_and_hidden_from_the_client(
    world: HostileWorld, talk: Talk, options: Any, chunking: Chunking
) -> None:
    """E: usage not asked by client: inject include_usage upstream, strip that chunk."""
    model = play(world, talk, good(talk, *HALF), chunking)
    heard = world.ask(talk, model, stream_options=options)

    assert heard.text == WHOLE
    assert heard.num_ends == 1
    assert heard.usages == heard.beside == []
    assert all(frame["choices"] for frame in heard.frames)
    sent = world.provider.turn(model, talk.first).body
    assert sent["stream_options"] == {"include_usage": True}
    row = world.row(heard.request_id)
    assert nanos(row["cost"]) == bill(talk.first, input=1_103, output=47)
    assert not row["is_estimated"]
    world.owes(f"{talk.first}/{model}", nanos(row["cost"]))


@every_talk
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_explicit_zero_usage_costs_zero_and_is_no_estimate(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """Gateways 4.18, D.2: a zero is a count like any other."""
    zero = Tokens(0, 0)
    voice = talk.voice()
    if isinstance(voice, MessagesVoice) and stream:
        start = voice.plain("", zero)
        start.update(content=[])
        block = {"type": "text", "text": ""}
        opening = voice.event("message_start", message=start)
        opening += voice.event("content_block_start", index=0, content_block=block)
        said = [opening, *map(voice.text, HALF), voice.finish(HALF, zero), voice.end()]
        script = says(*said)
    else:
        script = good(talk, *HALF, usage=zero)
    model = play(world, talk, script, chunking)
    heard = world.ask(talk, model, stream=stream)

    row = world.check_good(talk, model, heard, WHOLE, usage=zero)
    assert nanos(row["cost"]) == nanos(row["provider_cost"]) == 0


INSANE: dict[str, Any] = {
    "negative": -47,
    "trillion": 1_000_000_000_000,
    "float": 47.5,
    "text": "47",
    "bool": True,
}


def insane_usage(talk: Talk, count: Any) -> dict[str, Any]:
    if talk.family == "n":
        return {"input_tokens": count, "output_tokens": count}
    if talk is RESPONSES:
        return {"input_tokens": count, "output_tokens": count, "total_tokens": count}
    return {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}


def without_usage(talk: Talk, usage: Any = None) -> Script:
    """A good answer, plain or streaming, whose usage is `usage`, or is not there."""

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        if not turn.body.get("stream"):
            plain = voice.plain(WHOLE, None)
            await turn.answer({**plain, "usage": usage} if usage is not None else plain)
            return
        texts = [voice.text(part) for part in HALF]
        if isinstance(voice, ChatVoice):
            last = voice.frame([], usage=usage) if usage is not None else b""
            await turn.stream(voice.opening(), *texts, voice.stop(), last, DONE)
        elif isinstance(voice, ResponsesVoice):
            response = {**response_object("completed", WHOLE), "usage": usage}
            completed = voice.event("response.completed", response=response)
            await turn.stream(voice.opening(), *texts, completed)
        else:
            assert isinstance(voice, MessagesVoice)
            start = {**voice.plain("", None), "content": [], "usage": usage}
            block = {"type": "text", "text": ""}
            opening = voice.event("message_start", message=start)
            opening += voice.event("content_block_start", index=0, content_block=block)
            counted = {"usage": usage} if usage is not None else {}
            delta = {"stop_reason": "end_turn", "stop_sequence": None}
            stop = voice.event("message_delta", delta=delta, **counted)
            await turn.stream(opening, *texts, stop, voice.end())

    return script


def check_estimated(world: HostileWorld, talk: Talk, model: str, heard: Any) -> None:
    """Marked as an estimate, and priced as one: the prompt, and a token for four characters."""
    assert heard.text == WHOLE
    row = world.row(heard.request_id)
    assert row["is_estimated"]
    assert row["usage"] == {"input": row["facts"]["prompt_tokens"], "output": 11}
    cost = bill(talk.first, input=row["facts"]["prompt_tokens"], output=11)
    assert nanos(row["cost"]) == nanos(row["provider_cost"]) == cost
    world.owes(f"{talk.first}/{model}", cost)
    is_stream = heard.headers["content-type"].startswith("text/event-stream")
    if talk in (CHAT_OF_MESSAGES, MESSAGES_OF_CHAT):
        # Their usage is ours to write: never a zero that nobody counted.
        assert heard.tokens in (None, Tokens(row["facts"]["prompt_tokens"], 11))
    if is_stream and talk.reads_usage_of_frame:
        assert heard.tokens == Tokens(row["facts"]["prompt_tokens"], 11)
        assert heard.cost_nanos == cost
    if not is_stream:
        assert nanos(heard.headers["x-looprouter-cost"]) == cost
        assert "estimate" in heard.headers["x-looprouter-warning"]


@every_talk
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_missing_usage_is_estimated_and_marked(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """D.2: provider omits usage: estimated flag."""
    model = play(world, talk, without_usage(talk), chunking)
    heard = world.ask(talk, model, stream=stream)

    check_estimated(world, talk, model, heard)


@pytest.mark.parametrize("talk", NATIVE, ids=lambda talk: talk.name)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("count", INSANE)
def test_insane_usage_is_rejected_estimated_and_counted(
    world: HostileWorld, talk: Talk, stream: bool, count: str
) -> None:
    """D.2: negative / 1e12: rejected and alerted; the fault counter is what to alarm on."""
    script = without_usage(talk, insane_usage(talk, INSANE[count]))
    model = play(world, talk, script, CHUNKINGS["random"])
    heard = world.ask(talk, model, stream=stream)

    check_estimated(world, talk, model, heard)
    faults = f'gateway_protocol_faults_total{{endpoint="{talk.first}/{model}"}}'
    assert faults in world.client.get("/metrics").text


@chat_like
def test_last_sane_usage_wins_over_an_insane_one_after_it(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """D.2: last valid wins."""
    voice = voice_of(talk)
    insane = voice.frame([], usage=insane_usage(talk, -1))
    said = [voice.opening(), *map(voice.text, HALF), voice.finish(HALF), insane, DONE]
    model = play(world, talk, says(*said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)


@pytest.mark.parametrize("form", CACHE_FORMS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_cached_tokens_are_charged_once_in_every_providers_form(
    world: HostileWorld, form: str, stream: bool
) -> None:
    """Gateways 4.14: cached tokens charged twice, 2024 to 2026, provider after provider."""
    talk, usage, tokens = CACHE_FORMS[form]
    model = play(world, talk, without_usage(talk, usage), CHUNKINGS["random"])
    heard = world.ask(talk, model, stream=stream)

    cost = bill(talk.first, **tokens)
    row = world.row(heard.request_id)
    assert nanos(row["cost"]) == nanos(row["provider_cost"]) == cost
    assert not row["is_estimated"]
    assert heard.text == WHOLE
    world.owes(f"{talk.first}/{model}", cost)
    if stream and talk.reads_usage_of_frame:
        assert heard.cost_nanos == cost
