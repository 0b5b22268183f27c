"""A chat request as a messages request."""

from __future__ import annotations

import msgspec

from gateway.wire.translate.reasoning import thinking_of_chat
from gateway.wire.translate.shapes import (
    QUOTE,
    CannotTranslate,
    Notes,
    Object,
    Target,
    as_number,
    as_object,
    as_objects,
    as_string,
    as_strings,
    encode,
    is_true,
    starts,
    string_bytes,
)
from gateway.wire.translate.turns_to_messages import Conversation, conversation

# Read by the gateway itself; they never reach an endpoint of another dialect.
GATEWAY_FIELDS = frozenset({"model", "provider", "models", "route", "session_id", "usage"})
# Values that ask for what happens anyway: leaving them out loses nothing.
NEUTRAL: dict[str, frozenset[bytes]] = {
    "frequency_penalty": frozenset({b"0", b"0.0"}),
    "presence_penalty": frozenset({b"0", b"0.0"}),
    "logprobs": frozenset({b"false"}),
    "top_logprobs": frozenset({b"0"}),
    "logit_bias": frozenset({b"{}"}),
    "metadata": frozenset({b"{}"}),
    "store": frozenset({b"false"}),
    "verbosity": frozenset({b'"medium"'}),
}
AS_IT_IS = ("stream", "top_p")
TEMPERATURE_MAX = 1
ONE = msgspec.Raw(b"1")
THINKING_TOP_P_MIN = 0.95  # the dialect's own bound while thinking
TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}
NEAREST_TIERS = {"priority": "auto", "fast": "auto"}
EMPTY_SCHEMA = {"type": "object", "properties": {}}
_TOOL_KEYS = frozenset({"type", "function", "cache_control"})
_FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict", "cache_control"})


def messages_request(
    fields: Object, target: Target, notes: Notes, *, model: str, max_tokens_default: int
) -> bytes:
    """`fields`: the request's members without the null ones; taken apart here."""
    for name in GATEWAY_FIELDS:
        fields.pop(name, None)
    _refuse_what_has_no_counterpart(fields)
    max_tokens = _max_tokens(fields, max_tokens_default)
    messages = as_objects(fields.pop("messages", msgspec.Raw(b"0")), "messages")
    talk = conversation(messages, target, notes)
    out: dict[str, object] = {"model": model, "max_tokens": max_tokens}
    _write_talk(talk, out)
    choice = _write_tools(fields, out, notes)
    _write_reasoning(fields, out, talk, target, notes, forced=choice in ("any", "tool"))
    _write_response_format(fields, out, notes)
    _write_sampling(fields, out, target, notes)
    _write_identity(fields, out, notes)
    for name in AS_IT_IS:
        if name in fields:
            out[name] = fields.pop(name)
    _write_rest(fields, out, target, notes)
    for name in target.refuses:
        if out.pop(name, None) is not None:
            notes.drop(name)
    return encode(out)


def _refuse_what_has_no_counterpart(fields: Object) -> None:
    if "n" in fields and as_number(fields.pop("n"), "n") != 1:
        raise CannotTranslate(
            "n: this model gives one choice a request; send n requests", param="n"
        )
    if "modalities" in fields and set(as_strings(fields.pop("modalities"), "modalities")) - {
        "text"
    }:
        raise CannotTranslate("modalities: this model answers in text only", param="modalities")
    for name, advice in (
        ("audio", "leave it out"),
        ("functions", "use tools"),
        ("function_call", "use tool_choice"),
    ):
        if name in fields:
            raise CannotTranslate(
                f"{name} has no counterpart in the messages dialect; {advice}", param=name
            )


def _max_tokens(fields: Object, default: int) -> int:
    old = fields.pop("max_tokens", None)
    new = fields.pop("max_completion_tokens", None)
    name, raw = ("max_completion_tokens", new) if new is not None else ("max_tokens", old)
    if raw is None:
        return default
    number = as_number(raw, name)
    if not isinstance(number, int) or number < 1:
        raise CannotTranslate(f"{name} must be a whole number above 0", param=name)
    return number


