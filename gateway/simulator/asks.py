"""What a request asks of the simulated provider, read from the body of any surface."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.simulator.words import BYTES_PER_TOKEN, count_tokens
from gateway.wire.pieces import Surface

IMAGE_TOKENS = 258
CHOICES_MAX = 16
TOP_LOGPROBS_MAX = 20

_DIRECTIVE = re.compile(r"\[\[sim ([a-z0-9_= -]{1,200})\]\]")


class AskError(ValueError):
    """The provider refuses the request: status, message and the field at fault."""

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    schema: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, whatever its surface."""

    surface: Surface
    model: str
    prompt: bytes  # canonical: equal conversations give equal bytes, growing ones equal prefixes
    num_images: int = 0
    user_text: str = ""  # the last message of the user
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    is_greedy: bool = False
    num_choices: int = 1
    tools: tuple[Tool, ...] = ()
    tool_mode: str = "auto"  # "auto" | "none" | "required" | the name of one tool
    is_parallel: bool = True
    after_tool_result: bool = False
    json_schema: object | None = None
    json_object: bool = False
    logprobs: int | None = None  # number of alternatives a token; None = not asked for
    wants_reasoning: bool = False
    reasoning_tokens_max: int | None = None
    cache_write: str = ""  # "5m" | "1h": explicit cache control (messages only)
    echo: bool = False
    inputs: tuple[str, ...] = ()  # embeddings
    dimensions: int | None = None
    is_base64: bool = False
    service_tier: str = ""
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        return count_tokens(self.prompt) + self.num_images * IMAGE_TOKENS


