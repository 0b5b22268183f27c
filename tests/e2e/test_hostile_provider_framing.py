"""Streams that are framed in every way the standards allow, and in some that they do not.

The parser's line and the framing rows of reliability.md E; gateways.md 4.9 and 4.8.
"""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.hostile_provider import CHUNKINGS, Chunking, Script, Turn
from tests.support.hostile_scripts import HALF, STAND_BY, good, says
from tests.support.hostile_world import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TALKS,
    HostileWorld,
    Talk,
    hostile_world,
)

pytestmark = pytest.mark.e2e

# One to four bytes each, joined emoji, a combining mark, right-to-left, the noncharacter U+FFFF's
# neighbours, NUL's stand-in and what JSON escapes.
WORLDLY = ("Grüße – ", "日本語、", "👩‍🚀🙂 e\u0301 ", "שלום ", '\ufffd\u2028 \\ " \u0007 ', "end")
WHOLE = "".join(HALF)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("framing")
    with hostile_world(home, request.session, num_models=50) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)


def frames(talk: Talk, *texts: str) -> bytes:
    """A good answer's whole stream."""
    voice = talk.voice()
    return b"".join([voice.opening(), *map(voice.text, texts), voice.finish(texts), voice.end()])


def play(
    world: HostileWorld, talk: Talk, script: Script, chunking: Chunking, *, stand_by: str = ""
) -> str:
    model = world.model(talk, is_shared=not stand_by)
    world.provider.play(talk.first, model, script, chunking=chunking)
    if stand_by:
        world.provider.play(talk.second, model, good(talk, stand_by))
    return model


