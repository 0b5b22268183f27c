"""A request body read once: what routing and money need of it, and the body to send on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.wire.pieces import Surface
from gateway.wire.prompts import (
    ChatHead,
    CompletionsHead,
    EmbeddingsHead,
    Head,
    MessagesHead,
    ResponseFormat,
    ResponsesHead,
    Tally,
    Typed,
    count_content,
    count_message,
    count_prompt,
    has_items,
    raw_len,
)
from gateway.wire.rawjson import NODES_MAX, Members, WireFormatError, parse_members

PROMPT_PREFIX_BYTES_MAX = 64 * 1024
MODELS_MAX = 32
# OpenAI takes 300,000 tokens in one embeddings request, each of which may be a number of its own.
EMBEDDINGS_NODES_MAX = 400_000
# Ours and OpenRouter's; a provider would refuse or misread them.
GATEWAY_FIELDS: tuple[str, ...] = (
    "provider",
    "models",
    "route",
    "speculation",
    "session_id",
    "usage",  # OpenRouter's way to ask for usage, which we answer ourselves
)

_HEADS: dict[Surface, msgspec.json.Decoder[Any]] = {
    Surface.CHAT: msgspec.json.Decoder(ChatHead),
    Surface.COMPLETIONS: msgspec.json.Decoder(CompletionsHead),
    Surface.RESPONSES: msgspec.json.Decoder(ResponsesHead),
    Surface.EMBEDDINGS: msgspec.json.Decoder(EmbeddingsHead),
    Surface.MESSAGES: msgspec.json.Decoder(MessagesHead),
    Surface.COUNT_TOKENS: msgspec.json.Decoder(MessagesHead),
}
# In the order in which they reach the model, so that turns of one talk share their beginning.
_PROMPT_MEMBERS = ("tools", "functions", "instructions", "system", "messages", "input", "prompt")
_MAX_TOKENS_FIELDS: dict[Surface, tuple[str, ...]] = {
    Surface.CHAT: ("max_tokens", "max_completion_tokens"),
    Surface.COMPLETIONS: ("max_tokens",),
    Surface.RESPONSES: ("max_output_tokens",),
    Surface.MESSAGES: ("max_tokens",),
}
_WHERE = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"required field `([^`]*)`")
_STREAM_OPTIONS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING: frozenset[str] = frozenset()
# What no endpoint lacks, or what it never sees: not parameters that it may or may not support.
_NO_PARAMETERS = frozenset({
    *GATEWAY_FIELDS, "model", "messages", "prompt", "input", "system", "instructions", "stream",
    "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens",
})  # fmt: skip


class FieldError(ValueError):
    """A field that we read has the wrong type or value. `param` is its path, `a.b[0]`."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request body, whatever its surface. Holds the body; counts are of prompt text only."""

    surface: Surface
    members: Members
    model: str
    stream: bool = False
    include_usage: bool = False  # the client asked for the usage frame of a stream
    max_tokens: int | None = None  # the larger one when two fields say it
    text_bytes: int = 0
    num_images: int = 0
    needs: frozenset[str] = _NOTHING
    models: tuple[str, ...] = ()  # OpenRouter's fallback list, without `model`
    provider: bytes | None = None  # OpenRouter's object, raw
    service_tier: str = ""
    num_choices: int = 1  # answers paid for: the larger one of n and best_of
    session_id: str = ""
    user: str = ""

    @property
    def parameters(self) -> frozenset[str]:
        """Fields sent that an endpoint may or may not support; null counts as not sent."""
        return self.members.sent_names() - _NO_PARAMETERS

    @property
    def prompt_prefix(self) -> bytes:
        """The start of the prompt as bytes, for affinity: the same for all turns of one talk.

        Lists lose their closing bracket, so that the next turn continues these very bytes.
        """
        parts: list[bytes] = []
        room = PROMPT_PREFIX_BYTES_MAX
        for name in _PROMPT_MEMBERS:
            raw = self.members.raw(name)
            if raw is not None and raw != b"null" and room > 0:
                parts.append(raw.removesuffix(b"]")[:room])
                room -= len(parts[-1])
        return b"".join(parts)


