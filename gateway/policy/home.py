"""The one place where the policy lives, seen by who may change it; `app` brings it.

A file is the policy's home when the gateway serves a file, the database when it serves `store`.
Nothing is kept beside it that could say otherwise: who publishes writes there, and what is there
comes into force by the same way as a change by hand.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What lies there now, good or bad."""

    text: bytes
    version: str
    fault: str = ""  # why it is not in force; "" = it is


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A new text, and who puts it into force and why."""

    text: bytes
    version: str  # of `text`
    base: str  # the version that it was made from, and that it may replace
    actor: str
    action: str
    note: str


class PolicyHome(Protocol):
    """A policy's file, or the database."""

    @property
    def kind(self) -> Literal["file", "store"]: ...

    @property
    def place(self) -> str:
        """The path; "" for the database."""

    @property
    def text(self) -> bytes:
        """Of the policy in force."""

    async def held(self) -> Held:
        """Raises OSError where the file cannot be read."""

    async def locked(self) -> str:
        """Why this process cannot write there; "" = it can."""

    async def publish(self, change: Change) -> None:
        """
        Replace what lies there; back when it is in force. The text must be known to load.

        Raises Conflict where something else lies there than `base`, or it cannot be written.
        """
