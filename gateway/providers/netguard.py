"""The network rule: which URLs and addresses an outgoing connection may have (one place for all).

`check_url` reads a base URL strictly, `check_address` judges one resolved address. A name is
resolved and every address of it is judged at each *new connection*, and the connection is made to
the judged address, so a second DNS answer cannot change the target (rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.core import Network
from gateway.errors import LoopRouterError

URL_CHARS_MAX = 2_048

# Refused whatever the provider's `network` says. Metadata services hand out credentials; the IPv6
# forms below carry an IPv4 address inside, which a router may unwrap behind our back.
_NEVER = (
    ("0.0.0.0/8", "unspecified"),
    ("169.254.0.0/16", "link-local (cloud metadata)"),
    ("100.100.100.200/32", "a cloud metadata service"),
    ("168.63.129.16/32", "a cloud metadata service"),
    ("192.0.0.0/24", "reserved by IETF protocols"),
    ("192.0.2.0/24", "documentation only"),
    ("198.51.100.0/24", "documentation only"),
    ("203.0.113.0/24", "documentation only"),
    ("192.88.99.0/24", "6to4 relay"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved or broadcast"),
    ("::/128", "unspecified"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("100::/64", "discard-only"),
    ("2001::/23", "Teredo or another IETF protocol form"),
    ("2001:db8::/32", "documentation only"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation only"),
    ("5f00::/16", "segment routing"),
    ("fd00:ec2::/32", "a cloud metadata service"),
    ("fd20:ce::/32", "a cloud metadata service"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)
# Allowed only with `network: private`.
_PRIVATE = (
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared (carrier-grade NAT)"),
    ("127.0.0.0/8", "loopback"),
    ("172.16.0.0/12", "private"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("::1/128", "loopback"),
    ("fc00::/7", "unique local"),
)
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")

_Networks = tuple[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], ...]


def _compiled(rows: tuple[tuple[str, str], ...], version: int) -> _Networks:
    networks = ((ipaddress.ip_network(text), why) for text, why in rows)
    return tuple((network, why) for network, why in networks if network.version == version)


_NEVER_BY_VERSION = {version: _compiled(_NEVER, version) for version in (4, 6)}
_PRIVATE_BY_VERSION = {version: _compiled(_PRIVATE, version) for version in (4, 6)}

# Letters, digits, hyphen, underscore (seen in container names) and dots; no trailing dot.
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{1,63})*\Z")
_LOOKS_NUMERIC = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)\Z")
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\<>\"^`{}|]")


class ForbiddenTarget(LoopRouterError):
    """The network rule refuses this URL or address. The message says which rule and the way out."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL, taken apart."""

    scheme: str
    host: str  # lower case; an IPv6 literal without brackets
    port: int
    path: str  # with the query, always begins with "/"


def check_url(url: str, network: Network) -> Target:
    """Read `url` by the strict rule that every parser agrees on, or raise ForbiddenTarget.

    Only plain host names and canonical address literals pass: no user part, no fragment, no
    percent-encoded or non-ASCII host, none of the octal, hexadecimal or shortened IPv4 spellings.
    """
    if len(url) > URL_CHARS_MAX:
        raise ForbiddenTarget(f"URL is longer than {URL_CHARS_MAX} characters")
    if _FORBIDDEN_CHARACTERS.search(url):
        raise ForbiddenTarget(f"{url!r}: only printable ASCII without spaces or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ForbiddenTarget(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in ("https", "http"):
        raise ForbiddenTarget(f"{url!r}: the scheme must be https (http only on private networks)")
    if parts.scheme == "http" and network is not Network.PRIVATE:
        raise ForbiddenTarget(
            f"{url!r}: plain http is allowed only for a provider with `network: private`"
        )
    if "@" in parts.netloc or parts.fragment or "#" in url:
        raise ForbiddenTarget(f"{url!r}: user names, passwords and fragments are not allowed")
    if port == 0 or parts.netloc.endswith(":"):
        raise ForbiddenTarget(f"{url!r}: the port must be 1 to 65535")
    if "/../" in f"{parts.path}/" or "/./" in f"{parts.path}/":
        raise ForbiddenTarget(f"{url!r}: dot segments are not allowed in the path")
    host = _checked_host(parts.hostname or "", parts.netloc, network)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)


def _checked_host(host: str, netloc: str, network: Network) -> str:
    if netloc.startswith("["):
        if "%" in host:
            raise ForbiddenTarget(f"[{host}]: IPv6 zone ids are not allowed")
        check_address(host, network)
        return host
    if "%" in netloc or not _HOST_NAME.match(host):
        raise ForbiddenTarget(f"{host!r} is not a plain host name")
    if _LOOKS_NUMERIC.match(host.rsplit(".", 1)[-1]):
        # A last label that reads as a number makes the whole name an IPv4 address for some
        # resolvers (WHATWG URL, "ends in a number"), so only the canonical form may stand here.
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise ForbiddenTarget(f"{host!r} is not a canonical IPv4 address") from error
        check_address(host, network)
    return host


def check_address(address: str, network: Network) -> None:
    """Raise ForbiddenTarget unless a connection to this address literal is allowed."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise ForbiddenTarget(f"{address!r} is not an IP address") from error
    for block, why in _NEVER_BY_VERSION[parsed.version]:
        if parsed in block:
            raise ForbiddenTarget(f"{address} is {why}; it is refused on every network")
    for block, why in _PRIVATE_BY_VERSION[parsed.version]:
        if parsed in block:
            if network is Network.PRIVATE:
                return
            raise ForbiddenTarget(
                f"{address} is {why}; set `network: private` for this provider in the policy "
                "file if that is meant"
            )
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _GLOBAL_IPV6:
        raise ForbiddenTarget(f"{address} is not a global unicast address")
