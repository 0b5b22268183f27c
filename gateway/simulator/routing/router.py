"""The seam between the world and whoever chooses: what a router may know, and must answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway.core import AttemptOutcome, PriceRow, Rng

EPOCH_S = 1_800_000_000.0  # unix time at the start of a run, where its world names none


class Ask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as a gateway sees it when it must choose: nobody knows how long it will be."""

    idx: int  # its number in the run
    prompt_tokens: int
    prefix_key: str = ""  # hash of the prompt's beginning, hex; "" = too short to share
    session_key: str = ""
    deadline_s: float | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What can be looked up about an endpoint before anything was sent there."""

    endpoint_id: str
    tokens_per_s: float  # as listed: true for the calm world's start, and for nothing later
    ttft_s: float  # as listed
    requests_per_minute: int | None = None  # its published limit


class Oracle(Protocol):
    """What only the world knows. For the clairvoyant baselines."""

    def time_s(self, idx: int, endpoint_id: str, now_s: float) -> float:
        """Seconds until this request would be complete if sent there now; inf if it would fail."""
        ...

    def mean_time_s(self, idx: int, endpoint_id: str, now_s: float) -> float:
        """The same without this request's own noise: for one who knows means, not draws."""
        ...


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """All that a router is built from."""

    listings: tuple[Listing, ...]
    prices: Callable[[str, float], PriceRow]  # (endpoint id, now_s) → the row in force
    rng: Rng  # seeded: one of each router's own
    oracle: Oracle
    epoch_s: float = EPOCH_S  # unix time at the start
    now_s: float = 0.0  # since then, when it is built


class NowhereNow(Exception):
    """Only a free place is missing: asking again soon may help."""

    def __init__(self, free_in_s: float) -> None:
        super().__init__(f"every endpoint is full; one may be free in {free_in_s:.1f} s")
        self.free_in_s = free_in_s


class Router(Protocol):
    """
    Chooses and learns, as one replica of a gateway would.

    The world drives the product's own attempt machine with `order`, whoever the router is, so
    failover, time-outs and retries are the same for all of them.
    """

    name: str
    explored: bool  # the last `order` was an exploration, not its best guess

    def order(self, ask: Ask, now_s: float) -> Sequence[str]:
        """
        Endpoint ids, best first. Empty: nobody may be asked, and the request has failed.

        Raises NowhereNow where the request may wait for a place.
        """
        ...

    def may_send(self, endpoint_id: str, now_s: float) -> bool:
        """Asked right before each attempt leaves; False passes on to the next of the order."""
        ...

    def started(self, endpoint_id: str, now_s: float) -> int:
        """An attempt leaves for there; `ended` follows. How many are in flight there, with it."""
        ...

    def first_token(self, endpoint_id: str, now_s: float) -> None:
        """The first token of a stream from there has gone to its client."""
        ...

    def ended(self, outcome: AttemptOutcome, now_s: float) -> None:
        """An attempt is over: stamps, counts and failure, as the gateway's relay reports them."""
        ...

    def listed(self, listings: tuple[Listing, ...], now_s: float) -> None:
        """The operator's list of endpoints has changed."""
        ...

    def first_token_timeout_s(self, endpoint_id: str, ask: Ask) -> float:
        """How long to wait for a first token."""
        ...
