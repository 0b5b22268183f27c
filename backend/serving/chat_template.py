"""Messages → the text a model was trained on, by the template that came with it."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateError

from backend.errors import BadRequest, UnsafeFormat
from backend.serving.control_guard import ControlGuard, MarkedText
from backend.serving.template_budget import Limits, begin, measure
from backend.serving.template_sandbox import ChatEnvironment, TemplateRefusal

SOURCE_CHARS_MAX = 256 * 1024
MESSAGE_CHARS_MAX = 500

_environment = ChatEnvironment()


class ChatTemplate:
    """A compiled template; rendering may happen in several threads."""

    def __init__(self, source: str, tokens: Mapping[str, str], guard: ControlGuard) -> None:
        """`tokens`: what templates call bos_token, eos_token and so on.

        Raises UnsafeFormat for a template that does not compile or uses what is not allowed.
        """
        if len(source) > SOURCE_CHARS_MAX:
            raise UnsafeFormat(
                f"the chat template has {len(source)} characters; at most {SOURCE_CHARS_MAX}"
            )
        self.source = source
        self._tokens = dict(tokens)
        self._guard = guard
        try:
            self._template = contextvars.copy_context().run(_compiled, source)
        except (TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise UnsafeFormat(f"the chat template was refused: {_said(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        adds_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> MarkedText:
        """`variables`: what the caller sets beside, `enable_thinking` for example.

        Raises BadRequest: the template refuses these messages, cannot handle them, or would take
        too long.
        """
        given = {
            **(variables or {}),
            "documents": None,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
        }
        mark = ""
        try:
            protected, mark = self._guard.protect(given)
            names = {**protected, **self._tokens, "add_generation_prompt": adds_generation_prompt}
            text = contextvars.copy_context().run(self._rendered, names)
        except TemplateRefusal as refusal:
            raise BadRequest(
                f"the model's chat template refuses this: {_said(refusal, mark)}", param="messages"
            ) from refusal
        # The template is foreign code: whatever it stumbles over is the end of this request only.
        except Exception as error:
            raise BadRequest(
                f"the model's chat template cannot take these messages: {_said(error, mark)}",
                param="messages",
            ) from error
        return MarkedText(text, mark)

    def _rendered(self, names: Mapping[str, Any]) -> str:
        num_values, num_chars = measure(names)
        limits = Limits.for_input(num_chars, num_values)
        budget = begin(limits)
        pieces, num_written = [], 0
        for piece in self._template.generate(**names):
            num_written += len(piece)
            budget.step()
            budget.text(num_written - limits.text_max if num_written > limits.text_max else 0)
            pieces.append(piece)
        return "".join(pieces)


def _compiled(source: str) -> Template:
    begin(Limits.for_input(0, 0))
    code = _environment.compile_tree(source)
    return Template.from_code(_environment, code, _environment.make_globals(None))


def _said(error: BaseException, mark: str = "") -> str:
    """One line, of bounded length, without marks."""
    text = " ".join(str(error).replace(mark, "").split()) or type(error).__name__
    named = text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"
    return named[:MESSAGE_CHARS_MAX]
