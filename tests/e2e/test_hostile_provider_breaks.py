"""Streams that break off: reset, cut short, failed in band, too large. The gateway never lies.

Rows of reliability.md E, each at three cuts of the bytes, in every dialect and across dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.hostile_provider import CHUNKINGS, Chunking, Gate, Script, Turn
from tests.support.hostile_world import (
    CHAT,
    CHAT_OF_MESSAGES,
    COMPLETIONS,
    MESSAGES,
    MESSAGES_OF_CHAT,
    RESPONSES,
    TALKS,
    HostileWorld,
    Talk,
    hostile_world,
)
from tests.support.voices import DONE, USED

pytestmark = pytest.mark.e2e

HALF = ("Half an answer, ", "said by the first – and then")
STAND_BY = ("The stand-by ", "answers in its own words.")
GLUE = ("NEVER GLUE THIS ON",)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileWorld]:
    with hostile_world(tmp_path_factory.mktemp("breaks"), num_models=110) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)


def good(talk: Talk, *texts: str) -> Script:
    """A provider that does everything right."""

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        said = [voice.opening(), *map(voice.text, texts), voice.finish(texts), voice.end()]
        await turn.stream(*said)

    return script


def half(talk: Talk, ending: Callable[[Turn], object], gate: Gate | None = None) -> Script:
    """Half an answer; when the client has it, `ending`."""

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        await turn.begin()
        await turn.say(voice.opening(), *map(voice.text, HALF))
        if gate is not None:
            await gate.passed()
        done = ending(turn)
        if hasattr(done, "__await__"):
            await done  # type: ignore[misc]  # a coroutine, as just asked

    return script


def opens(gate: Gate, text: str) -> Callable[[bytes], None]:
    """Opens the gate once the client has this text."""

    def see(got: bytes) -> None:
        if text.encode() in got:
            gate.open()

    return see


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
    # Nobody knows what the first has generated: its prompt is the operator's to pay.
    lost = round((float(row["provider_cost"]) - float(row["cost"])) * 1e9)
    assert lost > 0
    world.owes(f"{talk.first}/{model}", lost, billed=0)


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