@every_talk
def test_characters_split_over_reads_arrive_byte_for_byte(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: UTF-8 split across chunks; at one byte every character is split everywhere."""
    model = play(world, talk, good(talk, *WORLDLY), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, "".join(WORLDLY))


@pytest.mark.parametrize("talk", [CHAT, MESSAGES, RESPONSES], ids=lambda talk: talk.name)
def test_emoji_cut_in_two_json_escapes_is_sent_on_as_it_came(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: UTF-8 split, in JSON's own way: half a surrogate pair in each of two events."""
    said = frames(talk, "@1@", "@2@", "!")
    said = said.replace(b"@1@", rb"\ud83d").replace(b"@2@", rb"\ude42")
    model = play(world, talk, says(said), chunking)
    heard = world.ask(talk, model)

    joined = "".join(heard.texts).encode("utf-16", "surrogatepass").decode("utf-16")
    assert joined == "🙂!"
    heard.texts = [joined]
    world.check_good(talk, model, heard, "🙂!")


@every_talk
def test_invalid_utf8_becomes_the_replacement_character(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: invalid UTF-8: U+FFFD as the standard puts it, one for each ill-formed part."""
    broken = b"a\xff b\xc3( c\xed\xa0\x80 d\xf0\x9f\x99 e\xc0\xaf"
    said = frames(talk, "@", "fine").replace(b"@", broken)
    model = play(world, talk, says(said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, broken.decode("utf-8", "replace") + "fine")
    assert b"\xff" not in heard.body


FRAMINGS: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda said: said.replace(b"\n", b"\r\n"),
    "cr": lambda said: said.replace(b"\n", b"\r"),
    "mixed": lambda said: said.replace(b"\n\n", b"\r\n\r").replace(b"}\r\n", b"}\n"),
    "byte_order_mark": lambda said: b"\xef\xbb\xbf" + said,
    "no_space": lambda said: said.replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
    "multi_line_data": lambda said: said.replace(b'{"', b'{\ndata: "'),
    "comments": lambda said: b": hello\n\n:\n" + said.replace(b"\n\n", b"\n\n: OPENROUTER\n\n"),
    "ids_and_retries": lambda said: said.replace(b"data: {", b"id: 7\nretry: 1\ndata: {"),
    "unknown_fields": lambda said: b"nonsense\n" + said.replace(b"data: {", b"x: y\ndata: {"),
    "empty_events": lambda said: said.replace(b"\n\n", b"\n\n\n\ndata:\n\n"),
}  # fmt: skip


@every_talk
@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_of_the_standard_is_one_normal_form_for_the_client(
    world: HostileWorld, talk: Talk, framing: str, chunking: Chunking
) -> None:
    """E: multi-line data, CRLF, comments, `event:`/`id:`/`retry:`; the parser's line."""
    said = FRAMINGS[framing](frames(talk, *HALF))
    assert framing != "multi_line_data" or said.count(b"\ndata:") > 8
    model = play(world, talk, says(said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)
    assert heard.num_comments == 0  # the upstream's are not forwarded
    assert b"\r" not in heard.body
    assert b"\nid:" not in heard.body


@every_talk
def test_last_event_without_its_blank_line_is_discarded(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E, parser: an event that the end of the stream cuts off was never dispatched."""
    said = frames(talk, *HALF) + talk.voice().text("never said").rstrip(b"\n")
    model = play(world, talk, says(said), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, WHOLE)


@every_talk
def test_literal_end_mark_inside_the_text_ends_nothing(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """Gateways 4.9: `[DONE]`, `data: [DONE]` and `message_stop` are words like any other."""
    texts = ("[DONE]", "\n\ndata: [DONE]\n\n", "event: message_stop\n", "data: ", "[DONE]", "!")
    model = play(world, talk, good(talk, *texts), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, "".join(texts))


def encoded(talk: Talk, encoding: str, pack: Callable[[bytes], bytes], *texts: str) -> Script:
    async def script(turn: Turn) -> None:
        assert turn.request.header("accept-encoding") == "identity"
        await turn.begin(content_encoding=encoding)
        await turn.say(pack(frames(talk, *texts)))
        await turn.end()

    return script


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "two_gzip_members": ("gzip", lambda d: gzip.compress(d[:100]) + gzip.compress(d[100:])),
    "deflate": ("deflate", zlib.compress),
    "raw_deflate": ("deflate", raw_deflate),
}


@every_talk
@pytest.mark.parametrize("packer", PACKERS)
def test_stream_compressed_though_identity_was_asked_for_is_decoded(
    world: HostileWorld, talk: Talk, packer: str, chunking: Chunking
) -> None:
    """E: gzip/br SSE: identity is asked for; what is encoded still is decoded as it comes."""
    encoding, pack = PACKERS[packer]
    model = play(world, talk, encoded(talk, encoding, pack, *WORLDLY), chunking)
    heard = world.ask(talk, model)

    world.check_good(talk, model, heard, "".join(WORLDLY))
    assert "content-encoding" not in heard.headers


@every_talk
def test_encoding_that_cannot_be_decoded_falls_over(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: gzip/br SSE, an encoding nobody asked for and that needs a library of its own."""
    brotli = encoded(talk, "br", lambda data: data, *HALF)
    model = play(world, talk, brotli, chunking, stand_by="".join(STAND_BY))
    heard = world.ask(talk, model)

    row = world.check_good(talk, model, heard, "".join(STAND_BY), provider=talk.second)
    assert row["num_attempts"] == 2
    world.owes_lost_prompt(talk, model, row)


@functools.cache
def packed_bomb() -> bytes:
    """200 MB of one comment in 200 kB."""
    return gzip.compress(b": " + b"x" * 200_000_000 + b"\n\n")


@every_talk
def test_compressed_bomb_is_refused_in_bounded_memory(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: gzip/br SSE, with its output cap (ratio 100)."""

    async def bomb(turn: Turn) -> None:
        await turn.begin(content_encoding="gzip")
        await turn.say(packed_bomb())
        await turn.end()

    model = play(world, talk, bomb, chunking, stand_by="".join(STAND_BY))
    before = world.gateway_bytes()
    heard = world.ask(talk, model)

    row = world.check_good(talk, model, heard, "".join(STAND_BY), provider=talk.second)
    assert row["num_attempts"] == 2
    assert world.gateway_bytes() - before < 100_000_000
    world.owes_lost_prompt(talk, model, row)


@every_talk
def test_compressed_stream_cut_in_the_middle_is_a_broken_stream(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: gzip SSE and reset mid-stream at once: what was decoded was said, the rest is missing."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    voice = talk.voice()
    said = packer.compress(voice.opening() + b"".join(map(voice.text, HALF)))
    said += packer.flush(zlib.Z_SYNC_FLUSH)

    async def cut(turn: Turn) -> None:
        await turn.begin(content_encoding="gzip")
        await turn.say(said)
        await turn.end()

    model = world.model(talk)
    world.provider.play(talk.first, model, cut, chunking=chunking)
    heard = world.ask(talk, model)

    world.check_broken(talk, model, heard, WHOLE, "stream_interrupted")
