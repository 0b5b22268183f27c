"""Typed heads of the request bodies: only what routing, holds and limits need to read.

Unknown fields are skipped in C. What is counted here is text bytes (every field whose text
reaches the model, tool schemas among them), images, and the capabilities asked for.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Raw

# What a token of a token-array prompt counts as, in bytes of text.
BYTES_PER_TOKEN = 4
# Compressed speech: some 500 bytes of base64 a token, taken eight times dearer to be safe.
AUDIO_BYTES_PER_TEXT_BYTE = 64

_TOKENS_MAX = 1_000_000_000
_NUM_CHOICES_MAX = 128
Tokens = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=_NUM_CHOICES_MAX)]
ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_NONE = Raw(b"")


class Tally:
    """What a prompt amounts to, summed up while walking it."""

    __slots__ = ("has_audio", "num_images", "text_bytes")

    def __init__(self) -> None:
        self.text_bytes = 0
        self.num_images = 0
        self.has_audio = False


class Part(msgspec.Struct, gc=False):
    """A content part, content block or input item of any dialect; absent fields are falsy."""

    type: str = ""
    text: str | None = None
    content: str | list[Part] | Part | None = None
    output: str | list[Part] | Part | None = None
    # Media stay raw: a 5 MB picture is skipped, not copied into a string.
    image_url: Raw = _NONE
    source: Raw = _NONE
    input_audio: Raw = _NONE
    file: Raw = _NONE
    file_data: Raw = _NONE
    # Text that the model wrote earlier and reads again, and what stands beside documents.
    refusal: Raw = _NONE
    thinking: Raw = _NONE
    arguments: Raw = _NONE
    input: Raw = _NONE
    summary: Raw = _NONE
    title: Raw = _NONE
    context: Raw = _NONE


class Message(msgspec.Struct, gc=False):
    """A chat or messages turn."""

    content: str | list[Part] | Part | None = None
    refusal: Raw = _NONE
    reasoning_content: Raw = _NONE
    reasoning: Raw = _NONE
    tool_calls: Raw = _NONE
    function_call: Raw = _NONE


class StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, gc=False):
    type: str = ""
    json_schema: Raw = _NONE
    schema: Raw = _NONE


class TextOptions(msgspec.Struct, gc=False):
    format: ResponseFormat | None = None


class OutputConfig(msgspec.Struct, gc=False):
    format: ResponseFormat | None = None


class Typed(msgspec.Struct, gc=False):
    type: str = ""


class Reasoning(msgspec.Struct, gc=False):
    effort: str | None = None
    enabled: bool | None = None
    summary: Any = None
    max_tokens: int | None = None

    @property
    def is_wanted(self) -> bool:
        if self.effort == "none" or self.enabled is False:
            return False
        return bool(self.effort or self.enabled or self.summary or self.max_tokens)


class Metadata(msgspec.Struct, gc=False):
    user_id: Any = None


class UsageOption(msgspec.Struct, gc=False):
    include: bool | None = None


class Head(msgspec.Struct, kw_only=True):
    """What every surface may carry."""

    model: ModelName | None = None  # may be left out where `models` names some
    stream: bool | None = None
    models: list[ModelName] | None = None
    usage: UsageOption | None = None
    provider: Raw = _NONE
    service_tier: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class ChatHead(Head, kw_only=True):
    messages: list[Message]
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    n: Choices | None = None
    tools: Raw = _NONE
    functions: Raw = _NONE
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    thinking: Typed | bool | None = None
    modalities: list[str] | None = None


class CompletionsHead(Head, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    logprobs: int | None = None


class EmbeddingsHead(Head, kw_only=True):
    input: str | list[str | int | list[int] | Part]


class ResponsesHead(Head, kw_only=True):
    input: str | list[Part] | None = None
    instructions: str | list[Part] | None = None
    max_output_tokens: Tokens | None = None
    tools: Raw = _NONE
    text: TextOptions | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    top_logprobs: int | None = None


class MessagesHead(Head, kw_only=True):
    messages: list[Message]
    system: str | list[Part] | None = None
    max_tokens: Tokens | None = None
    tools: Raw = _NONE
    thinking: Typed | None = None
    output_format: ResponseFormat | None = None
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None


def count_message(tally: Tally, message: Message) -> None:
    content = message.content
    if isinstance(content, str):
        tally.text_bytes += len(content) if content.isascii() else len(content.encode())
    else:
        count_content(tally, content)
    if (
        message.tool_calls is _NONE
        and message.reasoning_content is _NONE
        and message.reasoning is _NONE
        and message.refusal is _NONE
        and message.function_call is _NONE
    ):
        return  # as nearly every turn
    tally.text_bytes += (
        raw_len(message.refusal)
        + raw_len(message.tool_calls)
        + raw_len(message.function_call)
        # Providers take the one or the other name for the same text.
        + max(raw_len(message.reasoning_content), raw_len(message.reasoning))
    )


def count_content(tally: Tally, content: str | list[Part] | Part | None) -> None:
    if content is None:
        return
    if isinstance(content, str):
        tally.text_bytes += utf8_len(content)
    elif isinstance(content, Part):
        count_part(tally, content)
    else:
        for part in content:
            count_part(tally, part)


def count_part(tally: Tally, part: Part) -> None:
    """Depth is bounded by the check of the whole body (rawjson.DEPTH_MAX)."""
    if part.text is not None:
        tally.text_bytes += utf8_len(part.text)
    if part.type == "text":
        return
    count_content(tally, part.content)
    count_content(tally, part.output)
    tally.text_bytes += (
        raw_len(part.refusal)
        + raw_len(part.thinking)
        + raw_len(part.arguments)
        + raw_len(part.input)
        + raw_len(part.summary)
        + raw_len(part.title)
        + raw_len(part.context)
    )
    if part.type not in ("", "message", "input_text", "output_text"):
        _count_media(tally, part)


def _count_media(tally: Tally, part: Part) -> None:
    if part.type in ("image_url", "image", "input_image", "computer_screenshot"):
        tally.num_images += 1
    elif part.type == "input_audio" or raw_len(part.input_audio):
        tally.has_audio = True
        tally.text_bytes += raw_len(part.input_audio) // AUDIO_BYTES_PER_TEXT_BYTE
    else:
        # Documents: base64 is a third longer than the text in it, which errs on the safe side.
        tally.text_bytes += raw_len(part.source) + raw_len(part.file) + raw_len(part.file_data)


def count_prompt(tally: Tally, prompt: str | list[Any] | None) -> None:
    """A completions prompt or embeddings input: texts, tokens, or lists of either."""
    if not isinstance(prompt, list):
        count_content(tally, prompt)
        return
    for item in prompt:
        if isinstance(item, str):
            tally.text_bytes += utf8_len(item)
        elif isinstance(item, int):
            tally.text_bytes += BYTES_PER_TOKEN
        elif isinstance(item, list):
            tally.text_bytes += BYTES_PER_TOKEN * len(item)
        else:
            count_part(tally, item)


def raw_len(raw: Raw) -> int:
    """Bytes of a raw value; 0 when it is absent or null."""
    length = len(raw)
    return 0 if length == 0 or (length == 4 and bytes(raw) == b"null") else length


def has_items(raw: Raw) -> bool:
    """Whether a raw value is more than absent, null or an empty container."""
    return raw_len(raw) > 2


def utf8_len(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
