"""What a simulated provider counts and charges: prompt-cache hits, token buckets, the invoice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from gateway.simulator.words import BYTES_PER_TOKEN

CACHE_BLOCKS_MAX = 200_000
INVOICE_LINES_MAX = 1_000_000
CLOSED_MAX = 10_000
PICOS_PER_NANO = 1_000


@dataclass(slots=True)
class Tally:
    """Tokens of one request by bucket. Outputs grow as they are generated."""

    input: int = 0
    cached_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0  # reasoning not included
    reasoning: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.input + self.cached_read + self.cache_write_5m + self.cache_write_1h

    @property
    def completion_tokens(self) -> int:
        return self.output + self.reasoning


def cost_nanos(price: SimulatedPrice, tally: Tally) -> int:
    """Nano-dollars, rounded up once over the whole request."""
    reasoning = price.output if price.reasoning is None else price.reasoning
    picos = (
        tally.input * price.input
        + tally.cached_read * price.cached_read
        + tally.cache_write_5m * price.cache_write_5m
        + tally.cache_write_1h * price.cache_write_1h
        + tally.output * price.output
        + tally.reasoning * reasoning
    )
    return -(-picos // PICOS_PER_NANO)


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request that did billable work."""

    id: str
    client_request_id: str  # as the client sent it in x-client-request-id, "" if it did not
    surface: str
    model: str
    at_s: float  # when the request arrived, on the provider's clock
    ended: str  # "complete" | "client_gone" | "hang" | "cut"
    input: int
    cached_read: int
    cache_write_5m: int
    cache_write_1h: int
    output: int
    reasoning: int
    cost_nanos: int


@dataclass(slots=True)
class Books:
    """What one provider has seen and charged since its last reset."""

    lines_max: int = INVOICE_LINES_MAX
    lines: list[InvoiceLine] = field(default_factory=list)
    total_nanos: int = 0
    requests_seen: int = 0
    completed: int = 0
    cancelled: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    closed: list[dict[str, object]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self.lines_max

    def charge(self, line: InvoiceLine) -> None:
        self.lines.append(line)
        self.total_nanos += line.cost_nanos

    def count_status(self, status: int) -> None:
        name = str(status)
        self.statuses[name] = self.statuses.get(name, 0) + 1

    def count_fault(self, mode: str) -> None:
        self.faults[mode] = self.faults.get(mode, 0) + 1

    def note_cancelled(self, request_id: str, *, at_s: float, tokens: int) -> None:
        """A client left before its answer was complete; the last CLOSED_MAX are kept."""
        self.cancelled += 1
        self.closed.append({"id": request_id, "at_s": at_s, "tokens_written": tokens})
        del self.closed[:-CLOSED_MAX]


class PrefixCache:
    """Which prompt prefixes were seen lately, in whole blocks, the oldest forgotten first."""

    def __init__(self, blocks_max: int = CACHE_BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._seen_at_s: OrderedDict[bytes, float] = OrderedDict()

    def clear(self) -> None:
        self._seen_at_s.clear()

    def look_up(self, profile: ProviderProfile, prompt: bytes, now_s: float) -> int:
        """Tokens of `prompt` found in the cache; the whole prompt is in it afterwards."""
        hashes = _block_hashes(prompt, profile.cache_block_tokens)
        num_hits = 0
        for block in hashes:
            seen_at_s = self._seen_at_s.get(block)
            if seen_at_s is None or now_s - seen_at_s > profile.cache_ttl_s:
                break
            num_hits += 1
        for block in hashes:
            self._seen_at_s[block] = now_s
            self._seen_at_s.move_to_end(block)
        while len(self._seen_at_s) > self._blocks_max:
            self._seen_at_s.popitem(last=False)
        tokens = num_hits * profile.cache_block_tokens
        return tokens if tokens >= profile.cache_tokens_min else 0


def _block_hashes(prompt: bytes, block_tokens: int) -> list[bytes]:
    """One hash a whole block, each over everything before it too (so equal means same prefix)."""
    size = block_tokens * BYTES_PER_TOKEN
    hashes: list[bytes] = []
    rolling = blake2b(digest_size=8)
    for start in range(0, len(prompt) - size + 1, size):
        rolling.update(prompt[start : start + size])
        hashes.append(rolling.digest())
    return hashes