def _write_talk(talk: Conversation, out: dict[str, object]) -> None:
    if talk.system:
        first = talk.system[0]
        is_plain = len(talk.system) == 1 and "cache_control" not in first
        out["system"] = first["text"] if is_plain and "text" in first else talk.system
    out["messages"] = [{"role": turn.role, "content": turn.content} for turn in talk.turns]


def _write_tools(fields: Object, out: dict[str, object], notes: Notes) -> str:
    """Writes `tools` and `tool_choice`; returns the choice's type, "" = none."""
    raw_tools, raw_choice = fields.pop("tools", None), fields.pop("tool_choice", None)
    raw_parallel = fields.pop("parallel_tool_calls", None)
    tools = []
    if raw_tools is not None:
        for i, tool in enumerate(as_objects(raw_tools, "tools")):
            tools.append(_tool(tool, notes, f"tools[{i}]"))
    if not tools:
        if raw_choice is not None and bytes(raw_choice) not in (b'"auto"', b'"none"'):
            notes.drop("tool_choice")
        return ""
    choice, allowed = _tool_choice(raw_choice)
    if allowed is not None:
        tools = [tool for tool in tools if tool["name"] in allowed]
    out["tools"] = tools
    is_serial = raw_parallel is not None and bytes(raw_parallel) == b"false"
    if is_serial and choice.get("type") != "none":
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    if choice:
        out["tool_choice"] = choice
    return str(choice.get("type", ""))


def _tool(tool: Object, notes: Notes, param: str) -> dict[str, object]:
    notes.drop_unknown(tool, _TOOL_KEYS, "tools")
    if "function" not in tool:
        raise CannotTranslate(
            f"{param}: only function tools have a counterpart in the messages dialect",
            param=f"{param}.type",
        )
    function = as_object(tool["function"], f"{param}.function")
    notes.drop_unknown(function, _FUNCTION_KEYS, "tools.function")
    out: dict[str, object] = {"name": as_string(function.get("name"), f"{param}.function.name")}
    if "description" in function:
        out["description"] = function["description"]
    out["input_schema"] = function.get("parameters", EMPTY_SCHEMA)
    if is_true(function.get("strict")):
        out["strict"] = True
    cache_control = tool.get("cache_control", function.get("cache_control"))
    if cache_control is not None:
        out["cache_control"] = cache_control
    return out


def _tool_choice(raw: msgspec.Raw | None) -> tuple[dict[str, object], frozenset[str] | None]:
    """The choice, and the names that `allowed_tools` narrows the list to."""
    if raw is None:
        return {}, None
    if starts(raw, QUOTE):
        word = as_string(raw, "tool_choice")
        if word not in TOOL_CHOICES:
            raise CannotTranslate(
                f"tool_choice {word!r} is unknown; use none, auto or required",
                param="tool_choice",
            )
        return {"type": TOOL_CHOICES[word]}, None
    choice = as_object(raw, "tool_choice")
    kind = as_string(choice.get("type"), "tool_choice.type")
    if kind == "function" and "function" in choice:
        function = as_object(choice["function"], "tool_choice.function")
        name = string_bytes(function.get("name"), "tool_choice.function.name")
        return {"type": "tool", "name": name}, None
    if kind == "allowed_tools" and "allowed_tools" in choice:
        return _allowed_tools(as_object(choice["allowed_tools"], "tool_choice.allowed_tools"))
    raise CannotTranslate(
        f"tool_choice of type {kind!r} has no counterpart in the messages dialect",
        param="tool_choice",
    )


def _allowed_tools(allowed: Object) -> tuple[dict[str, object], frozenset[str]]:
    param = "tool_choice.allowed_tools"
    names = set()
    for i, tool in enumerate(as_objects(allowed.get("tools", msgspec.Raw(b"0")), f"{param}.tools")):
        place = f"{param}.tools[{i}].function"
        function = as_object(tool.get("function", msgspec.Raw(b"0")), place)
        names.add(as_string(function.get("name"), f"{place}.name"))
    is_required = bytes(allowed.get("mode", b"")) == b'"required"'
    return {"type": "any" if is_required else "auto"}, frozenset(names)


