"""What the attempt machine hears (events) and what it asks for (actions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import FailureClass
from gateway.wire.pieces import Piece


@dataclass(frozen=True, slots=True)
class Sent:
    """The attempt's request is on its way; its first-token timer runs from here."""

    attempt: int
    first_token_timeout_s: float
    idle_s: float | None = None  # the endpoint's own, instead of the limits'
    hedge_after_s: float | None = None  # a first token later than this may be hedged
    characters_per_token: float = 4.0  # the endpoint's, for its decode rate


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes came. `pieces` may be empty: a comment, or an event still incomplete."""

    attempt: int
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Answered:
    """A plain answer came whole and is good."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt has ended by itself; its connection is closed."""

    attempt: int
    failure: FailureClass
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The endpoint may not or cannot be tried; nothing was sent and no retry is spent."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """No endpoint may be tried any more: no budget, or no ledger."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client left, or reads so slowly that it counts as gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The gateway's drain limit is reached."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Some deadline may have passed."""


Event = Sent | Read | Answered | Failed | Skipped | Blocked | ClientGone | Stop | Tick


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Reserve, build and send to this endpoint."""

    attempt: int
    endpoint_id: str
    continues: int = 0  # the attempt whose answer it is to go on with, from the text forwarded


@dataclass(frozen=True, slots=True)
class Cancel:
    """Close the attempt's connection now; `failure` is what to book it under."""

    attempt: int
    failure: FailureClass


@dataclass(frozen=True, slots=True)
class Commit:
    """From here on this attempt's answer is the client's."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The attempt's first token is here, and still kept back from the client."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Continue:
    """From here on this attempt's answer goes on where that of the attempt `of` ended."""

    attempt: int
    of: int


@dataclass(frozen=True, slots=True)
class OpenClient:
    """Send the client its status line (200) and stream headers."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Write these pieces to the client."""

    attempt: int
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Show the client a sign of life."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send the whole plain answer."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the client's stream as complete; upstream's end mark may be missing."""

    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End with an error: in band when the status line is out, else as a status."""

    attempt: int  # whose failure to tell; 0 or one that was skipped: none was tried
    failure: FailureClass | None  # None: see the attempt (blocked, skipped) or `is_shutdown`
    is_in_band: bool
    retry_after_s: float | None  # the shortest any endpoint asked for
    is_shutdown: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody listens any more: settle and end."""

    attempt: int


Action = (
    Dispatch
    | Cancel
    | Commit
    | Heard
    | Continue
    | OpenClient
    | Forward
    | KeepAlive
    | Deliver
    | Finish
    | GiveUp
    | Abandon
)
