"""How much to think: chat's `reasoning_effort` and the messages dialect's `thinking`, both ways."""

from __future__ import annotations

import msgspec

from gateway.wire.translate.shapes import (
    CannotTranslate,
    Notes,
    Object,
    Target,
    as_number,
    as_object,
    as_string,
)

BUDGET_TOKENS_MIN = 1024  # the dialect's own bound
EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
# Share of max_tokens that an effort may think, where only a budget can be given.
BUDGET_SHARE = {
    "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.9, "max": 0.95,
}  # fmt: skip
EFFORT_BY_SHARE = ((0.35, "low"), (0.65, "medium"))  # else high: more is known to few models
ADAPTIVE_EFFORT = "high"  # what an adaptive request without an effort means
_REASONING_KEYS = frozenset({"effort", "max_tokens", "exclude", "enabled", "summary"})


def thinking_of_chat(
    fields: Object, target: Target, notes: Notes, *, max_tokens: int, may_think: bool
) -> dict[str, object]:
    """The members `thinking` and `output_config` that chat's reasoning fields become.

    Takes its fields out of `fields`. `may_think` is False where the dialect forbids thinking:
    a forced tool, or a tool loop whose first turn was not thought.
    """
    given = fields.pop("thinking", None)  # the messages form, which some chat clients send
    effort, budget, is_hidden = _wish(fields, notes)
    if given is not None:
        return {"thinking": given}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if not effort and budget is None:
        return {}
    name = "reasoning_effort" if budget is None else "reasoning"
    if not may_think:
        notes.drop(name)
        return {}
    display: dict[str, object] = {"display": "omitted"} if is_hidden else {}
    if budget is not None and target.thinking == "effort":
        notes.drop("reasoning.max_tokens")
        effort, budget = effort or _effort_of_share(budget / max_tokens), None
    if budget is None and target.thinking != "budget":
        if effort == "minimal":
            notes.drop(name)  # the least there is is low
        level = "low" if effort == "minimal" else effort
        return {
            "thinking": {"type": "adaptive", **display},
            "output_config": {"effort": level},
        }
    wanted = budget if budget is not None else int(BUDGET_SHARE[effort] * max_tokens)
    tokens = min(max(wanted, BUDGET_TOKENS_MIN), max_tokens - 1)
    if tokens < BUDGET_TOKENS_MIN:
        notes.drop(name)  # max_tokens leaves no room to think
        return {}
    if budget is not None and tokens != budget:
        notes.drop("reasoning.max_tokens")
    return {"thinking": {"type": "enabled", "budget_tokens": tokens, **display}}


def _wish(fields: Object, notes: Notes) -> tuple[str, int | None, bool]:
    """(effort, budget, hidden) of `reasoning_effort` and of OpenRouter's `reasoning` object."""
    effort, budget, is_hidden = "", None, False
    if "reasoning_effort" in fields:
        effort = as_string(fields.pop("reasoning_effort"), "reasoning_effort")
    if "reasoning" in fields:
        wish = as_object(fields.pop("reasoning"), "reasoning")
        notes.drop_unknown(wish, _REASONING_KEYS, "reasoning")
        if "summary" in wish:
            notes.drop("reasoning.summary")
        if "max_tokens" in wish:
            budget = int(as_number(wish["max_tokens"], "reasoning.max_tokens"))
        if "effort" in wish:
            effort = effort or as_string(wish["effort"], "reasoning.effort")
        enabled = bytes(wish.get("enabled", b""))
        if enabled == b"false":
            effort, budget = "none", None
        elif enabled == b"true" and not effort and budget is None:
            effort = "medium"
        is_hidden = bytes(wish.get("exclude", b"")) == b"true"
    if effort and effort != "none" and effort not in BUDGET_SHARE:
        raise CannotTranslate(
            f"reasoning_effort {effort!r} is unknown; use none, minimal, low, medium, high, "
            "xhigh or max",
            param="reasoning_effort",
        )
    return effort, budget, is_hidden


def effort_of_messages(fields: Object, notes: Notes, *, max_tokens: int | None) -> str:
    """The `reasoning_effort` that `thinking` and `output_config.effort` become; "" = none sent."""
    effort = ""
    if "output_config" in fields:
        config = as_object(fields["output_config"], "output_config")
        if "effort" in config:
            effort = as_string(config["effort"], "output_config.effort")
            if effort not in EFFORTS:
                raise CannotTranslate(
                    f"output_config.effort {effort!r} is unknown; use low, medium, high, xhigh "
                    "or max",
                    param="output_config.effort",
                )
    raw = fields.pop("thinking", None)
    if raw is None:
        return effort
    thinking = as_object(raw, "thinking")
    if "display" in thinking:
        notes.drop("thinking.display")
    kind = as_string(thinking.get("type"), "thinking.type")
    if kind == "disabled":
        return "none"
    if kind == "adaptive":
        return effort or ADAPTIVE_EFFORT
    if kind != "enabled":
        notes.drop("thinking.type")
        return effort
    notes.drop("thinking.budget_tokens")  # an effort says it only roughly
    budget = as_number(thinking.get("budget_tokens", msgspec.Raw(b'""')), "thinking.budget_tokens")
    share = budget / max_tokens if max_tokens else 1.0
    return effort or _effort_of_share(share)


def _effort_of_share(share: float) -> str:
    """The effort that thinks about so much of max_tokens."""
    return next((name for top, name in EFFORT_BY_SHARE if share < top), "high")
