"""The text of a key: its shape, its checksum, and what is kept of it."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.keys import virtual_key
from gateway.keys.virtual_key import MalformedKey, hash_secret, mint, parse, tenant_secret

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@given(st.binary(min_size=48, max_size=48))
def test_any_random_bytes_make_a_key_that_parses(noise: bytes) -> None:
    left = [noise]

    def take(num_bytes: int) -> bytes:
        left[0], taken = left[0][num_bytes:], left[0][:num_bytes]
        return taken

    minted = mint(random_bytes=take)
    parsed = parse(minted.key)

    assert len(minted.key) == virtual_key.KEY_CHARS == 60
    assert minted.key.startswith("lr-" + minted.id)
    assert (parsed.id, parsed.secret) == (minted.id, minted.secret)
    assert set(minted.key[3:]) <= set(ALPHABET)


def test_secret_carries_all_its_256_bits() -> None:
    secrets = {mint(random_bytes=lambda n, b=b: bytes([b] * n)).secret for b in (0, 1, 127, 255)}

    assert len(secrets) == 4
    assert virtual_key.base62(2**256 - 1, virtual_key.SECRET_CHARS)
    with pytest.raises(AssertionError):
        virtual_key.base62(2**256 - 1, virtual_key.SECRET_CHARS - 1)


@given(st.integers(3, 59), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_seen_by_the_checksum(place: int, character: str) -> None:
    key = mint().key
    wrong = key[:place] + character + key[place + 1 :]
    if wrong == key:
        assert parse(wrong).id == key[3:11]
    else:
        with pytest.raises(MalformedKey, match="mistyped"):
            parse(wrong)


@given(st.integers(3, 58))
def test_two_swapped_characters_are_seen_by_the_checksum(place: int) -> None:
    key = mint(random_bytes=lambda n: bytes(range(n))).key
    swapped = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
    if swapped != key:
        with pytest.raises(MalformedKey, match="mistyped"):
            parse(swapped)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins with 'lr-'"),
        ("sk-proj-canary", "provider's own key"),
        ("lr-canary", "has 9 characters instead of 60"),
        (mint().key + "\n", "damaged"),
        (mint().key[:-1] + "é", "damaged"),
        ("LR-" + mint().key[3:], "begins with 'lr-'"),
    ],
    # The keys are random; names that stay the same let several processes share the tests.
    ids=["empty", "provider-key", "short", "newline", "not-ascii", "upper-case"],
)
def test_other_text_is_no_key_and_is_not_repeated(text: str, says: str) -> None:
    with pytest.raises(MalformedKey) as caught:
        parse(text)

    assert says in str(caught.value)
    assert "canary" not in str(caught.value)


def test_hash_is_hmac_sha256_under_the_pepper() -> None:
    expected = hmac.new(b"pepper", b"secret", hashlib.sha256).digest()

    assert expected == hash_secret(b"pepper", "secret")
    assert hash_secret(b"other", "secret") != expected


def test_secrets_of_two_tenants_differ() -> None:
    assert tenant_secret(b"p", "a") != tenant_secret(b"p", "b")
    assert tenant_secret(b"p", "a") != tenant_secret(b"q", "a")


def test_reprs_hold_no_secret() -> None:
    minted = mint()

    assert minted.secret not in repr(minted) + repr(parse(minted.key))
