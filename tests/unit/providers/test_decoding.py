"""Compressed bodies: the same bytes at any split, and no bombs."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.decoding import DECODED_FREE_BYTES, BodyDecoder, DecodingError


def decoded(encoding: str, body: bytes, step: int) -> bytes:
    decoder = BodyDecoder(encoding)
    out = b"".join(
        part for at in range(0, len(body), step) for part in decoder.feed(body[at : at + step])
    )
    decoder.close()
    return out


@given(st.binary(max_size=2_000), st.integers(1, 50), st.sampled_from(["gzip", "deflate", "raw"]))
def test_body_decodes_to_itself_at_any_split(body: bytes, step: int, form: str) -> None:
    if form == "gzip":
        packed = gzip.compress(body)
    elif form == "deflate":
        packed = zlib.compress(body)
    else:
        squeezer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        packed = squeezer.compress(body) + squeezer.flush()
    encoding = "gzip" if form == "gzip" else "deflate"

    assert body == decoded(encoding, packed, step)


def test_several_gzip_members_decode_as_one_body() -> None:
    assert decoded("gzip", gzip.compress(b"one") + gzip.compress(b"two"), 7) == b"onetwo"


def test_large_but_honest_body_decodes_whole() -> None:
    body = b"".join(b"line %d of the answer\n" % number for number in range(40_000))

    assert body == decoded("gzip", gzip.compress(body), 1_000)


def test_bomb_is_refused_before_it_fills_memory() -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    decoder = BodyDecoder("gzip")
    num_out = 0

    def feed_all() -> None:
        nonlocal num_out
        for at in range(0, len(bomb), 512):
            num_out += sum(len(part) for part in decoder.feed(bomb[at : at + 512]))

    with pytest.raises(DecodingError, match="bomb"):
        feed_all()

    assert num_out <= DECODED_FREE_BYTES


def test_cut_off_body_is_an_error() -> None:
    packed = gzip.compress(b"an answer that matters")
    decoder = BodyDecoder("gzip")
    decoder.feed(packed[:-4])
    with pytest.raises(DecodingError, match="middle"):
        decoder.close()


def test_garbage_is_an_error() -> None:
    with pytest.raises(DecodingError, match="broken"):
        BodyDecoder("gzip").feed(b"<html>no</html>")


def test_bytes_after_a_deflate_stream_are_an_error() -> None:
    decoder = BodyDecoder("deflate")
    with pytest.raises(DecodingError, match="follow"):
        decoder.feed(zlib.compress(b"x") + b"more")


def test_encoding_that_was_not_asked_for_is_an_error() -> None:
    with pytest.raises(DecodingError, match="identity was asked for"):
        BodyDecoder("br")
