"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from backend.api.answering import collect, send_json, send_stream, usage_json
from backend.api.bodies import ChatBody, MessageBody, ToolChoiceBody
from backend.api.context import Asked
from backend.api.fields import decode_body, plain, wrong
from backend.api.logprobs import chat_logprobs
from backend.serving.choice import Delta
from backend.serving.generation import Generation, Usage, tokens_left
from backend.serving.prompting import ChatRequest
from backend.serving.tokenizer import Tokenizer
from backend.serving.tool_calls import ToolCall

_DECODER = msgspec.json.Decoder(ChatBody)


async def chat_completions(asked: Asked) -> None:
    body = decode_body(_DECODER, asked.body)
    asked.check_model(body.model)
    body.check()
    service = asked.server.service
    loaded = service.loaded
    chat = chat_request(body)
    if asked.is_large:
        prompt = await asyncio.to_thread(loaded.text.chat_prompt, chat)
    else:
        prompt = loaded.text.chat_prompt(chat)
    params = body.params(
        max_tokens=tokens_left(len(prompt.token_ids), body.tokens_wanted, loaded.context_len),
        logprobs=body.num_logprobs,
        vocab_size=loaded.model.vocab_size,
    )
    generation = Generation(service, [prompt], asked.wanted(body, params))
    writer = ChatWriter(f"chatcmpl-{asked.request_id}", body, loaded.text.tokenizer)
    if body.stream:
        usage_chunk = writer.usage_chunk if body.includes_usage else None
        await send_stream(asked.exchange, generation, writer.chunks, usage_chunk)
    else:
        gathered = await collect(asked.exchange, generation)
        await send_json(asked.exchange, writer.answer(gathered, generation.usage))


def chat_request(body: ChatBody) -> ChatRequest:
    """Raises BadRequest for content that is not text."""
    tools = body.tools if body.tool_choice != "none" else None
    forced: str | None = None
    if isinstance(body.tool_choice, ToolChoiceBody):
        forced = body.tool_choice.function.name
    elif body.tool_choice == "required":
        forced = ""
    return ChatRequest(
        messages=[_message(each, idx) for idx, each in enumerate(body.messages)],
        tools=[plain(each) for each in tools or ()],
        forced_tool=forced,
        is_one_call=body.parallel_tool_calls is False or bool(forced),
        stops=body.stops(),
        variables=_variables(body),
    )


def _message(message: MessageBody, idx: int) -> dict[str, Any]:
    made: dict[str, Any] = plain(message)
    if isinstance(message.content, list):
        texts = []
        for place, part in enumerate(message.content):
            if part.type != "text" or part.text is None:
                raise wrong(
                    f"messages[{idx}].content[{place}]",
                    f"is of type {part.type[:40]!r}; this model reads text only",
                )
            texts.append(part.text)
        made["content"] = "\n".join(texts)
    made.setdefault("content", "")  # templates take a string
    return made


def _variables(body: ChatBody) -> dict[str, Any]:
    made: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort == "none":
        made.setdefault("enable_thinking", False)
    elif body.reasoning_effort is not None:
        made.setdefault("reasoning_effort", body.reasoning_effort)
    return made


class ChatWriter:
    """Deltas as OpenAI's JSON: chunks of a stream, or the whole answer."""

    def __init__(self, answer_id: str, body: ChatBody, tokenizer: Tokenizer) -> None:
        self._head = {"id": answer_id, "created": int(time.time()), "model": body.model}
        self._has_logprobs = body.logprobs is True
        self._shows_usage = body.includes_usage
        self._tokenizer = tokenizer
        self._has_begun: set[int] = set()
        self._num_calls: dict[int, int] = {}

    def chunks(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Usually one; the end stands in a chunk of its own, as the SDKs' helpers expect."""
        said: dict[str, Any] = {}
        if index not in self._has_begun:
            self._has_begun.add(index)
            said["role"] = "assistant"
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.content:
            said["content"] = delta.content
        if delta.calls:
            said["tool_calls"] = [self._call_delta(index, call) for call in delta.calls]
        if said or delta.logprobs:
            if "role" in said:
                said.setdefault("content", "")
            yield self._chunk(index, said, delta, None)
        if delta.finish is not None:
            yield self._chunk(index, {}, Delta(), delta.finish)

    def _call_delta(self, index: int, call: ToolCall) -> dict[str, Any]:
        position = self._num_calls.get(index, 0)
        self._num_calls[index] = position + 1
        return {"index": position, **_call(call)}

    def _chunk(
        self, index: int, said: dict[str, Any], delta: Delta, finish: str | None
    ) -> dict[str, Any]:
        logprobs = chat_logprobs(delta.logprobs, self._tokenizer) if delta.logprobs else None
        choice = {"index": index, "delta": said, "logprobs": logprobs, "finish_reason": finish}
        made = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._shows_usage:
            made["usage"] = None
        return made

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage_json(usage),
        }

    def answer(self, gathered: Sequence[Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(idx, deltas) for idx, deltas in enumerate(gathered)],
            "usage": usage_json(usage),
        }

    def _choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any]:
        content = "".join(each.content for each in deltas)
        calls = [call for each in deltas for call in each.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if reasoning := "".join(each.reasoning for each in deltas):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [_call(each) for each in calls]
        logprobs = [entry for each in deltas for entry in each.logprobs]
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(logprobs, self._tokenizer) if self._has_logprobs else None,
            "finish_reason": deltas[-1].finish,
        }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
