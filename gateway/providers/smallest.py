"""The cheapest request that an endpoint can answer: what a probe sends."""

from __future__ import annotations

import msgspec

from gateway.core import Endpoint
from gateway.providers.adapter import upstream_surface
from gateway.wire.pieces import Surface
from gateway.wire.translate import CannotTranslate

PROBE_TOKENS_MAX = 8
PROBE_PROMPT = "ping"


def smallest_request(
    endpoint: Endpoint, *, is_stream: bool = False, tokens_max: int = PROBE_TOKENS_MAX
) -> tuple[Surface, bytes]:
    """A few tokens of chat; of an endpoint without any, one embedding, which never streams."""
    try:
        upstream_surface(endpoint, Surface.CHAT)
    except CannotTranslate:
        body = {"model": endpoint.id, "input": PROBE_PROMPT}
        return Surface.EMBEDDINGS, msgspec.json.encode(body)
    asked: dict[str, object] = {
        "model": endpoint.id,
        "max_tokens": tokens_max,
        "messages": [{"role": "user", "content": PROBE_PROMPT}],
    }
    if is_stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return Surface.CHAT, msgspec.json.encode(asked)
