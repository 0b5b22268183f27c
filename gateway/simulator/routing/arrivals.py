"""What comes in: requests by arrival time, with the lengths and prefixes of a trace."""

from __future__ import annotations

import msgspec

BLOCK_TOKENS = 512  # of one prefix block, as in Mooncake's trace


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as the world knows it. Routers see an `Ask`, without its output length."""

    at_s: float  # since the start of the run
    prompt_tokens: int
    output_tokens: int  # that its answer will have, by the reference tokenizer
    blocks: tuple[int, ...] = ()  # ids of its 512-token prefix blocks; equal id = same text
    session: str = ""  # "" = belongs to none
    deadline_s: float | None = None  # from its arrival; None = someone is waiting


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]
    duration_s: float

    @property
    def requests_per_s(self) -> float:
        return len(self.arrivals) / self.duration_s if self.duration_s > 0.0 else 0.0
