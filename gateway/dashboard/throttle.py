"""How often one may try to log in, by address and by name; kept in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cachetools import LRUCache

from gateway.errors import RateLimited

WINDOW_S = 900.0
PER_ADDRESS_MAX = 20
PER_NAME_MAX = 10
REMEMBERED_MAX = 20_000


class LoginThrottle:
    """
    Failed and unfinished tries of the last WINDOW_S. Each replica counts for itself.

    A try counts from its beginning, so that many at once do not all slip through; one that was
    right is taken back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tries: dict[str, LRUCache[str, deque[float]]] = {
            "address": LRUCache(REMEMBERED_MAX),
            "name": LRUCache(REMEMBERED_MAX),
        }

    def begin(self, address: str, name: str) -> None:
        """Count a try. RateLimited, alike for known and unknown names, when it is one too many."""
        now_s = self._clock()
        counted = []
        for kind, who, most in (
            ("address", address, PER_ADDRESS_MAX),
            ("name", name, PER_NAME_MAX),
        ):
            tries = self._tries[kind].setdefault(who, deque())
            while tries and tries[0] <= now_s - WINDOW_S:
                tries.popleft()
            if len(tries) >= most:
                wait_s = tries[0] + WINDOW_S - now_s
                raise RateLimited(
                    f"too many tries to log in; wait {wait_s / 60:.0f} minutes",
                    retry_after_s=wait_s,
                )
            counted.append(tries)
        for tries in counted:
            tries.append(now_s)

    def succeeded(self, address: str, name: str) -> None:
        """Take back the newest try of both: it was right."""
        for kind, who in (("address", address), ("name", name)):
            tries = self._tries[kind].get(who)
            if tries:
                tries.pop()
