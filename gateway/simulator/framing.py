"""What the four streaming surfaces share: frames, ids, and usage as OpenAI counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from gateway.simulator.answers import Answer, Kind
from gateway.simulator.asks import Ask
from gateway.simulator.meter import Tally

encode = msgspec.json.Encoder().encode
FINGERPRINT = "fp_simulated"


class Frame(NamedTuple):
    """Bytes for the socket and the tokens generated in them; a frame with none is sent at once."""

    data: bytes
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer on its way out."""

    id: str  # without a surface's prefix
    created_unix_s: int
    model: str
    ask: Ask
    answer: Answer
    prompt: Tally  # the prompt's buckets; outputs 0
    tokens_per_event: int
    usage_every_event: bool
    service_tier: str = "standard"  # as messages tell it


def data_frame(payload: Any) -> bytes:
    return b"data: " + encode(payload) + b"\n\n"


def named_frame(event: str, payload: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + encode(payload) + b"\n\n"


def counted(data: bytes, kind: Kind, num_tokens: int) -> Frame:
    if kind is Kind.REASONING:
        return Frame(data, 0, num_tokens)
    return Frame(data, num_tokens, 0)


def openai_usage(prompt: Tally, output: int, reasoning: int) -> dict[str, Any]:
    completion = output + reasoning
    return {
        "prompt_tokens": prompt.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": prompt.cached_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def logprob_of(token: str) -> float:
    """A fixed made-up value per token: shape without meaning."""
    return -round((sum(token.encode()) % 97) / 100, 4)
