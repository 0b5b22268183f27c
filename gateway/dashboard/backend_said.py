"""What our backend says of itself: `/v1/load` and `/health` as the page reads them.

Only the members that make a server ours must be there. An older or a newer one may have fewer or
more; what it has must be of the right kind, and tables and lists have an end.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

WORKLOADS_MAX = 32
PLACES_MAX = 64
BATCHES_MAX = 64
DECISIONS_MAX = 64
OPS_MAX = 128

Count = Annotated[int, Meta(ge=0, le=1 << 48)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Word = Annotated[str, Meta(max_length=200)]
Words = Annotated[str, Meta(max_length=2_000)]
Places = Annotated[list[Count], Meta(max_length=PLACES_MAX)]


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Figures(_Said, frozen=True):
    """Of one kind of work, since the server's start."""

    workload: Word
    num_drafts: Count = 0
    num_draft_tokens: Count = 0
    num_accepted_tokens: Count = 0
    num_at_risk: Places = []
    num_accepted: Places = []
    num_timed_rounds: Count = 0
    round_s: Amount = 0.0
    round_plain_s: Amount = 0.0
    num_timed_steps: Count = 0
    step_s: Amount = 0.0
    step_plain_s: Amount = 0.0


class Check(_Said, frozen=True):
    """Acceptance held against what was recorded when the head was trained."""

    workload: Word
    num_rounds: Count = 0
    recorded: Amount | None = None
    found: Amount | None = None
    is_low: bool = False


class Decision(_Said, frozen=True):
    at_unix_s: Amount
    what: Word
    method: Word = ""
    num_drafts: Count = 0
    why: Words = ""


_Table = Annotated[dict[Count, dict[Count, Amount]], Meta(max_length=BATCHES_MAX)]


_Counts = Annotated[dict[Count, dict[Count, Count]], Meta(max_length=BATCHES_MAX)]


class Speculation(_Said, frozen=True):
    method: Word = "none"
    num_drafts_max: Count = 0
    num_drafts_now: Count | None = None  # null: its version does not tell
    why_now: Word = ""
    num_steps_by_why: Annotated[dict[Word, Count], Meta(max_length=PLACES_MAX)] = {}
    step_s: _Table = {}
    num_steps: _Counts = {}
    figures: Annotated[list[Figures], Meta(max_length=WORKLOADS_MAX)] = []
    acceptance_checks: Annotated[list[Check], Meta(max_length=WORKLOADS_MAX)] = []
    decisions: Annotated[list[Decision], Meta(max_length=DECISIONS_MAX)] | None = None


class Load(_Said, frozen=True):
    """`GET /v1/load`. Model, version and the counts are what no other server's page has."""

    model: Word
    version: Word
    status: Word
    num_running: Count
    num_waiting: Count
    kv_blocks_total: Count
    kv_blocks_used: Count
    waiting_prompt_tokens: Count = 0
    sequences_max: Count = 0
    waiting_max: Count = 0
    kv_block_tokens: Count = 0
    context_len: Count = 0
    tokens_per_s: Amount = 0.0
    prompt_tokens_per_s: Amount = 0.0
    num_preemptions: Count = 0
    decode_step_s: Annotated[dict[Count, Amount], Meta(max_length=256)] = {}
    prefill_token_s: Amount = 0.0
    speculation: Speculation | None = None


class Kernels(_Said, frozen=True):
    doctor: Words = ""
    served_by: Annotated[dict[Word, Word], Meta(max_length=OPS_MAX)] = {}
    withheld: Annotated[dict[Word, Words], Meta(max_length=OPS_MAX)] = {}


class Health(_Said, frozen=True):
    """`GET /health`, whatever its status."""

    status: Word
    model: Word = ""
    version: Word = ""
    error: Words = ""
    uptime_s: Amount = 0.0
    family: Word = ""
    device: Word = ""
    dtype: Word = ""
    quantization: Word = ""
    threads: Count = 0
    file_format: Word = ""
    weight_bytes: Count = 0
    load_s: Amount = 0.0
    kernels: Kernels | None = None


def read_load(body: bytes) -> Load:
    """Raises msgspec.ValidationError or DecodeError for what our server does not say."""
    return msgspec.json.decode(body, type=Load)


def read_health(body: bytes) -> Health | None:
    """None for what is no account of health: the page then shows less."""
    try:
        return msgspec.json.decode(body, type=Health)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
