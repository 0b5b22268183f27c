"""A complete (non-streaming) answer read for money, lengths and hidden failure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.deltas import Count, Delta, count_delta
from gateway.wire.errors import error_of, is_html, read_error
from gateway.wire.pieces import Surface, WireError
from gateway.wire.reading import decode_event, decode_value, text_len, tier_text, usage_tier
from gateway.wire.usage import Usage
from gateway.wire.usage_read import read_usage, reported_cost_nanos


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a 200 said. `error` is set when it was no answer; then the rest means nothing."""

    usage: Usage | None = None
    cost_nanos: int | None = None
    error: WireError | None = None
    visible_chars: int = 0
    reasoning_chars: int = 0
    tool_chars: int = 0
    finish: str = ""
    model: str = ""
    protocol_faults: int = 0
    tier: str = ""  # the service tier it was served at; "" = the answer does not say


class _Choice(msgspec.Struct):
    message: Delta | None = None
    text: Any = None
    finish_reason: Any = None
    error: Any = None


class _Block(msgspec.Struct):
    """A content block, output item or content part; absent fields are None."""

    type: Any = ""
    text: Any = None
    refusal: Any = None
    thinking: Any = None
    name: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")
    arguments: Any = None
    content: Any = None
    summary: Any = None


class _Incomplete(msgspec.Struct):
    reason: Any = None


class _Body(msgspec.Struct):
    """All surfaces at once; each reads its own members."""

    model: Any = ""
    type: Any = ""
    object: Any = ""
    error: Any = None
    usage: Any = None
    service_tier: Any = None  # messages say it inside usage
    choices: list[_Choice] | None = None  # chat, completions
    content: list[_Block] | None = None  # messages
    stop_reason: Any = None
    status: Any = None  # responses
    output: list[_Block] | None = None
    incomplete_details: _Incomplete | None = None
    data: list[msgspec.Raw] | None = None  # embeddings, models
    input_tokens: Any = None  # count_tokens


_BODY = msgspec.json.Decoder(_Body)


def read_answer(surface: Surface, body: bytes) -> Answer:
    """Read the body of a 200. Never raises: what is no answer of this surface becomes an error."""
    said = decode_event(_BODY, body) if body.lstrip()[:1] == b"{" else None
    if said is None:
        return Answer(error=_no_answer(body))
    usage = read_usage(surface, said.usage)
    if said.error or said.type == "error" or said.object == "error":
        return Answer(error=read_error(body, 0), usage=usage)
    count = Count()
    finish = _READERS[surface](said, count)
    if finish is None:
        error = error_of(decode_value(body)) or WireError(
            message=f"the upstream's answer is no {surface} answer: {_MISSING[surface]} is missing",
            type="server_error",
            code="malformed_answer",
        )
        return Answer(error=error, usage=usage)
    if finish == "error":
        return Answer(error=_choice_error(said), usage=usage)
    return Answer(
        usage=usage,
        cost_nanos=reported_cost_nanos(said.usage),
        visible_chars=count.visible,
        reasoning_chars=count.reasoning,
        tool_chars=count.tool,
        finish=finish,
        model=said.model if isinstance(said.model, str) else "",
        # Counts that no provider can mean: they are not billed, and somebody should hear of it.
        protocol_faults=int(usage is None and bool(said.usage)),
        tier=tier_text(said.service_tier) or tier_text(usage_tier(said.usage)),
    )


def _read_choices(said: _Body, count: Count) -> str | None:
    if not said.choices:
        return None
    for choice in said.choices:
        if choice.error:
            return "error"
        if choice.message is not None:
            count_delta(count, choice.message)
        count.visible += text_len(choice.text)
    reason = said.choices[0].finish_reason
    return str(reason) if reason else ""


def _read_message(said: _Body, count: Count) -> str | None:
    if said.content is None:
        return None
    for block in said.content:
        _count_block(count, block)
    return str(said.stop_reason) if said.stop_reason else ""


def _read_response(said: _Body, count: Count) -> str | None:
    if said.status == "failed":
        return "error"
    if said.output is None:
        return None
    for item in said.output:
        if item.type == "reasoning":
            count.reasoning += _parts_len(item.summary) + _parts_len(item.content)
        elif item.type == "message":
            count.visible += _parts_len(item.content)
        else:
            _count_block(count, item)
    details = said.incomplete_details
    reason = details.reason if details is not None else None
    return str(reason or said.status or "completed")


def _read_list(said: _Body, count: Count) -> str | None:
    return None if said.data is None else ""


def _read_count(said: _Body, count: Count) -> str | None:
    return "" if type(said.input_tokens) is int else None


_READERS: dict[Surface, Any] = {
    Surface.CHAT: _read_choices,
    Surface.COMPLETIONS: _read_choices,
    Surface.MESSAGES: _read_message,
    Surface.RESPONSES: _read_response,
    Surface.EMBEDDINGS: _read_list,
    Surface.MODELS: _read_list,
    Surface.COUNT_TOKENS: _read_count,
}
_MISSING: dict[Surface, str] = {
    Surface.CHAT: "`choices`",
    Surface.COMPLETIONS: "`choices`",
    Surface.MESSAGES: "`content`",
    Surface.RESPONSES: "`output`",
    Surface.EMBEDDINGS: "`data`",
    Surface.MODELS: "`data`",
    Surface.COUNT_TOKENS: "`input_tokens`",
}


def _count_block(count: Count, block: _Block) -> None:
    count.visible += text_len(block.text) + text_len(block.refusal)
    count.reasoning += text_len(block.thinking)
    if str(block.type).endswith(("tool_use", "_call")):
        count.tool += text_len(block.name) + text_len(block.arguments) + len(block.input)


def _parts_len(parts: object) -> int:
    """Characters of text in a list of content parts."""
    if not isinstance(parts, list):
        return 0
    return sum(
        text_len(part.get("text")) + text_len(part.get("refusal"))
        for part in parts
        if isinstance(part, dict)
    )


def _choice_error(said: _Body) -> WireError:
    for choice in said.choices or ():
        if choice.error and (error := error_of({"error": choice.error})) is not None:
            return error
    return WireError(
        message="the upstream ended the answer with an error",
        type="server_error",
        code="upstream_error",
    )


def _no_answer(body: bytes) -> WireError:
    if not body.strip():
        return WireError(
            message="the upstream sent an empty answer", type="server_error", code="empty_answer"
        )
    if is_html(body):
        return read_error(body, 0)
    return error_of(decode_value(body)) or WireError(
        message="the upstream's answer is not a JSON object",
        type="server_error",
        code="malformed_answer",
    )
