"""Logprobs in the two forms that OpenAI's surfaces have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.engine.interface import TokenLogprob
from backend.serving.tokenizer import Tokenizer

# JSON has no -infinity; this is what OpenAI sends for a token that cannot be drawn.
LOGPROB_MIN = -9999.0


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    return {
        "content": [
            {
                **_token(each.token_id, each.logprob, tokenizer),
                "top_logprobs": [_token(*best, tokenizer) for best in each.top],
            }
            for each in logprobs
        ],
        "refusal": None,
    }


def text_logprobs(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `offset`: in characters of the answer so far."""
    tokens = [_text(each.token_id, tokenizer) for each in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(each.logprob) for each in logprobs],
        "top_logprobs": [
            {_text(token_id, tokenizer): _finite(logprob) for token_id, logprob in each.top}
            for each in logprobs
        ],
        "text_offset": offsets,
    }


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": _text(token_id, tokenizer),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _text(token_id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
