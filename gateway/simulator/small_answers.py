"""The simulated provider's answers that are not generated text: embeddings, models, errors."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.simulator.asks import Ask
from gateway.simulator.framing import encode
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.words import text_rng
from gateway.wire.pieces import SURFACE_DIALECT, Dialect, Surface

EMBEDDING_DIMENSIONS = 256

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def embeddings(ask: Ask, model: str) -> bytes:
    """One unit vector an input, the same for the same text."""
    dimensions = ask.dimensions or EMBEDDING_DIMENSIONS
    listed = []
    for index, text in enumerate(ask.inputs):
        vector = _unit_vector(text, dimensions)
        value: Any = (
            base64.b64encode(vector.tobytes()).decode()
            if ask.is_base64
            else [float(each) for each in vector]
        )
        listed.append({"object": "embedding", "index": index, "embedding": value})
    tokens = ask.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return encode({"object": "list", "data": listed, "model": model, "usage": usage})


def _unit_vector(text: str, dimensions: int) -> npt.NDArray[np.float32]:
    seed = text_rng(text.encode("utf-8", "replace"), dimensions).getrandbits(64)
    vector = np.random.default_rng(seed).standard_normal(dimensions)
    unit: npt.NDArray[np.float32] = (vector / np.linalg.norm(vector)).astype("<f4")
    return unit


def models(profile: ProviderProfile, dialect: Dialect, created_unix_s: int) -> bytes:
    if dialect is Dialect.ANTHROPIC:
        entry: dict[str, Any] = {
            "type": "model",
            "id": profile.model,
            "display_name": f"{profile.model} (simulated)",
            "created_at": "2026-01-01T00:00:00Z",
        }
        listing = {"has_more": False, "first_id": profile.model, "last_id": profile.model}
        return encode({"data": [entry], **listing})
    entry = {
        "id": profile.model,
        "object": "model",
        "created": created_unix_s,
        "owned_by": "simulated",
        "context_length": profile.context_tokens_max,
    }
    return encode({"object": "list", "data": [entry]})


def count_tokens(ask: Ask) -> bytes:
    return encode({"input_tokens": ask.prompt_tokens})


def error_body(
    surface: Surface | None,
    status: int,
    message: str,
    *,
    request_id: str,
    param: str | None = None,
    code: str | None = None,
) -> bytes:
    """The error in the dialect of the surface; an unknown path answers as OpenAI."""
    dialect = SURFACE_DIALECT[surface] if surface is not None else Dialect.OPENAI
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "api_error")
        error: dict[str, Any] = {"type": kind, "message": message}
        return encode({"type": "error", "error": error, "request_id": request_id})
    kind = _OPENAI_TYPES.get(status, "server_error")
    return encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


HTML_PAGE = (
    b"<!DOCTYPE html><html><head><title>Simulated proxy</title></head>"
    b"<body><h1>Something went wrong</h1></body></html>"
)
