"""One function finds the credential in all forms, and refuses two."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest, Unauthenticated
from gateway.keys.credentials import HEADER_CHARS_MAX, credential


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer lr-a"},
        {"authorization": "bearer lr-a"},
        {"authorization": "BEARER  lr-a "},
        {"x-api-key": "lr-a"},
        {"api-key": " lr-a "},
        {"authorization": "Bearer lr-a", "x-api-key": "lr-a", "api-key": "lr-a"},
        {"authorization": "Bearer lr-a, Bearer lr-a"},
        {"x-api-key": "lr-a, lr-a"},
    ],
)
def test_each_form_gives_the_key(headers: dict[str, str]) -> None:
    assert credential(headers) == "lr-a"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer lr-a", "x-api-key": "lr-b"},
        {"authorization": "Bearer lr-a", "api-key": "lr-b"},
        {"x-api-key": "lr-a", "api-key": "lr-b"},
        {"authorization": "Bearer lr-a, Bearer lr-b"},
        {"x-api-key": "lr-a,lr-b"},
    ],
)
def test_two_different_credentials_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="two different") as caught:
        credential(headers)

    assert caught.value.code == "ambiguous_credentials"
    assert "lr-a" not in caught.value.message


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "no API key"),
        ({"authorization": ""}, "empty"),
        ({"authorization": "Bearer"}, "form"),
        ({"authorization": "Bearer "}, "form"),
        ({"authorization": "Basic dXNlcg=="}, "form"),
        ({"authorization": "lr-a"}, "form"),
        ({"authorization": "Bearer lr-a,"}, "empty"),
        ({"x-api-key": " "}, "empty"),
        ({"x-api-key": "x" * (HEADER_CHARS_MAX + 1)}, "at most"),
        ({"authorization": "Bearer " + "x" * HEADER_CHARS_MAX}, "at most"),
    ],
)
def test_missing_or_misformed_credentials_are_401(headers: dict[str, str], says: str) -> None:
    with pytest.raises(Unauthenticated, match=says):
        credential(headers)


def test_key_with_a_space_inside_is_not_cut() -> None:
    assert credential({"authorization": "Bearer lr-a b"}) == "lr-a b"
