"""Where a prompt's prefix is likely still cached, and where a new one should make its home."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

RECORDS_MAX = 16_384
PLACES_MAX = 4  # endpoints remembered for one prefix
IDLE_EXPIRY_S = 600.0
BOUNDED_LOAD = 1.25  # of the fair share
_MASK = (1 << 64) - 1


class _Place:
    __slots__ = ("at_s", "endpoint_id", "tokens")

    def __init__(self, endpoint_id: str, tokens: int, at_s: float) -> None:
        self.endpoint_id = endpoint_id
        self.tokens = tokens
        self.at_s = at_s


class Affinity:
    """
    Bounded memory of prefix or session → endpoints that served it, newest last.

    A provider keeps a prompt cache for minutes; ours forgets after 10 idle minutes.
    """

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self._records_max = records_max
        self._records: OrderedDict[str, list[_Place]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def record(self, key: str, endpoint_id: str, tokens: int, now_s: float) -> None:
        """`endpoint_id` has just read a prompt of this key, `tokens` of it cacheable."""
        places = [
            place
            for place in self._records.pop(key, ())
            if place.endpoint_id != endpoint_id and now_s - place.at_s < IDLE_EXPIRY_S
        ]
        places.append(_Place(endpoint_id, tokens, now_s))
        self._records[key] = places[-PLACES_MAX:]
        if len(self._records) > self._records_max:
            self._records.popitem(last=False)

    def tokens(self, key: str, endpoint_id: str, now_s: float) -> int:
        """Tokens of this key that the endpoint should have cached, 0 if none."""
        for place in self._records.get(key, ()):
            if place.endpoint_id == endpoint_id and now_s - place.at_s < IDLE_EXPIRY_S:
                return place.tokens
        return 0

    def expected(self, key: str, now_s: float) -> tuple[str, dict[str, int]]:
        """(the endpoint used last or "", tokens expected in each endpoint's cache)."""
        places = self._records.get(key)
        if places is None:
            return "", {}
        live = {
            place.endpoint_id: place.tokens
            for place in places
            if now_s - place.at_s < IDLE_EXPIRY_S
        }
        if not live:
            del self._records[key]
            return "", {}
        return next(reversed(live)), live

    def expected_of(self, session: str, prefix: str, now_s: float) -> tuple[str, dict[str, int]]:
        """The same for a request of both; where they differ, the session knows better."""
        last, tokens = self.expected(session, now_s) if session else ("", {})
        if prefix:
            last_of_prefix, of_prefix = self.expected(prefix, now_s)
            last = last or last_of_prefix
            for endpoint_id, num in of_prefix.items():
                tokens[endpoint_id] = max(num, tokens.get(endpoint_id, 0))
        return last, tokens


def endpoint_seed(endpoint_id: str) -> int:
    """An endpoint's 64 bits for `home`: the same in every process."""
    return int.from_bytes(blake2b(endpoint_id.encode(), digest_size=8).digest(), "little")


def key_bits(key: str) -> int:
    """The 64 bits of an affinity key, which is hex of an HMAC; any other text is hashed."""
    try:
        return int(key[:16], 16)
    except ValueError:
        return endpoint_seed(key)


def load_max(num_in_flight: int, num_endpoints: int) -> int:
    """Requests one endpoint may hold and still be a home: 1.25 × fair share, rounded up."""
    return -int(-BOUNDED_LOAD * (num_in_flight + 1) // num_endpoints)


def home(key: str, seeds: Sequence[tuple[str, int]], in_flight: Sequence[int]) -> str:
    """
    The rendezvous home of a key among endpoints that are open to it, "" if there is none.

    Bounded load: an endpoint holding 1.25 × its fair share passes the key on to the next in the
    key's own order (Mirrokni et al. 2018), so one hot prefix cannot drown one endpoint.
    """
    if not seeds:
        return ""
    bits = key_bits(key)
    limit = load_max(sum(in_flight), len(seeds))
    best, best_rank = "", -1
    for (endpoint_id, seed), load in zip(seeds, in_flight, strict=True):
        if load < limit:
            # An endpoint's own odd number makes it a hash of the key, independent of the others'.
            rank = (bits * (seed | 1)) & _MASK
            if rank > best_rank:
                best, best_rank = endpoint_id, rank
    return best
