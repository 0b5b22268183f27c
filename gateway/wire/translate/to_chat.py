"""A messages request as a chat request."""

from __future__ import annotations

import msgspec

from gateway.wire.translate.reasoning import effort_of_messages
from gateway.wire.translate.shapes import (
    CannotTranslate,
    Notes,
    Object,
    Target,
    as_number,
    as_object,
    as_objects,
    as_string,
    encode,
    is_true,
    string_bytes,
)
from gateway.wire.translate.turns_to_chat import Message, system_message, turn_messages

GATEWAY_FIELDS = frozenset({"model", "provider", "models", "route", "session_id", "usage"})
AS_IT_IS = ("temperature", "top_p")
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SERVICE_TIERS = {"auto": "auto", "standard_only": "default"}
SCHEMA_NAME = "response"  # chat wants a label; the messages dialect has none
SCHEMA_DEPTH_MAX = 64
_TOOL_KEYS = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
_CHOICE_KEYS = frozenset({"type", "name", "disable_parallel_tool_use"})
_TOOL_DEFAULTS = {
    "allowed_callers": b'["direct"]', "defer_loading": b"false", "eager_input_streaming": b"false",
    "input_examples": b"[]",
}  # fmt: skip


def chat_request(fields: Object, target: Target, notes: Notes, *, model: str) -> bytes:
    """`fields`: the request's members without the null ones; taken apart here."""
    for name in GATEWAY_FIELDS:
        fields.pop(name, None)
    out: dict[str, object] = {"model": model}
    max_tokens = _write_max_tokens(fields, out, target)
    out["messages"] = _messages(fields, target, notes)
    _write_tools(fields, out, target, notes)
    effort = effort_of_messages(fields, notes, max_tokens=max_tokens)
    if effort:
        out["reasoning_effort"] = effort
    _write_output_format(fields, out, notes)
    for name in AS_IT_IS:
        if name in fields:
            out[name] = fields.pop(name)
    if "stop_sequences" in fields:
        out["stop"] = fields.pop("stop_sequences")
    _write_identity(fields, out, notes)
    if is_true(fields.get("stream")):
        out["stream"] = True
        if "stream_options" not in target.refuses:
            out["stream_options"] = {"include_usage": True}  # messages always tell the usage
    fields.pop("stream", None)
    for name, raw in fields.items():
        if name in target.extensions and name not in out:
            out[name] = raw
        else:
            notes.drop(name)
    for name in target.refuses:
        if out.pop(name, None) is not None:
            notes.drop(name)
    return encode(out)


def _write_max_tokens(fields: Object, out: dict[str, object], target: Target) -> int | None:
    raw = fields.pop("max_tokens", None)
    if raw is None:
        return None
    number = as_number(raw, "max_tokens")
    if not isinstance(number, int) or number < 1:
        raise CannotTranslate(
            "max_tokens must be a whole number above 0 for this model", param="max_tokens"
        )
    out[target.max_tokens_field] = number
    return number


def _messages(fields: Object, target: Target, notes: Notes) -> list[Message]:
    messages: list[Message] = []
    if "system" in fields:
        system = system_message(fields.pop("system"), target, notes, "system")
        if system is not None:
            messages.append(system)
    turns = as_objects(fields.pop("messages", msgspec.Raw(b"0")), "messages")
    if not turns:
        raise CannotTranslate("messages is empty; send at least one", param="messages")
    for place, turn in enumerate(turns):
        messages.extend(turn_messages(turn, target, notes, f"messages[{place}]"))
    return messages


