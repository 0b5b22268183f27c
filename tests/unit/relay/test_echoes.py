"""A provider's words without our key in them."""

from __future__ import annotations

import pytest

from gateway.relay.echoes import Echoes
from gateway.wire.pieces import WireError

SECRET = "sk-provider-0123456789"


def test_key_is_taken_out_of_text_and_bytes_wherever_it_stands() -> None:
    echoes = Echoes(SECRET)

    assert echoes.text(f"no: {SECRET}, {SECRET}") == "no: [redacted], [redacted]"
    assert echoes.raw(f'{{"k":"{SECRET}"}}'.encode()) == b'{"k":"[redacted]"}'


def test_bytes_without_the_key_stay_the_same_object() -> None:
    data = b'{"error": {}}'

    assert Echoes(SECRET).raw(data) is data
    assert Echoes().raw(data) is data


@pytest.mark.parametrize("secret", [None, "", "none", "EMPTY"])
def test_placeholder_keys_redact_no_ordinary_words(secret: str | None) -> None:
    assert Echoes(secret).text("none EMPTY") == "none EMPTY"


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("invalid_api_key", "invalid_api_key"),
        ("context_length_exceeded", "context_length_exceeded"),
        ("1113", "1113"),
        ("a sentence about the request", ""),
        (SECRET, ""),
        ("x" * 65, ""),
        ("a\nb", ""),
    ],
)
def test_code_is_a_word_or_nothing(code: str, kept: str) -> None:
    error = Echoes(SECRET).error(WireError(message="m", type=code, code=code, status=400))

    assert (error.code, error.type, error.status) == (kept, kept, 400)


@pytest.mark.parametrize(
    ("value", "is_passed"),
    [
        (b"req_011CSHoEeqs5C35K2UUqR7Fy", True),
        (b"0af7651916cd43dd8448eb211c80319c-FRA", True),
        (b"12", True),
        (SECRET.encode(), False),
        (b"Bearer x", False),
        (b"a\r\nset-cookie: b=c", False),
        (b"", False),
        (b"x" * 129, False),
    ],
)
def test_header_is_an_id_or_dropped(value: bytes, is_passed: bool) -> None:
    assert Echoes(SECRET).header(value) == (value if is_passed else None)
