"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from backend.api.answering import collect, send_json, send_stream, usage_json
from backend.api.bodies import NUM_CHOICES_MAX, CompletionsBody
from backend.api.context import Asked
from backend.api.fields import decode_body, wrong
from backend.api.logprobs import text_logprobs
from backend.serving.choice import Delta
from backend.serving.generation import Generation, Usage, tokens_left
from backend.serving.prompting import Prompt, TextSide
from backend.serving.tokenizer import Tokenizer

MAX_TOKENS_DEFAULT = 16  # OpenAI's
_DECODER = msgspec.json.Decoder(CompletionsBody)


async def completions(asked: Asked) -> None:
    body = decode_body(_DECODER, asked.body)
    asked.check_model(body.model)
    body.check()
    service = asked.server.service
    loaded = service.loaded
    if asked.is_large:
        prompts = await asyncio.to_thread(_prompts, body, loaded.text)
    else:
        prompts = _prompts(body, loaded.text)
    max_tokens = body.max_tokens or MAX_TOKENS_DEFAULT
    for prompt in prompts:
        tokens_left(len(prompt.token_ids), max_tokens, loaded.context_len, param="prompt")
    params = body.params(
        max_tokens=max_tokens, logprobs=body.logprobs, vocab_size=loaded.model.vocab_size
    )
    generation = Generation(service, prompts, asked.wanted(body, params))
    tokenizer = loaded.text.tokenizer
    writer = TextWriter(f"cmpl-{asked.request_id}", body, tokenizer, _echoes(body, prompts))
    if body.stream:
        usage_chunk = writer.usage_chunk if body.includes_usage else None
        await send_stream(asked.exchange, generation, writer.chunks, usage_chunk)
    else:
        gathered = await collect(asked.exchange, generation)
        await send_json(asked.exchange, writer.answer(gathered, generation.usage))


def _prompts(body: CompletionsBody, text: TextSide) -> list[Prompt]:
    given = body.prompts()
    if len(given) * (body.n or 1) > NUM_CHOICES_MAX:
        raise wrong("prompt", f"times n gives more than {NUM_CHOICES_MAX} answers; send fewer")
    stops = body.stops()
    return [text.raw_prompt(each, stops) for each in given]


def _echoes(body: CompletionsBody, prompts: Sequence[Prompt]) -> list[str]:
    """What stands before each choice's answer."""
    num = body.n or 1
    if not body.echo:
        return [""] * (len(prompts) * num)
    texts = [
        given
        if isinstance(given, str)
        else prompt.shape.tokenizer.decode(prompt.token_ids, shows_control=True)
        for given, prompt in zip(body.prompts(), prompts, strict=True)
    ]
    return [text for text in texts for _ in range(num)]


class TextWriter:
    """Deltas as OpenAI's JSON: chunks of a stream, or the whole answer."""

    def __init__(
        self, answer_id: str, body: CompletionsBody, tokenizer: Tokenizer, echoes: list[str]
    ) -> None:
        self._head = {
            "id": answer_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }
        self._has_logprobs = body.logprobs is not None
        self._shows_usage = body.includes_usage
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._has_begun: set[int] = set()
        self._offsets = [0] * len(echoes)

    def chunks(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """One."""
        text = delta.content
        if index not in self._has_begun:
            self._has_begun.add(index)
            text = self._echoes[index] + text
        made = {**self._head, "choices": [self._choice(index, text, delta)]}
        if self._shows_usage:
            made["usage"] = None
        yield made

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage_json(usage)}

    def answer(self, gathered: Sequence[Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        choices = []
        for idx, deltas in enumerate(gathered):
            logprobs = [entry for each in deltas for entry in each.logprobs]
            whole = Delta(logprobs=logprobs, finish=deltas[-1].finish)
            text = self._echoes[idx] + "".join(each.content for each in deltas)
            choices.append(self._choice(idx, text, whole))
        return {**self._head, "choices": choices, "usage": usage_json(usage)}

    def _choice(self, index: int, text: str, delta: Delta) -> dict[str, Any]:
        logprobs = None
        if self._has_logprobs:
            logprobs = text_logprobs(delta.logprobs, self._tokenizer, self._offsets[index])
            self._offsets[index] += sum(map(len, logprobs["tokens"]))
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish}