def parse_ask(surface: Surface, body: bytes) -> Ask:
    """Raises AskError for what a real provider would answer with 400."""
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict):
            raise AskError("the body must be a JSON object")
        return _READERS[surface](surface, raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AskError(f"we could not parse the JSON body of your request: {error}") from error
    except RecursionError as error:
        raise AskError("the body is nested too deeply") from error


def _take(raw: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any) -> Any:
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise AskError(f"Invalid type for '{name}': expected {wanted}", name)
    return value


def _common(surface: Surface, raw: dict[str, Any]) -> dict[str, Any]:
    model = _take(raw, "model", str, "")
    if not model:
        raise AskError("you must provide a model parameter", "model")
    options = _take(raw, "stream_options", dict, {})
    stop = raw.get("stop", raw.get("stop_sequences"))
    stop = [stop] if isinstance(stop, str) else _take({"stop": stop}, "stop", list, [])
    if not all(isinstance(each, str) and each for each in stop):
        raise AskError("'stop' must hold non-empty strings", "stop")
    return {
        "surface": surface,
        "model": model,
        "stream": _take(raw, "stream", bool, False),
        "include_usage": options.get("include_usage") is True,
        "continuous_usage": options.get("continuous_usage_stats") is True,
        "stop": tuple(stop),
        "seed": _take(raw, "seed", int, None),
        "is_greedy": raw.get("temperature") == 0,
        "service_tier": _take(raw, "service_tier", str, ""),
    }


def _positive(raw: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value: int | None = _take(raw, name, int, None)
        if value is not None:
            if value < 1:
                raise AskError(f"'{name}' must be at least 1", name)
            return value
    return None


def _flatten(value: object, out: list[str]) -> int:
    """The text of any message content, in order; returns the number of images seen.

    Images and audio count as one short mark, so that their base64 is not billed as text.
    Cache marks are left out: they move from turn to turn while the conversation stays the same.
    """
    if isinstance(value, str):
        out.append(value)
    elif isinstance(value, list):
        return sum(_flatten(each, out) for each in value)
    elif isinstance(value, dict):
        kind = value.get("type")
        if kind in ("image", "image_url", "input_image", "input_audio", "document", "input_file"):
            mark = blake2b(msgspec.json.encode(value), digest_size=6).hexdigest()
            out.append(f"<{kind} {mark}>")
            return 1
        return sum(_flatten(each, out) for name, each in value.items() if name != "cache_control")
    elif value is not None:
        out.append(str(value))
    return 0


def _canonical(*parts: object) -> tuple[bytes, int]:
    texts: list[str] = []
    num_images = 0
    for part in parts:
        for item in part if isinstance(part, list) else [part]:
            num_images += _flatten(item, texts)
            texts.append("\n")
    return "".join(texts).encode("utf-8", "replace"), num_images


def _messages_of(raw: dict[str, Any], name: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] | None = _take(raw, name, list, None)
    if not messages:
        raise AskError(f"Missing or empty required parameter: '{name}'", name)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise AskError(f"'{name}[{index}]' must be an object", f"{name}[{index}]")
        if "role" not in message and "type" not in message:
            raise AskError(f"'{name}[{index}].role' is missing", f"{name}[{index}].role")
    return messages


def _last_user_text(messages: list[dict[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            texts: list[str] = []
            _flatten(message.get("content"), texts)
            return "\n".join(texts)
    return ""


def _directives(text: str) -> dict[str, str]:
    """`[[sim tokens=120 fault=error]]` in the last user message steers one single answer."""
    found = _DIRECTIVE.search(text) if "[[sim " in text else None
    if found is None:
        return {}
    return {
        name: value
        for name, _, value in (part.partition("=") for part in found.group(1).split())
        if name
    }


def _chat(surface: Surface, raw: dict[str, Any]) -> Ask:
    messages = _messages_of(raw, "messages")
    tools = tuple(
        _tool(each.get("function") if isinstance(each, dict) else None, "parameters", index)
        for index, each in enumerate(_take(raw, "tools", list, []))
    )
    choice = raw.get("tool_choice", "auto")
    if isinstance(choice, dict):
        choice = _take(_take(choice, "function", dict, {}), "name", str, "required")
    form = _take(raw, "response_format", dict, {})
    num_choices = _positive(raw, "n") or 1
    if num_choices > CHOICES_MAX:
        raise AskError(f"'n' may be at most {CHOICES_MAX}", "n")
    prompt, num_images = _canonical(raw.get("tools"), messages)
    user_text = _last_user_text(messages)
    logprobs = _take(raw, "top_logprobs", int, 0) if raw.get("logprobs") is True else None
    if logprobs is not None and not 0 <= logprobs <= TOP_LOGPROBS_MAX:
        raise AskError(f"'top_logprobs' must be 0 to {TOP_LOGPROBS_MAX}", "top_logprobs")
    return Ask(
        **_common(surface, raw),
        prompt=prompt,
        num_images=num_images,
        user_text=user_text,
        max_tokens=_positive(raw, "max_completion_tokens", "max_tokens"),
        num_choices=num_choices,
        tools=tools,
        tool_mode=_mode(choice, tools),
        is_parallel=_take(raw, "parallel_tool_calls", bool, True),
        after_tool_result=messages[-1].get("role") == "tool",
        json_schema=_take(form, "json_schema", dict, {}).get("schema")
        if form.get("type") == "json_schema"
        else None,
        json_object=form.get("type") == "json_object",
        logprobs=logprobs,
        wants_reasoning=_take(raw, "reasoning_effort", str, "none") not in ("none", "minimal"),
        directives=_directives(user_text),
    )


def _tool(raw: object, schema_name: str, index: int) -> Tool:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise AskError(f"'tools[{index}]' needs a name", f"tools[{index}].name")
    return Tool(raw["name"], raw.get(schema_name) or {"type": "object", "properties": {}})


def _mode(choice: object, tools: tuple[Tool, ...]) -> str:
    mode = {"any": "required"}.get(str(choice), str(choice))
    if mode not in ("auto", "none", "required") and mode not in {tool.name for tool in tools}:
        raise AskError(f"tool_choice names '{mode}', which is not among the tools", "tool_choice")
    if mode == "required" and not tools:
        raise AskError("tool_choice asks for a tool but there are none", "tool_choice")
    return mode


def _completions(surface: Surface, raw: dict[str, Any]) -> Ask:
    prompt = raw.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(each, int) for each in prompt):
        prompt = "".join(f"{each % 10**BYTES_PER_TOKEN:0{BYTES_PER_TOKEN}d}" for each in prompt)
    if not isinstance(prompt, str):
        raise AskError("'prompt' must be one string or one list of token ids", "prompt")
    num_choices = _positive(raw, "n") or 1
    if num_choices > CHOICES_MAX:
        raise AskError(f"'n' may be at most {CHOICES_MAX}", "n")
    return Ask(
        **_common(surface, raw),
        prompt=prompt.encode("utf-8", "replace"),
        user_text=prompt,
        max_tokens=_positive(raw, "max_tokens") or 16,
        num_choices=num_choices,
        echo=_take(raw, "echo", bool, False),
        logprobs=_take(raw, "logprobs", int, None),
        directives=_directives(prompt),
    )


def _responses(surface: Surface, raw: dict[str, Any]) -> Ask:
    given = raw.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) and given else given
    messages = _messages_of({"input": items}, "input")
    tools = tuple(
        _tool(each, "parameters", index)
        for index, each in enumerate(_take(raw, "tools", list, []))
        if not isinstance(each, dict) or each.get("type") == "function"
    )
    choice = raw.get("tool_choice", "auto")
    if isinstance(choice, dict):
        choice = _take(choice, "name", str, "required")
    form = _take(_take(raw, "text", dict, {}), "format", dict, {})
    prompt, num_images = _canonical(raw.get("tools"), raw.get("instructions"), messages)
    user_text = _last_user_text(messages)
    reasoning = _take(raw, "reasoning", dict, {})
    return Ask(
        **_common(surface, raw),
        prompt=prompt,
        num_images=num_images,
        user_text=user_text,
        max_tokens=_positive(raw, "max_output_tokens"),
        tools=tools,
        tool_mode=_mode(choice, tools),
        is_parallel=_take(raw, "parallel_tool_calls", bool, True),
        after_tool_result=messages[-1].get("type") == "function_call_output",
        json_schema=form.get("schema") if form.get("type") == "json_schema" else None,
        json_object=form.get("type") == "json_object",
        wants_reasoning=reasoning.get("effort") not in (None, "none", "minimal"),
        directives=_directives(user_text),
    )


def _anthropic(surface: Surface, raw: dict[str, Any]) -> Ask:
    messages = _messages_of(raw, "messages")
    max_tokens = _positive(raw, "max_tokens")
    if max_tokens is None and surface is Surface.MESSAGES:
        raise AskError("max_tokens: Field required", "max_tokens")
    tools = tuple(
        _tool(each, "input_schema", index)
        for index, each in enumerate(_take(raw, "tools", list, []))
    )
    choice = _take(raw, "tool_choice", dict, {"type": "auto"})
    thinking = _take(raw, "thinking", dict, {})
    budget = _positive(thinking, "budget_tokens")
    form = _take(_take(raw, "output_config", dict, {}), "format", dict, {})
    if thinking.get("type") == "enabled" and budget is None:
        raise AskError("thinking.enabled.budget_tokens: Field required", "thinking.budget_tokens")
    prompt, num_images = _canonical(raw.get("tools"), raw.get("system"), messages)
    user_text = _last_user_text(messages)
    last = messages[-1].get("content")
    return Ask(
        **_common(surface, raw),
        prompt=prompt,
        num_images=num_images,
        user_text=user_text,
        max_tokens=max_tokens,
        tools=tools,
        tool_mode=_mode(choice["name"] if choice.get("name") else choice.get("type"), tools),
        is_parallel=choice.get("disable_parallel_tool_use") is not True,
        after_tool_result=isinstance(last, list)
        and any(isinstance(e, dict) and e.get("type") == "tool_result" for e in last),
        json_schema=form.get("schema") if form.get("type") == "json_schema" else None,
        wants_reasoning=thinking.get("type") in ("enabled", "adaptive"),
        reasoning_tokens_max=budget,
        cache_write=_cache_write([raw.get("tools"), raw.get("system"), messages]),
        directives=_directives(user_text),
    )


def _cache_write(value: object) -> str:
    """The longest lifetime any cache mark asks for: "", "5m" or "1h"."""
    if isinstance(value, list):
        return max((_cache_write(each) for each in value), key=("", "5m", "1h").index, default="")
    if not isinstance(value, dict):
        return ""
    mark = value.get("cache_control")
    if isinstance(mark, dict):
        return "1h" if mark.get("ttl") == "1h" else "5m"
    return _cache_write(value.get("content"))


def _embeddings(surface: Surface, raw: dict[str, Any]) -> Ask:
    given = raw.get("input")
    if isinstance(given, list) and given and all(isinstance(each, int) for each in given):
        given = [given]
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not listed:
        raise AskError("'input' must be a string or a non-empty list", "input")
    inputs = tuple(
        each if isinstance(each, str) else "".join(f"{token:4d}" for token in each)
        for each in listed
    )
    return Ask(
        **_common(surface, raw),
        prompt="".join(inputs).encode("utf-8", "replace"),
        inputs=inputs,
        dimensions=_positive(raw, "dimensions"),
        is_base64=raw.get("encoding_format") == "base64",
    )


_READERS = {
    Surface.CHAT: _chat,
    Surface.COMPLETIONS: _completions,
    Surface.RESPONSES: _responses,
    Surface.EMBEDDINGS: _embeddings,
    Surface.MESSAGES: _anthropic,
    Surface.COUNT_TOKENS: _anthropic,
}
