"""Finds the one credential of a request in all the forms that clients send it in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.errors import InvalidRequest, Unauthenticated

# OpenAI SDKs send Authorization, Anthropic's x-api-key, Azure clients api-key.
KEY_HEADERS = ("x-api-key", "api-key")
HEADER_CHARS_MAX = 1_024
_BEARER = "Bearer "


def credential(headers: Mapping[str, str]) -> str:
    """
    The key a request carries. `headers` has lower-case names; repeated values joined by a comma.

    Raises Unauthenticated when there is none, InvalidRequest when there are two different ones:
    which of them counts would otherwise be a guess, and checks could be made with the other.
    """
    value = headers.get("authorization")
    if value is not None and _is_plain(value) and not any(name in headers for name in KEY_HEADERS):
        return value[len(_BEARER) :]
    found: str | None = None
    for text in _credentials(headers):
        if found is not None and text != found:
            raise InvalidRequest(
                "two different API keys were sent; send one, as 'Authorization: Bearer lr-…' "
                "or 'x-api-key: lr-…'",
                code="ambiguous_credentials",
            )
        found = text
    if found is None:
        raise Unauthenticated(
            "no API key was sent; add the header 'Authorization: Bearer lr-…' or "
            "'x-api-key: lr-…'; keys come from: looprouter keys create"
        )
    return found


def _is_plain(value: str) -> bool:
    # The usual form, told apart without taking it to pieces.
    return (
        value.startswith(_BEARER)
        and len(_BEARER) < len(value) <= HEADER_CHARS_MAX
        and "," not in value
        and " " not in value[len(_BEARER) :]
    )


def _credentials(headers: Mapping[str, str]) -> Iterator[str]:
    value = headers.get("authorization")
    if value is not None:
        for part in _parts("authorization", value):
            scheme, _, text = part.partition(" ")
            if scheme.lower() != "bearer" or not text.strip():
                raise Unauthenticated("the Authorization header is not of the form 'Bearer lr-…'")
            yield text.strip()
    for name in KEY_HEADERS:
        value = headers.get(name)
        if value is not None:
            yield from _parts(name, value)


def _parts(name: str, value: str) -> list[str]:
    if len(value) > HEADER_CHARS_MAX:
        raise Unauthenticated(
            f"the header {name} has {len(value)} characters; at most {HEADER_CHARS_MAX}"
        )
    parts = [part.strip() for part in value.split(",")] if "," in value else [value.strip()]
    if not all(parts):
        raise Unauthenticated(f"the header {name} is empty; put the API key there")
    return parts