def _write_tools(fields: Object, out: dict[str, object], target: Target, notes: Notes) -> None:
    raw_tools, raw_choice = fields.pop("tools", None), fields.pop("tool_choice", None)
    tools = []
    if raw_tools is not None:
        for i, tool in enumerate(as_objects(raw_tools, "tools")):
            tools.append(_tool(tool, target, notes, f"tools[{i}]"))
    choice = as_object(raw_choice, "tool_choice") if raw_choice is not None else {}
    if not tools:
        if choice:
            notes.drop("tool_choice")
        return
    out["tools"] = tools
    if not choice:
        return
    notes.drop_unknown(choice, _CHOICE_KEYS, "tool_choice")
    kind = as_string(choice.get("type"), "tool_choice.type")
    if kind == "tool":
        name = string_bytes(choice.get("name"), "tool_choice.name")
        out["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in TOOL_CHOICES:
        out["tool_choice"] = TOOL_CHOICES[kind]
    else:
        raise CannotTranslate(
            f"tool_choice.type {kind!r} is unknown; use auto, any, tool or none",
            param="tool_choice.type",
        )
    if is_true(choice.get("disable_parallel_tool_use")):
        out["parallel_tool_calls"] = False


def _tool(tool: Object, target: Target, notes: Notes, param: str) -> dict[str, object]:
    if "type" in tool and bytes(tool["type"]) != b'"custom"':
        kind = as_string(tool["type"], f"{param}.type")
        raise CannotTranslate(
            f"{param}: the built-in tool {kind!r} exists only in the messages dialect; "
            "define it as a custom tool or ask for a model that has it",
            param=f"{param}.type",
        )
    for name, raw in tool.items():
        if name not in _TOOL_KEYS and bytes(raw) != _TOOL_DEFAULTS.get(name):
            notes.drop(f"tools.{name}")
    function: dict[str, object] = {"name": string_bytes(tool.get("name"), f"{param}.name")}
    if "description" in tool:
        function["description"] = tool["description"]
    if "input_schema" in tool:
        function["parameters"] = tool["input_schema"]
    if is_true(tool.get("strict")):
        function["strict"] = True
    out: dict[str, object] = {"type": "function", "function": function}
    if "cache_control" in tool:
        if "cache_control" in target.extensions:
            out["cache_control"] = tool["cache_control"]
        else:
            notes.drop("cache_control")
    return out


def _write_output_format(fields: Object, out: dict[str, object], notes: Notes) -> None:
    config = as_object(fields.pop("output_config", msgspec.Raw(b"{}")), "output_config")
    notes.drop_unknown(config, frozenset({"effort", "format"}), "output_config")
    raw = fields.pop("output_format", None)  # where the format stood while it was in beta
    raw = config.get("format", raw)
    if raw is None:
        return
    wanted = as_object(raw, "output_config.format")
    if bytes(wanted.get("type", b"")) != b'"json_schema"' or "schema" not in wanted:
        raise CannotTranslate(
            "output_config.format must be {type: json_schema, schema: …}",
            param="output_config.format",
        )
    schema = wanted["schema"]
    is_strict = _may_be_strict(msgspec.json.decode(schema), SCHEMA_DEPTH_MAX)
    if not is_strict:
        notes.drop("output_config.format.strict")  # the guarantee weakens to a request
    out["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": SCHEMA_NAME, "schema": schema, "strict": is_strict},
    }


def _may_be_strict(schema: object, depth: int) -> bool:
    """Whether chat's strict mode takes the schema: every object closed, every property required."""
    if depth == 0:
        return False
    if isinstance(schema, list):
        return all(_may_be_strict(part, depth - 1) for part in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if isinstance(properties, dict) and schema.get("type") in ("object", None):
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if set(properties) - {name for name in required if isinstance(name, str)}:
            return False
    return all(_may_be_strict(part, depth - 1) for part in schema.values())


def _write_identity(fields: Object, out: dict[str, object], notes: Notes) -> None:
    if "metadata" in fields:
        metadata = as_object(fields.pop("metadata"), "metadata")
        notes.drop_unknown(metadata, frozenset({"user_id"}), "metadata")
        if "user_id" in metadata:
            out["user"] = string_bytes(metadata["user_id"], "metadata.user_id")
    if "service_tier" in fields:
        tier = as_string(fields.pop("service_tier"), "service_tier")
        if tier in SERVICE_TIERS:
            out["service_tier"] = SERVICE_TIERS[tier]
        else:
            notes.drop("service_tier")
