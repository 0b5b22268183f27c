"""The network rule: which URLs and addresses pass, spelling by spelling."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import Network
from gateway.providers.netguard import ForbiddenTarget, check_address, check_url

# Every trick must be refused for a public provider; those marked also for a private one.
URL_TRICKS_NEVER = [
    "https://0.0.0.0/v1",
    "https://0/v1",
    "https://127.1/v1",
    "https://127.0.1/v1",
    "https://2130706433/v1",
    "https://0x7f000001/v1",
    "https://0x7f.0x0.0x0.0x1/v1",
    "https://0177.0.0.1/v1",
    "https://017700000001/v1",
    "https://127.0.0.01/v1",
    "https://127.0.0.1./v1",
    "https://127.0.0.0x1/v1",
    "https://1.1.1.1.1/v1",
    "https://256.1.1.1/v1",
    "https://example.1/v1",
    "https://example.0x7f/v1",
    "https://169.254.169.254/latest/meta-data",
    "https://169.254.170.2/v2/credentials",
    "https://[fe80::1]/v1",
    "https://[fe80::1%25eth0]/v1",
    "https://[fe80::1%eth0]/v1",
    "https://[::]/v1",
    "https://[::ffff:127.0.0.1]/v1",
    "https://[::ffff:7f00:1]/v1",
    "https://[::ffff:169.254.169.254]/v1",
    "https://[::ffff:8.8.8.8]/v1",
    "https://[::ffff:0:127.0.0.1]/v1",
    "https://[::127.0.0.1]/v1",
    "https://[64:ff9b::127.0.0.1]/v1",
    "https://[64:ff9b::a9fe:a9fe]/v1",
    "https://[64:ff9b:1::a9fe:a9fe]/v1",
    "https://[2002:7f00:1::]/v1",
    "https://[2002:a9fe:a9fe::1]/v1",
    "https://[2001:0:7f00:1::]/v1",
    "https://[2001:db8::1]/v1",
    "https://[fd00:ec2::254]/latest/meta-data",
    "https://[fd20:ce::254]/computeMetadata",
    "https://[ff02::1]/v1",
    "https://[fec0::1]/v1",
    "https://[100::1]/v1",
    "https://100.100.100.200/latest/meta-data",
    "https://168.63.129.16/machine",
    "https://192.0.0.192/latest",
    "https://192.0.2.1/v1",
    "https://224.0.0.1/v1",
    "https://239.255.255.250/v1",
    "https://255.255.255.255/v1",
    "https://240.0.0.1/v1",
    "https://192.88.99.1/v1",
    "https://good.example@127.0.0.1/v1",
    "https://good.example:443@127.0.0.1/v1",
    "https://user:secret@api.example/v1",
    "https://127.0.0.1#@api.example/v1",
    "https://api.example#@127.0.0.1/v1",
    "https://api.example\\@127.0.0.1/v1",
    "https:\\\\127.0.0.1/v1",
    "https://api.example\t.evil/v1",
    "https://api.example\r\nHost: evil/v1",
    "https://api.example\x00.evil/v1",
    " https://api.example/v1",
    "https://１２７.０.０.１/v1",
    "https://ⓛocalhost/v1",
    "https://127。0。0。1/v1",
    "https://%31%32%37.0.0.1/v1",
    "https://localhost%00.example/v1",
    "https://[127.0.0.1]/v1",
    "https://[::1/v1",
    "https://::1/v1",
    "https://api.example:0/v1",
    "https://api.example:/v1",
    "https://api.example:65536/v1",
    "https://api.example:4_43/v1",
    "https://api.example:-1/v1",
    "https:///v1",
    "https://.example/v1",
    "https://api..example/v1",
    "https://api.example./v1",
    "https://-/../v1",
    "https://api.example/v1/../../admin",
    "https://api.example/./v1",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ftp://api.example/v1",
    "dict://127.0.0.1:11211/stats",
    "javascript:alert(1)",
    "//127.0.0.1/v1",
    "127.0.0.1/v1",
    "",
    "https://" + "a" * 300 + ".example/v1",
    "https://api.example/" + "v" * 3000,
]
URL_TRICKS_PUBLIC = [
    "http://api.example/v1",
    "http://127.0.0.1:8100/v1",
    "https://127.0.0.1/v1",
    "https://127.8.8.8/v1",
    "https://10.0.0.1/v1",
    "https://172.16.0.1/v1",
    "https://172.31.255.255/v1",
    "https://192.168.1.1/v1",
    "https://100.64.0.1/v1",
    "https://198.18.0.1/v1",
    "https://[::1]/v1",
    "https://[0:0:0:0:0:0:0:1]/v1",
    "https://[fd12:3456::1]/v1",
    "https://[fc00::1]/v1",
]


@pytest.mark.parametrize("url", URL_TRICKS_NEVER)
@pytest.mark.parametrize("network", list(Network))
def test_url_trick_is_refused_on_every_network(url: str, network: Network) -> None:
    with pytest.raises(ForbiddenTarget):
        check_url(url, network)


@pytest.mark.parametrize("url", URL_TRICKS_PUBLIC)
def test_private_target_is_refused_for_a_public_provider(url: str) -> None:
    with pytest.raises(ForbiddenTarget):
        check_url(url, Network.PUBLIC)


@pytest.mark.parametrize("url", URL_TRICKS_PUBLIC)
def test_private_target_passes_for_a_private_provider(url: str) -> None:
    check_url(url, Network.PRIVATE)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", ("https", "api.openai.com", 443, "/v1")),
        ("https://API.example:8443", ("https", "api.example", 8443, "/")),
        ("https://8.8.8.8/v1", ("https", "8.8.8.8", 443, "/v1")),
        ("https://[2606:4700::1111]:444/v1", ("https", "2606:4700::1111", 444, "/v1")),
        (
            "https://x.openai.azure.com/a/b?api-version=1",
            ("https", "x.openai.azure.com", 443, "/a/b?api-version=1"),
        ),
        (
            "https://my_vllm-0.ns.svc.cluster.local/v1",
            ("https", "my_vllm-0.ns.svc.cluster.local", 443, "/v1"),
        ),
    ],
)
def test_ordinary_url_passes_and_is_taken_apart(
    url: str, expected: tuple[str, str, int, str]
) -> None:
    target = check_url(url, Network.PUBLIC)

    assert expected == (target.scheme, target.host, target.port, target.path)


def test_refusal_of_a_loopback_address_says_how_to_allow_it() -> None:
    with pytest.raises(ForbiddenTarget, match="network: private"):
        check_address("127.0.0.1", Network.PUBLIC)


@given(st.ip_addresses())
def test_no_address_that_python_calls_special_passes_as_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    try:
        check_address(str(address), Network.PUBLIC)
    except ForbiddenTarget:
        return

    special = {
        "private": address.is_private,
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "reserved": address.is_reserved,
        "unspecified": address.is_unspecified,
    }
    assert [name for name, holds in special.items() if holds] == []


@given(st.ip_addresses(v=4))
def test_ipv4_address_inside_an_ipv6_form_never_passes(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for base, shift in (("::ffff:0:0", 0), ("64:ff9b::", 0), ("2002::", 80), ("2001::", 0)):
        embedded = ipaddress.IPv6Address(int(ipaddress.IPv6Address(base)) | number << shift)
        with pytest.raises(ForbiddenTarget):
            check_address(str(embedded), Network.PRIVATE)
