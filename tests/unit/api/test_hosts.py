"""Which Host headers are answered."""

from __future__ import annotations

import pytest

from gateway.api.hot import check_host
from gateway.errors import InvalidRequest

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_own_names_are_answered(host: str) -> None:
    check_host(host, LOCAL)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:8000", "127.0.0.1.nip.io", "[::2]:8000"]
)
def test_a_rebound_name_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="does not answer for host"):
        check_host(host, LOCAL)


@pytest.mark.parametrize("host", ["", "a b", "a/b", "a@b", "a:99999999", "[::1", "a\r\nb", "a,b"])
def test_a_malformed_host_is_refused_whatever_is_allowed(host: str) -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        check_host(host, frozenset())


def test_a_wildcard_covers_subdomains_but_not_the_name_itself() -> None:
    allowed = frozenset({"*.example.com"})
    check_host("a.b.example.com:443", allowed)

    with pytest.raises(InvalidRequest):
        check_host("example.com", allowed)
