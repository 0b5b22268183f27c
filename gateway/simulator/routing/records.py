"""What a run writes down, one row a request: numbers only, in arrays."""

from __future__ import annotations

import hashlib

import msgspec

NOT_SENT = -1


class Served(msgspec.Struct, kw_only=True, gc=False):
    """How one request fared."""

    idx: int
    at_s: float
    done_s: float = 0.0  # from its arrival until its answer was complete, or it was given up
    ttft_s: float = 0.0  # from its arrival to the first token that its client kept
    first: int = NOT_SENT  # index of the endpoint tried first
    winner: int = NOT_SENT  # index of the endpoint whose answer it got
    num_attempts: int = 0
    cost_nanos: int = 0  # of all attempts
    useful_characters: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    has_failed: bool = False
    explored: bool = False
    replica: int = 0


class EventLog:
    """A digest of every event in order, and the lines themselves if they are wanted."""

    def __init__(self, *, keep_lines: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep_lines else None

    def add(self, now_s: float, what: str, idx: int, where: str = "") -> None:
        line = f"{now_s!r} {what} {idx} {where}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
