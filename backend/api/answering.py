"""Sends a generation as a stream of events or as one answer, and sees the client leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from backend.api.exchange import JSON_HEADERS, ClientLeft, Exchange, Headers
from backend.api.problems import problem_body
from backend.serving.choice import Delta
from backend.serving.generation import Generation, Usage
from gateway.wire.sse import encode_event

STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
SIGN_OF_LIFE = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"

Chunks = Callable[[int, Delta], Iterable[dict[str, Any]]]


@asynccontextmanager
async def running(exchange: Exchange, generation: Generation) -> AsyncIterator[None]:
    """Whatever ends the block, nothing of the generation goes on behind it."""
    exchange.when_gone(generation.abandon)
    try:
        yield
    finally:
        generation.close()


async def send_stream(
    exchange: Exchange,
    generation: Generation,
    chunks: Chunks,
    usage_chunk: Callable[[Usage], dict[str, Any]] | None,
) -> None:
    """The status goes out with the first delta, or with the first sign of life before it.

    Until then an error is raised, with a status of its own; later it is the stream's last event.
    """
    async with running(exchange, generation):
        try:
            async for news in generation.deltas():
                if not exchange.is_started:
                    await exchange.start(200, STREAM_HEADERS)
                encoded = [_event(chunk) for idx, delta in news for chunk in chunks(idx, delta)]
                await exchange.send(b"".join(encoded) or SIGN_OF_LIFE)
        except ClientLeft:
            raise
        except Exception as error:
            if not exchange.is_started:
                raise
            await exchange.send(encode_event(problem_body(error)[1]))
            await exchange.finish()
            return
    if exchange.gone.is_set():
        raise ClientLeft
    last = b"" if usage_chunk is None else _event(usage_chunk(generation.usage))
    await exchange.send(last + DONE)
    await exchange.finish()


async def collect(exchange: Exchange, generation: Generation) -> list[list[Delta]]:
    """Every choice's deltas. Raises ClientLeft, and what ends the generation."""
    gathered: list[list[Delta]] = [[] for _ in range(generation.num_choices)]
    async with running(exchange, generation):
        async for news in generation.deltas():
            for idx, delta in news:
                gathered[idx].append(delta)
    if exchange.gone.is_set():
        raise ClientLeft
    return gathered


async def send_json(exchange: Exchange, value: object) -> None:
    await exchange.answer(200, JSON_HEADERS, msgspec.json.encode(value))


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _event(chunk: dict[str, Any]) -> bytes:
    return encode_event(msgspec.json.encode(chunk))
