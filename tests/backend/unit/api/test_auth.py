"""Keys and the salt that keeps tenants apart."""

from __future__ import annotations

import pytest

from backend.api.auth import Keys, check_local, tenant_salt
from backend.api.problems import NotLocal, WrongKey
from backend.errors import BadRequest


def test_server_without_keys_lets_everybody_in() -> None:
    assert Keys().is_open
    assert Keys().check({}) == b""


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer  first-key"},
        {"x-api-key": "first-key"},
    ],
)
def test_known_key_is_taken_in_either_header(headers: dict[str, str]) -> None:
    assert Keys(["first-key", "second-key"]).check(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong-key"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer first-key, Bearer other"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer first-key\u00e9"},
        {"x-api-key": ""},
    ],
)
def test_anything_else_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(WrongKey):
        Keys(["first-key"]).check(headers)


def test_salts_differ_by_key_and_by_tenant_and_are_empty_where_nobody_is_told_apart() -> None:
    keys = Keys(["first-key", "second-key"])
    first = keys.check({"x-api-key": "first-key"})
    second = keys.check({"x-api-key": "second-key"})
    tenants = [{}, {"x-looprouter-tenant": "a"}, {"x-looprouter-tenant": "b"}]

    salts = {tenant_salt(key, tenant) for key in (b"", first, second) for tenant in tenants}

    assert len(salts) == 9
    assert tenant_salt(b"", {}) == b""
    assert tenant_salt(first, tenants[1]) == tenant_salt(first, tenants[1])


def test_tenant_of_any_length_is_not_taken() -> None:
    with pytest.raises(BadRequest, match="x-looprouter-tenant"):
        tenant_salt(b"", {"x-looprouter-tenant": "x" * 300})


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8100"},
        {"host": "localhost"},
        {"host": "[::1]:8100", "origin": "http://localhost:3000"},
    ],
)
def test_own_machine_may_ask_a_server_without_keys(headers: dict[str, str]) -> None:
    check_local(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "evil.example"},
        {"host": "localhost.evil.example:8100"},
        {"host": "localhost", "origin": "https://evil.example"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost", "origin": ""},
        {"host": "[::1"},
    ],
)
def test_web_page_may_not_ask_a_server_without_keys(headers: dict[str, str]) -> None:
    with pytest.raises(NotLocal):
        check_local(headers)
