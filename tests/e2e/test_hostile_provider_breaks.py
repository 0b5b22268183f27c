"""Streams that break off: reset, cut short, failed in band, too large. The gateway never lies.

Rows of reliability.md E, each at three cuts of the bytes, in every dialect and across dialects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.hostile_provider import CHUNKINGS, Chunking, Gate, Turn
from tests.support.hostile_scripts import GLUE, HALF, STAND_BY, good, half, opens, says
from tests.support.hostile_world import (
    RESPONSES,
    TALKS,
    HostileWorld,
    Talk,
    hostile_world,
)
from tests.support.voices import USED, ChatVoice, ResponsesVoice, Tokens, data

pytestmark = pytest.mark.e2e

WITH_END_MARK = [talk for talk in TALKS if talk is not RESPONSES]
EVENT_BYTES_MAX = 1024 * 1024  # reliability.md E: the cap of one event


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("breaks")
    with hostile_world(home, request.session, num_models=190) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)


@every_talk
@pytest.mark.parametrize("when", ["after_request", "after_head", "after_opening"])
def test_reset_before_the_first_token_falls_over_unseen(
    world: HostileWorld, talk: Talk, when: str, chunking: Chunking
) -> None:
    """E: reset before first byte to client. Role frames and `response.created` are no token."""
    model = world.model(talk)

    async def resets(turn: Turn) -> None:
        if when != "after_request":
            await turn.begin()
        if when == "after_opening":
            await turn.say(talk.voice().opening())
        turn.reset()

    world.provider.play(talk.first, model, resets, chunking=chunking)
    world.provider.play(talk.second, model, good(talk, *STAND_BY), chunking=chunking)
    heard = world.ask(talk, model)

    row = world.check_good(talk, model, heard, "".join(STAND_BY), provider=talk.second)
    assert heard.headers["x-looprouter-attempts"] == "2"
    said = Tokens(USED.prompt, 1) if talk.family == "n" and when == "after_opening" else None
    world.owes_lost_prompt(talk, model, row, or_said=said)


@every_talk
def test_reset_in_mid_stream_is_told_in_band_and_never_ends_as_done(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: reset mid-stream. Gateways 4.10: nothing of another answer is glued on."""
    model, gate = world.model(talk), Gate()
    world.provider.play(talk.first, model, half(talk, Turn.reset, gate), chunking=chunking)
    world.provider.play(talk.second, model, good(talk, *GLUE))
    heard = world.ask(talk, model, on_bytes=opens(gate, HALF[1]))

    world.check_broken(talk, model, heard, "".join(HALF), "stream_interrupted")
    assert world.provider.turns_of(model, talk.second) == []


@every_talk
@pytest.mark.parametrize("failure", ["reset", "end", "overloaded", "malformed"])
def test_failure_after_the_first_token_never_glues_a_second_answer_on(
    world: HostileWorld, talk: Talk, failure: str
) -> None:
    """Gateways 4.10: failover after the first token glued two answers together. Whatever ends the
    first answer, however ready the stand-by: one answer, or an error.
    """
    model, gate = world.model(talk), Gate()

    async def ends(turn: Turn) -> None:
        if failure == "reset":
            turn.reset()
            return
        if failure == "overloaded":
            await turn.say(talk.voice().error("too many", "overloaded_error", "overloaded"))
        if failure == "malformed":
            await turn.say(b"data: {oops\n\n")
        await turn.end()

    world.provider.play(talk.first, model, half(talk, ends, gate))
    world.provider.play(talk.second, model, good(talk, *GLUE))
    heard = world.ask(talk, model, on_bytes=opens(gate, HALF[1]))

    assert heard.text == "".join(HALF)
    assert GLUE[0].encode() not in heard.body
    assert heard.num_ends == 0
    assert heard.error is not None
    assert world.provider.turns_of(model, talk.second) == []
    world.check_delivered(talk, model, world.row(heard.request_id), len(heard.text))


@every_talk
@pytest.mark.parametrize("how", ["closes", "hangs_up", "cuts_an_event"])
def test_end_without_a_finish_reason_is_a_truncated_stream(
    world: HostileWorld, talk: Talk, how: str, chunking: Chunking
) -> None:
    """E: no `[DONE]`, no finish_reason: as reset mid-stream."""
    model, gate = world.model(talk), Gate()

    async def stops(turn: Turn) -> None:
        if how == "cuts_an_event":
            # WHATWG: an event without its blank line is never dispatched.
            await turn.say(talk.voice().text(GLUE[0]).rstrip(b"\n"))
        if how == "hangs_up":
            turn.hang_up()
        else:
            await turn.end()

    world.provider.play(talk.first, model, half(talk, stops, gate), chunking=chunking)
    world.provider.play(talk.second, model, good(talk, *GLUE))
    heard = world.ask(talk, model, on_bytes=opens(gate, HALF[1]))

    world.check_broken(talk, model, heard, "".join(HALF), "stream_interrupted")


