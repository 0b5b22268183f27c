"""Who asks for the status page, behind proxies that are trusted and such that are not."""

from __future__ import annotations

import ipaddress

import pytest

from gateway.api.site import asking_address

TRUSTED = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1/128"))


@pytest.mark.parametrize(
    ("hops", "address"),
    [
        (["127.0.0.1"], "127.0.0.1"),
        (["203.0.113.5"], "203.0.113.5"),
        (["203.0.113.5", "10.0.0.1"], "203.0.113.5"),
        (["127.0.0.1", "203.0.113.5", "10.0.0.1"], "203.0.113.5"),  # the first is made up
        (["203.0.113.5", " 10.0.0.2", "10.0.0.1"], "203.0.113.5"),
        (["127.0.0.1", "10.0.0.1"], "127.0.0.1"),
        (["127.0.0.1", "203.0.113.5"], None),  # nobody trusts that proxy
        (["127.0.0.1", "127.0.0.1"], None),
        (["", "10.0.0.1"], None),  # it named nobody
        (["127.0.0.1", "unknown", "10.0.0.1"], None),
        (["127.0.0.1", "[::1]", "10.0.0.1"], None),
        (["10.0.0.3", "10.0.0.1"], "10.0.0.3"),
    ],
)
def test_last_address_that_no_trusted_proxy_has_counts(
    hops: list[str], address: str | None
) -> None:
    found = asking_address(hops, TRUSTED)

    assert (None if found is None else str(found)) == address


def test_without_trusted_proxies_only_the_peer_itself_counts() -> None:
    assert str(asking_address(["::1"], ())) == "::1"
    assert asking_address(["127.0.0.1", "127.0.0.1"], ()) is None