def parse_request(surface: Surface, body: bytes) -> ParsedRequest:
    """Read a body of this surface. Raises WireFormatError, or FieldError with the field's path."""
    decoder = _HEADS.get(surface)
    if decoder is None:
        raise ValueError(f"requests to {surface} have no body to parse")
    is_embeddings = surface is Surface.EMBEDDINGS
    members = parse_members(body, nodes_max=EMBEDDINGS_NODES_MAX if is_embeddings else NODES_MAX)
    try:
        head = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except msgspec.DecodeError as error:  # an integer or float that no type can hold
        raise WireFormatError(f"the body is not valid JSON: {error}") from None
    model, models = _models(head)
    tally = Tally()
    needs, limits = _READERS[surface](head, tally)
    return ParsedRequest(
        surface=surface,
        members=members,
        model=model,
        stream=head.stream is True,
        include_usage=limits.include_usage
        or (head.usage is not None and head.usage.include is True),
        max_tokens=limits.max_tokens,
        text_bytes=tally.text_bytes,
        num_images=tally.num_images,
        needs=_needs(needs, tally),
        models=models,
        provider=bytes(head.provider) if raw_len(head.provider) else None,
        service_tier=head.service_tier or "",
        num_choices=limits.num_choices,
        session_id=head.session_id or head.prompt_cache_key or limits.user_id or head.user or "",
        user=head.user or limits.user_id,
    )


def _models(head: Head) -> tuple[str, tuple[str, ...]]:
    """The model wanted and those to fall back to; OpenRouter lets `models` name all of them."""
    listed = head.models or []
    if len(listed) > MODELS_MAX:
        raise FieldError(f"`models` lists more than {MODELS_MAX} names; send fewer", "models")
    model = head.model or next(iter(listed), None)
    if model is None:
        raise FieldError("`model` is missing; it is required", "model")
    return model, tuple(name for name in listed if name != model)


def upstream_body(
    parsed: ParsedRequest,
    *,
    model: str,
    ask_usage: bool = False,
    max_tokens: int | None = None,
    remove: Iterable[str] = (),
    keep: Iterable[str] = (),
    max_tokens_field: str = "",
) -> bytes:
    """The body for an upstream of the same surface; all that need not change stays as received.

    Changed: the model; `stream_options.include_usage` if asked and streaming; `max_tokens` under
    the field the request used, else `max_tokens_field`, else the surface's own; GATEWAY_FIELDS
    and `remove` taken out, but for those in `keep`.
    """
    members = parsed.members
    changes: dict[str, bytes | None] = {}
    if model != parsed.model or "model" not in members:
        changes["model"] = msgspec.json.encode(model)
    kept = frozenset(keep)
    for name in (*GATEWAY_FIELDS, *remove):
        if name in members and name not in kept:
            changes[name] = None
    if ask_usage and parsed.stream and parsed.surface in (Surface.CHAT, Surface.COMPLETIONS):
        changes["stream_options"] = _with_usage(members.raw("stream_options"))
    if max_tokens is not None:
        fields = _MAX_TOKENS_FIELDS.get(parsed.surface, ())
        sent = [name for name in fields if members.raw(name) not in (None, b"null")]
        for name in sent or [max_tokens_field or fields[0]] if fields else ():
            changes[name] = b"%d" % max_tokens
    return members.rewrite(changes)


def _with_usage(raw: bytes | None) -> bytes:
    """`stream_options` that ask for usage; its other members stay."""
    if raw is None or raw == b"null":
        return b'{"include_usage":true}'
    options = _STREAM_OPTIONS.decode(raw)
    asked = options.get("include_usage")
    if asked is not None and bytes(asked) == b"true":
        return raw
    options["include_usage"] = msgspec.Raw(b"true")
    return msgspec.json.encode(options)


class _Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_tokens: int | None = None
    num_choices: int = 1
    include_usage: bool = False
    user_id: str = ""


def _read_chat(head: ChatHead, tally: Tally) -> tuple[list[str], _Limits]:
    for message in head.messages:
        count_message(tally, message)
    tally.text_bytes += raw_len(head.tools) + raw_len(head.functions)
    needs = _format_needs(tally, head.response_format)
    if has_items(head.tools) or has_items(head.functions):
        needs.append("tools")
    if head.parallel_tool_calls is True:
        needs.append("parallel_tool_calls")
    if head.logprobs is True:
        needs.append("logprobs")
    if _wants_reasoning(head):
        needs.append("reasoning")
    if head.modalities is not None and "audio" in head.modalities:
        needs.append("audio")
    num_choices = head.n or 1
    if num_choices > 1:
        needs.append("n")
    options = head.stream_options
    asked = options is not None and options.include_usage is True
    sizes = [size for size in (head.max_tokens, head.max_completion_tokens) if size is not None]
    return needs, _Limits(
        max_tokens=max(sizes, default=None), num_choices=num_choices, include_usage=asked
    )


