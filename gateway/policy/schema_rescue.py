"""`rescue` of the policy YAML: what is done about slow attempts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.policy.units import DURATION_PATTERN

Grace = Annotated[str, Meta(pattern=DURATION_PATTERN, examples=["150ms", "3s", "24h"])]
AutoOrDuration = Annotated[
    str, Meta(pattern=f"^auto$|{DURATION_PATTERN}", examples=["auto", "20s"])
]


class DecodeFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a running stream counts as too slow. While the client has seen nothing of it, the
    request begins again at the next endpoint; after that only `continue_by_prefill` helps."""

    tokens_per_second: Annotated[float, Meta(gt=0, description="Slower than this…")] = 5.0
    grace: Annotated[
        Grace,
        Meta(
            description="…for so long. Reasoning is held back from the client for at most as long, "
            "so that the request can still begin again."
        ),
    ] = "3s"


class Hedge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second attempt at the next endpoint, beside a stream whose first token is later than
    95 % of that endpoint's are. The first to generate wins; the other is cancelled, and what it
    cost is yours, not the client's. The key's budget must have room for both."""

    share_max: Annotated[
        float,
        Meta(ge=0, le=1, description="At most this share of a process's requests; 0 = none."),
    ] = 0.0


class Rescue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done about a slow attempt."""

    first_token_timeout: Annotated[
        AutoOrDuration,
        Meta(description="auto: three times the endpoint's own p99, between 10 s and 120 s."),
    ] = "auto"  # noqa: S105 - a timeout, no secret
    decode_floor: Annotated[
        DecodeFloor | None, Meta(description="Rescue streams slower than this. Left out: none.")
    ] = None
    hedge: Annotated[Hedge, Meta(description="Second attempts before the first token.")] = Hedge()
    continue_by_prefill: Annotated[
        bool,
        Meta(
            description="A chat stream that breaks, or falls below decode_floor, is continued in "
            "the same answer by the next endpoint with assistant_prefill, from the text sent so "
            "far. Text alone: no tools, reasoning, JSON, n > 1 or translated answers."
        ),
    ] = False
