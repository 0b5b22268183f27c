"""Mooncake's public traces (FAST'25): arrivals, lengths and the 512-token blocks of each prompt.

kvcache-ai/Mooncake, `FAST25-release/traces/*.jsonl`, Apache-2.0. Equal block id = same text up to
there. Which requests belong to one session is not said, so `session` stays empty.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from gateway.simulator.routing.arrivals import BLOCK_TOKENS
from gateway.simulator.routing.workloads.traces import Trace, TraceError, read_text

FOLDER = "mooncake"
FILES = {"conversation": "conversation_trace.jsonl", "synthetic": "synthetic_trace.jsonl"}
# The conversation trace's stamps come every three seconds, some twelve requests on each.
STAMP_STEPS_S = {"conversation": 3.0, "synthetic": 0.0}
COMMON_SHARE_MIN = 0.5  # a block in more requests than this is everyone's: the system prompt


class _Line(msgspec.Struct):
    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_DECODER = msgspec.json.Decoder(_Line)


def mooncake(traces_dir: Path, kind: str) -> Trace:
    """The trace `kind` ("conversation" or "synthetic") from the folder of traces."""
    return read_mooncake(traces_dir / FOLDER / FILES[kind], STAMP_STEPS_S[kind])


@lru_cache(maxsize=4)
def read_mooncake(path: Path, stamp_step_s: float = 0.0) -> Trace:
    """One JSONL file. A request may be shorter than its blocks say by one part block only."""
    rows: list[_Line] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            row = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(path, f"line {number}: {error}") from error
        if row.input_length < 1 or row.output_length < 1:
            raise TraceError(path, f"line {number}: lengths must be positive")
        if min(row.hash_ids, default=0) < 0:
            raise TraceError(path, f"line {number}: block ids must not be negative")
        if len(row.hash_ids) > -(-row.input_length // BLOCK_TOKENS):
            raise TraceError(path, f"line {number}: more blocks than {row.input_length} tokens")
        if rows and row.timestamp < rows[-1].timestamp:
            raise TraceError(path, f"line {number}: goes back in time")
        rows.append(row)
    if len(rows) < 2 or rows[-1].timestamp == rows[0].timestamp:
        raise TraceError(path, "holds fewer than two requests, or all at one instant")
    at_s = np.array([row.timestamp - rows[0].timestamp for row in rows]) / 1_000
    after_last_s = stamp_step_s or float(at_s[-1]) / (len(rows) - 1)
    return Trace(
        at_s=at_s,
        prompt_tokens=np.array([row.input_length for row in rows], dtype=np.int64),
        output_tokens=np.array([row.output_length for row in rows], dtype=np.int64),
        span_s=float(at_s[-1]) + after_last_s,
        blocks=tuple(row.hash_ids for row in rows),
        common_blocks=_common(rows),
        stamp_step_s=stamp_step_s,
    )


def _common(rows: list[_Line]) -> frozenset[int]:
    """Blocks that most requests begin with. They stay shared when copies are overlaid."""
    counts: dict[int, int] = {}
    for row in rows:
        for block in row.hash_ids:
            counts[block] = counts.get(block, 0) + 1
    return frozenset(block for block, seen in counts.items() if seen > COMMON_SHARE_MIN * len(rows))