def _wants_reasoning(head: ChatHead) -> bool:
    if head.reasoning_effort not in (None, "none"):
        return True
    if head.reasoning is not None and head.reasoning.is_wanted:
        return True
    thinking = head.thinking
    return thinking is True or (isinstance(thinking, Typed) and thinking.type != "disabled")


def _read_completions(head: CompletionsHead, tally: Tally) -> tuple[list[str], _Limits]:
    count_prompt(tally, head.prompt)
    count_content(tally, head.suffix)
    needs = ["logprobs"] if head.logprobs is not None else []
    num_choices = max(head.n or 1, head.best_of or 1)
    if num_choices > 1:
        needs.append("n")
    if isinstance(head.prompt, list) and head.prompt and not isinstance(head.prompt[0], int):
        num_choices *= len(head.prompt)  # each prompt of a list is answered
    options = head.stream_options
    return needs, _Limits(
        max_tokens=head.max_tokens,
        num_choices=num_choices,
        include_usage=options is not None and options.include_usage is True,
    )


def _read_embeddings(head: EmbeddingsHead, tally: Tally) -> tuple[list[str], _Limits]:
    count_prompt(tally, head.input)
    return [], _Limits()


def _read_responses(head: ResponsesHead, tally: Tally) -> tuple[list[str], _Limits]:
    count_content(tally, head.input)
    count_content(tally, head.instructions)
    tally.text_bytes += raw_len(head.tools)
    needs = _format_needs(tally, head.text.format if head.text is not None else None)
    if has_items(head.tools):
        needs.append("tools")
    if head.parallel_tool_calls is True:
        needs.append("parallel_tool_calls")
    if head.reasoning is not None and head.reasoning.is_wanted:
        needs.append("reasoning")
    if head.top_logprobs:
        needs.append("logprobs")
    return needs, _Limits(max_tokens=head.max_output_tokens)


def _read_messages(head: MessagesHead, tally: Tally) -> tuple[list[str], _Limits]:
    count_content(tally, head.system)
    for message in head.messages:
        count_message(tally, message)
    tally.text_bytes += raw_len(head.tools)
    config = head.output_config
    needs = _format_needs(tally, config.format if config is not None else head.output_format)
    if has_items(head.tools):
        needs.append("tools")
    if head.thinking is not None and head.thinking.type != "disabled":
        needs.append("reasoning")
    user_id = head.metadata.user_id if head.metadata is not None else None
    return needs, _Limits(
        max_tokens=head.max_tokens, user_id=user_id if isinstance(user_id, str) else ""
    )


_READERS: dict[Surface, Any] = {
    Surface.CHAT: _read_chat,
    Surface.COMPLETIONS: _read_completions,
    Surface.EMBEDDINGS: _read_embeddings,
    Surface.RESPONSES: _read_responses,
    Surface.MESSAGES: _read_messages,
    Surface.COUNT_TOKENS: _read_messages,
}


def _format_needs(tally: Tally, response_format: ResponseFormat | None) -> list[str]:
    """The schema is prompt text too: providers put it in front of the model."""
    if response_format is None:
        return []
    tally.text_bytes += raw_len(response_format.json_schema) + raw_len(response_format.schema)
    name = response_format.type
    return [name] if name in ("json_schema", "json_object") else []


def _needs(needs: list[str], tally: Tally) -> frozenset[str]:
    if tally.num_images:
        needs.append("vision")
    if tally.has_audio:
        needs.append("audio")
    return frozenset(needs) if needs else _NOTHING


def _field_error(message: str) -> FieldError:
    where = _WHERE.search(message)
    path = where[1] if where is not None else ""
    reason = message[: where.start()] if where is not None else message
    missing = _MISSING.search(message)
    if missing is not None:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return FieldError(f"`{path}` is missing; it is required", path)
    return FieldError(f"`{path}` is wrong: {reason[:1].lower()}{reason[1:]}", path)
