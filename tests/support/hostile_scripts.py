"""Scripts that several hostile tests play: a good answer, half an answer, and a client's watch."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from tests.support.hostile_provider import Gate, Script, Turn
from tests.support.hostile_world import Talk
from tests.support.voices import USED, Tokens

HALF = ("Half an answer, ", "said by the first – and then")
STAND_BY = ("The stand-by ", "answers in its own words.")
GLUE = ("NEVER GLUE THIS ON",)


def good(talk: Talk, *texts: str, usage: Tokens = USED) -> Script:
    """A provider that does everything right, plain or streaming as it was asked."""

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        if not turn.body.get("stream"):
            await turn.answer(voice.plain("".join(texts), usage))
            return
        said = [voice.opening(usage), *map(voice.text, texts), voice.finish(texts, usage)]
        await turn.stream(*said, voice.end())

    return script


def half(talk: Talk, ending: Callable[[Turn], Any], gate: Gate | None = None) -> Script:
    """Half an answer, then, when the client has it (`gate`), `ending`, awaited if it can be."""

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        await turn.begin()
        await turn.say(voice.opening(), *map(voice.text, HALF))
        if gate is not None:
            await gate.passed()
        done = ending(turn)
        if inspect.isawaitable(done):
            await done

    return script


def says(*parts: bytes, content_type: str = "text/event-stream") -> Script:
    """Exactly these bytes as a stream that is whole as HTTP goes."""

    async def script(turn: Turn) -> None:
        await turn.stream(*parts, content_type=content_type)

    return script


def answers(body: bytes | dict[str, Any], status: int = 200, **headers: str) -> Script:
    """This whole answer, whatever was asked."""

    async def script(turn: Turn) -> None:
        await turn.answer(body, status, **headers)

    return script


def opens(gate: Gate, text: str) -> Callable[[bytes], None]:
    """An `on_bytes` that opens the gate once the client has this text."""

    def see(got: bytes) -> None:
        if text.encode() in got:
            gate.open()

    return see


async def silence(turn: Turn) -> None:
    """Nothing at all, until the gateway gives up."""
    await turn.until_client_leaves()


async def silence_after(turn: Turn, *parts: bytes) -> None:
    """These parts, and then nothing until the gateway gives up."""
    await turn.begin()
    await turn.say(*parts)
    await turn.until_client_leaves()


async def murmur(turn: Turn, part: bytes, every_s: float) -> None:
    """The same bytes again and again, until the gateway gives up."""
    leaving = asyncio.create_task(turn.until_client_leaves())
    while not leaving.done():
        try:
            await turn.say(part)
        except ConnectionError:
            break
        await asyncio.wait([leaving], timeout=every_s)
    await leaving
