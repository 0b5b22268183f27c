"""The times and sizes that the attempt machine keeps to."""

from __future__ import annotations

from dataclasses import dataclass

BUFFERED_BYTES_MAX = 64 * 1024

# A stream without one generated token is a true answer only if it ended for one of other reasons
# than "the model was done", or if the provider says that it generated something (hidden reasoning).
DONE_FINISHES = frozenset({"", "stop", "end_turn", "completed", "stop_sequence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """Times in seconds; where they come from: reliability A.2 and E."""

    is_stream: bool
    num_choices: int = 1
    retries_max: int = 2  # attempts after the first, each on another endpoint; of one model
    total_s: float = 600.0  # the whole request
    idle_s: float = 30.0  # no byte from upstream, after the first token
    content_s: float = 300.0  # no content, though bytes (comments) may come
    trailer_s: float = 5.0  # what may follow the finish reason: usage, end mark
    early_open_s: float = 10.0  # the status line goes out even without a token
    keep_alive_s: float = 15.0  # silence towards the client; 0 = no keep-alives
    buffered_bytes_max: int = BUFFERED_BYTES_MAX  # before commit
    decode_floor_tokens_per_s: float | None = None  # slower streams are rescued; None = none are
    decode_floor_grace_s: float = 3.0  # … when they are for so long
