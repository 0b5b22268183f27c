"""The only environment in which a chat template runs.

Jinja's immutable sandbox (no underscore attributes, nothing that changes a value, no loader and so
no file), narrowed to what chat templates use: a list of filters, methods and globals instead of all
but some. What could compute or allocate without bound pays from a budget: the tree of the template
is rewritten so that loops, concatenations, slices and literals do too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from string import Formatter
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, pass_context
from jinja2.visitor import NodeTransformer

from backend.serving.template_budget import (
    INTEGER_BITS_MAX,
    TemplateLimit,
    as_text,
    concat,
    current,
    groups,
)

PLAIN_FILTERS = (
    *("abs", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items"),
    *("last", "length", "list", "map", "max", "min", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "sort", "unique"),
)
TEXT_FILTERS = ("capitalize", "lower", "title", "trim", "upper")
STRING_METHODS = frozenset(
    {
        *("capitalize", "count", "endswith", "find", "format", "index", "isalnum", "isalpha"),
        *("isdigit", "isnumeric", "isspace", "join", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition"),
        *("rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper"),
    }
)
MAPPING_METHODS = frozenset({"get", "items", "keys", "values"})
LIST_METHODS = frozenset({"count", "index"})
TEMPLATE_OBJECTS = (
    LoopContext, Namespace, Cycler, Joiner, Macro, BlockReference, TemplateReference
)  # fmt: skip
REFUSED_TAGS = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Extends: "extends",
    nodes.EvalContextModifier: "autoescape",
}
FORMAT_LEN_MAX = 256
WIDTH_MAX = 64

# Names that a template cannot write; the rewritten tree uses them.
_TICKING, _CONCAT, _CUT, _BUILT = "<ticking>", "<concat>", "<cut>", "<built>"


class TemplateRefusal(TemplateError):
    """The template itself refuses the messages (`raise_exception`)."""


class ChatNamespace(Namespace):
    """Holds no other namespace: their texts could hold each other without end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        current().shape(value)
        if any(isinstance(each, Namespace) for group in groups(value) for each in group):
            raise TemplateLimit("it puts a namespace into a namespace")
        super().__setitem__(name, value)


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates with `compile_tree`; rendering needs a budget in the context."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    # Captured blocks and macros put their pieces together with this.
    concat = staticmethod(concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationTag],
            finalize=_finalized,
        )
        self.filters = {
            **{name: _paying(FILTERS[name]) for name in (*PLAIN_FILTERS, *TEXT_FILTERS)},
            "indent": _indented,
            "join": _joined,
            "replace": lambda text, old, new, count=-1: _replaced(as_text(text), old, new, count),
            "round": _rounded,
            "safe": lambda value: value,
            "string": as_text,
            "sum": _summed,
            "tojson": _tojson,
            _TICKING: _ticking,
            _CONCAT: concat,
            _CUT: _cut,
            _BUILT: lambda value: current().shape(value),
        }
        self.globals = {
            "cycler": Cycler,
            "dict": lambda *args, **kwargs: current().shape(dict(*args, **kwargs)),
            "joiner": Joiner,
            "namespace": ChatNamespace,
            "raise_exception": _raise_exception,
            "range": self.globals["range"],
            "strftime_now": _strftime_now,
        }

    def compile_tree(self, source: str) -> Any:
        """Code for `Template.from_code`. Raises TemplateError for what may not be in a template."""
        tree = self.parse(source)
        for kind, tag in REFUSED_TAGS.items():
            for _ in tree.find_all(kind):
                raise TemplateError(f"the tag {tag!r} is not allowed")
        for used in tree.find_all(nodes.Filter):
            if used.name not in self.filters:
                raise TemplateError(f"the filter {used.name!r} is not allowed")
        return self.compile(_Rewriter().visit(tree))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in STRING_METHODS
        if isinstance(obj, Mapping):
            return attr in MAPPING_METHODS
        if isinstance(obj, list | tuple):
            return attr in LIST_METHODS
        return isinstance(obj, TEMPLATE_OBJECTS) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """None: `call` sees to `str.format`."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        # Jinja adds the variables of the place of the call, by names with an underscore.
        given = {key: value for key, value in kwargs.items() if not key.startswith("_")}
        budget.shape((args, given))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return _replaced(owner, *args, **given)
        if isinstance(owner, str) and name == "join":
            (values,) = args
            return _joined(values, owner)
        if isinstance(owner, str) and name == "format":
            return _formatted(owner, args, given)
        return budget.value(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        current().step()
        if operator == "%" and isinstance(left, str):
            raise TemplateLimit("formatting with % is not allowed")
        if operator == "+":
            return _added(left, right)
        if operator == "*":
            _check_product(left, right)
        if operator == "**":
            _check_power(left, right)
        result = super().call_binop(context, operator, left, right)
        return result if isinstance(result, int | float) else current().shape(result)


class _Rewriter(NodeTransformer):
    """Puts the budget into what Jinja compiles to plain Python."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(_TICKING, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = nodes.List([self.visit(each) for each in node.nodes], lineno=node.lineno)
        return _through(_CONCAT, parts)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        nothing = nodes.Const(None, lineno=node.lineno)
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _through(_CUT, node.node, *(each or nothing for each in bounds))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _through(_BUILT, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through(_BUILT, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _through(_BUILT, node) if node.ctx == "load" else node


def _through(name: str, value: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


@pass_context
def _finalized(context: Context, value: Any) -> Any:
    """What `{{ … }}` writes. Taking the context keeps Jinja from calling it while compiling."""
    return value if isinstance(value, str) else as_text(value)


def _paying(function: Callable[..., Any]) -> Callable[..., Any]:
    def paid(*args: Any, **kwargs: Any) -> Any:
        current().step()
        return current().value(function(*args, **kwargs))

    # Jinja reads from the function whether it wants the context or the environment first.
    marker = getattr(function, "jinja_pass_arg", None)
    if marker is not None:
        paid.jinja_pass_arg = marker  # type: ignore[attr-defined]  # that is where Jinja looks
    return paid


def _ticking(values: Iterable[Any]) -> Iterator[Any]:
    budget = current()
    for value in values:
        budget.step()
        yield value


def _cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    cut = value[start:stop:step]
    return current().value(cut) if isinstance(cut, str) else cut


def _added(left: Any, right: Any) -> Any:
    budget = current()
    if isinstance(left, str) and isinstance(right, str):
        budget.text(len(left) + len(right))
        return left + right
    added = left + right
    return added if isinstance(added, int | float) else budget.shape(added)


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str):
            current().text(len(value) * max(times, 0))
        elif isinstance(times, int) and isinstance(value, list | tuple):
            current().step(len(value) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 1))


def _check_bits(num_bits: int) -> None:
    if num_bits > INTEGER_BITS_MAX:
        raise TemplateLimit("it makes too large a number")


def _replaced(text: str, old: str, new: str, count: int | None = -1) -> str:
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    current().text(max(len(text), len(text) + times * (len(new) - len(old))))
    return text.replace(old, new, times)


def _joined(values: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [_item(value, attribute) for value in values]
    texts: list[Any] = []
    for value in values:
        texts += [separator, value] if texts else [value]
    return concat(texts)


def _formatted(text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """`str.format` with bare fields: no attributes, no items, no widths."""
    parts: list[Any] = []
    num_unnamed = 0
    for literal, name, spec, conversion in Formatter().parse(text):
        parts.append(literal)
        if name is None:
            continue
        if spec or conversion or not (name == "" or name.isdecimal() or name in kwargs):
            raise TemplateLimit("a field of format() may only be a name or a number")
        index = num_unnamed if name == "" else name
        num_unnamed += name == ""
        parts.append(kwargs[name] if name in kwargs else args[int(index)])
    return concat(parts)


def _item(value: Any, attribute: Any) -> Any:
    return value[attribute] if isinstance(value, Mapping) else ""


def _indented(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    indent = width if isinstance(width, str) else " " * min(width, WIDTH_MAX + 1)
    if len(indent) > WIDTH_MAX:
        raise TemplateLimit("it indents too far")
    # Jinja keeps a line end at the end, and therefore adds one before it splits.
    lines = (as_text(text) + "\n").splitlines()
    return concat(
        ("" if index == 0 else "\n")
        + (indent if (first if index == 0 else line or blank) else "")
        + line
        for index, line in enumerate(lines)
    )


def _rounded(value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > WIDTH_MAX:
        raise TemplateLimit("it rounds to too many places")
    return FILTERS["round"](value, precision, method)


def _summed(values: Iterable[Any]) -> Any:
    numbers = list(values)
    if not all(isinstance(each, int | float) for each in numbers):
        raise TemplateLimit("only numbers can be summed")
    return sum(numbers)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The arguments are those that templates know from Hugging Face's filter of this name."""
    budget = current()
    budget.value(value)
    if indent is not None and not 0 <= indent <= WIDTH_MAX:
        raise TemplateLimit("it indents too far")
    if separators is not None and sum(map(len, separators)) > WIDTH_MAX:
        raise TemplateLimit("its separators are too long")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators,
                      sort_keys=sort_keys)  # fmt: skip
    budget.text(len(text))
    if not ensure_ascii or text.isascii():
        return text
    # Private-use characters stay: one of them may be a guard's mark.
    return "".join(
        character if ord(character) < 0x80 or 0xF0000 <= ord(character) < 0xFFFFE
        else json.dumps(character)[1:-1]
        for character in text
    )  # fmt: skip


def _raise_exception(message: Any) -> None:
    raise TemplateRefusal(as_text(message))


def _strftime_now(form: str) -> str:
    if len(form) > FORMAT_LEN_MAX:
        raise TemplateLimit("its date format is too long")
    return datetime.now().astimezone().strftime(form)