@pytest.mark.parametrize("talk", WITH_END_MARK, ids=lambda talk: talk.name)
@pytest.mark.parametrize("end", ["none", "cut", "hung_up"])
def test_missing_end_mark_after_the_finish_reason_is_repaired(
    world: HostileWorld, talk: Talk, end: str, chunking: Chunking
) -> None:
    """E: truncated last event / no `[DONE]` with finish_reason seen: complete, with one end, and
    counted as a fault of this endpoint's protocol.
    """
    model = world.model(talk)

    async def forgets(turn: Turn) -> None:
        voice = talk.voice()
        await turn.begin()
        await turn.say(voice.opening(), *map(voice.text, HALF), voice.finish(HALF))
        if end == "cut":
            await turn.say(voice.end()[:-4])
        if end == "hung_up":
            turn.hang_up()
        else:
            await turn.end()

    world.provider.play(talk.first, model, forgets, chunking=chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, "".join(HALF))
    faults = f'gateway_protocol_faults_total{{endpoint="{talk.first}/{model}"}} 1.0'
    assert faults in world.client.get("/metrics").text


@every_talk
def test_error_event_in_mid_stream_keeps_its_words_and_stops(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: error event mid-stream. What follows the error is not the answer any more."""
    model = world.model(talk)

    async def fails(turn: Turn) -> None:
        voice = talk.voice()
        said = voice.error("GPU fell off the bus", "api_error", "gpu_lost")
        await turn.say(said, voice.text(GLUE[0]), voice.finish(GLUE), voice.end())
        await turn.end()

    world.provider.play(talk.first, model, half(talk, fails), chunking=chunking)
    heard = world.ask(talk, model)

    code = "stream_interrupted" if talk.family == "n" else "gpu_lost"
    world.check_broken(talk, model, heard, "".join(HALF), code)
    assert heard.error is not None
    assert "GPU fell off the bus" in heard.error["message"]


def test_failed_response_keeps_its_words(world: HostileWorld, chunking: Chunking) -> None:
    """E: error event mid-stream, in the form `response.failed`."""
    model, voice = world.model(RESPONSES), ResponsesVoice()
    failed = {"status": "failed", "error": {"code": "gpu_lost", "message": "GPU fell off"}}
    said = [
        voice.opening(),
        *map(voice.text, HALF),
        voice.event("response.failed", response=failed),
    ]
    world.provider.play("a", model, says(*said), chunking=chunking)
    heard = world.ask(RESPONSES, model)

    world.check_broken(RESPONSES, model, heard, "".join(HALF), "gpu_lost")
    assert "GPU fell off" in str(heard.error)


@every_talk
def test_event_that_is_no_json_is_an_error_not_a_gap(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: an event that cannot be read may have held text; to leave it out would be a lie."""
    model = world.model(talk)

    async def spoils(turn: Turn) -> None:
        voice = talk.voice()
        await turn.say(voice.text(GLUE[0]).replace(b"{", b"", 1), voice.finish(HALF), voice.end())
        await turn.end()

    world.provider.play(talk.first, model, half(talk, spoils), chunking=chunking)
    heard = world.ask(talk, model)

    world.check_broken(talk, model, heard, "".join(HALF), "malformed_event")


@every_talk
def test_event_above_one_mebibyte_is_cut_off_and_told_in_band(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: huge event: upstream is closed, the error is in band, what was delivered is paid."""
    model = world.model(talk)

    async def floods(turn: Turn) -> None:
        await turn.say(talk.voice().text("x" * EVENT_BYTES_MAX))
        await turn.until_client_leaves()

    world.provider.play(talk.first, model, half(talk, floods), chunking=chunking)
    heard = world.ask(talk, model)

    world.check_broken(talk, model, heard, "".join(HALF), "event_too_large")
    world.provider.turn(model, talk.first).client_left.wait(20)


@every_talk
def test_event_just_below_one_mebibyte_passes_unharmed(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: huge event, the other side of the limit; a frame may hold an image or a long argument."""
    model = world.model(talk)
    text = "".join(itertools.islice(itertools.cycle("Größe ist 好🙂 "), 500_000))
    world.provider.play(talk.first, model, good(talk, text), chunking=chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, text)


def test_error_after_the_finish_reason_takes_nothing_back(
    world: HostileWorld, chunking: Chunking
) -> None:
    """E: an answer that has its finish reason is whole, whatever the connection does after."""
    talk = TALKS[0]
    model, voice = world.model(talk), ChatVoice()
    late = data({"error": {"message": "too late", "type": "server_error"}})
    said = [voice.opening(), *map(voice.text, HALF), voice.finish(HALF), late]
    world.provider.play("a", model, says(*said), chunking=chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, "".join(HALF))