def _write_reasoning(
    fields: Object,
    out: dict[str, object],
    talk: Conversation,
    target: Target,
    notes: Notes,
    *,
    forced: bool,
) -> None:
    is_unthought = target.thinking == "budget" and talk.last_call_lacks_thinking()
    max_tokens = out["max_tokens"]
    assert isinstance(max_tokens, int)
    out.update(
        thinking_of_chat(
            fields, target, notes, max_tokens=max_tokens, may_think=not forced and not is_unthought
        )
    )


def _write_response_format(fields: Object, out: dict[str, object], notes: Notes) -> None:
    """A schema's `name` is only a label and has no counterpart; it is not reported."""
    if "response_format" not in fields:
        return
    wanted = as_object(fields.pop("response_format"), "response_format")
    kind = as_string(wanted.get("type"), "response_format.type")
    if kind == "text":
        return
    if kind != "json_schema" or "json_schema" not in wanted:
        notes.drop("response_format")
        return
    schema = as_object(wanted["json_schema"], "response_format.json_schema")
    if "description" in schema:
        notes.drop("response_format.json_schema.description")
    if "schema" not in schema:
        notes.drop("response_format")
        return
    config = out.setdefault("output_config", {})
    assert isinstance(config, dict)
    config["format"] = {"type": "json_schema", "schema": schema["schema"]}


def _write_sampling(fields: Object, out: dict[str, object], target: Target, notes: Notes) -> None:
    """Temperature above the dialect's maximum is clamped and reported."""
    thinking = out.get("thinking")
    is_thinking = isinstance(thinking, msgspec.Raw) or (
        isinstance(thinking, dict) and thinking.get("type") != "disabled"
    )
    if "temperature" in fields:
        raw = fields.pop("temperature")
        degree = as_number(raw, "temperature")
        if degree > TEMPERATURE_MAX:
            notes.drop("temperature")
            out["temperature"] = TEMPERATURE_MAX
        elif is_thinking and degree != TEMPERATURE_MAX:
            notes.drop("temperature")  # the dialect refuses both together
        else:
            out["temperature"] = raw
    if is_thinking and as_number(fields.get("top_p", ONE), "top_p") < THINKING_TOP_P_MIN:
        del fields["top_p"]
        notes.drop("top_p")
    if "top_k" in fields:
        raw = fields.pop("top_k")
        if is_thinking:
            notes.drop("top_k")
        else:
            out["top_k"] = raw
    if "stop" in fields:
        raw = fields.pop("stop")
        stops = [as_string(raw, "stop")] if starts(raw, QUOTE) else as_strings(raw, "stop")
        kept = [stop for stop in stops if stop.strip()]
        if len(kept) < len(stops):
            notes.drop("stop")  # the dialect refuses blank ones
        if kept:
            out["stop_sequences"] = kept


def _write_identity(fields: Object, out: dict[str, object], notes: Notes) -> None:
    user, safety = fields.pop("user", None), fields.pop("safety_identifier", None)
    if user is not None and safety is not None and bytes(user) != bytes(safety):
        notes.drop("safety_identifier")
    who = user if user is not None else safety
    if who is not None:
        out["metadata"] = {"user_id": string_bytes(who, "user")}
    if "service_tier" in fields:
        tier = as_string(fields.pop("service_tier"), "service_tier")
        if tier not in SERVICE_TIERS:
            notes.drop("service_tier")
        nearest = SERVICE_TIERS.get(tier) or NEAREST_TIERS.get(tier)
        if nearest is not None:
            out["service_tier"] = nearest
    if "stream_options" in fields:
        options = as_object(fields.pop("stream_options"), "stream_options")
        if is_true(options.get("include_obfuscation")):
            notes.drop("stream_options.include_obfuscation")
        notes.drop_unknown(
            options, frozenset({"include_usage", "include_obfuscation"}), "stream_options"
        )


def _write_rest(fields: Object, out: dict[str, object], target: Target, notes: Notes) -> None:
    for name, raw in fields.items():
        if name in target.extensions and name not in out:
            out[name] = raw
        elif bytes(raw) not in NEUTRAL.get(name, frozenset()):
            notes.drop(name)
