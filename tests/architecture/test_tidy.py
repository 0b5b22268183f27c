"""The style guide as a test: sizes, parameters, first lines, and a reason for every suppression."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from tests.support.source_tree import (
    SHIPPED,
    functions_in,
    functions_of,
    python_files,
    shown,
    text_of,
    tree_of,
)

LINES_PER_FUNCTION_MAX = 70
LINES_PER_FILE_MAX = 400
POSITIONAL_PARAMETERS_MAX = 6
COLUMNS_MAX = 100

# Tables of facts, one entry a line: longer is not harder to read. Migrations are history.
DATA_TABLES = ("gateway/catalogue/models*.py", "gateway/catalogue/providers*.py")
HISTORY = ("migrations/versions/*.py",)

SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:\s*no cover)\b(?P<rest>.*)")
REASON = re.compile(r"(\s-\s|#\s*)\w.*\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _is_exempt(path: Path) -> bool:
    return any(fnmatch(shown(path), pattern) for pattern in (*DATA_TABLES, *HISTORY))


def is_gpu_kernel(node: Function) -> bool:
    """A kernel takes pointers, sizes and tiles, is called by name, and is typed call by call."""
    return any(ast.unparse(each).startswith("triton.jit") for each in node.decorator_list)


def long_functions(shown_as: str, functions: Iterable[Function]) -> Iterator[str]:
    for node in functions:
        num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if num_lines > LINES_PER_FUNCTION_MAX:
            yield f"{shown_as}:{node.lineno} {node.name} has {num_lines} lines"


def bare_suppressions(path: Path, text: str) -> Iterator[str]:
    """Comments (not strings) that silence a tool without a code or without saying why."""
    if not SUPPRESSION.search(text):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        found = SUPPRESSION.search(token.string)
        if found is None:
            continue
        rest = found["rest"]
        has_code = found[1].startswith("pragma") or re.match(r":\s*[A-Z]|\[", rest)
        if not has_code or not REASON.search(rest):
            yield f"{shown(path)}:{token.start[0]} {token.string.strip()}"


def test_functions_are_short() -> None:
    found = [
        line
        for path in python_files()
        if not _is_exempt(path)
        for line in long_functions(shown(path), functions_of(path))
    ]

    assert not found, "\n" + "\n".join(found)


def test_files_are_short() -> None:
    found = [
        f"{shown(path)} has {num_lines} lines"
        for path in python_files()
        if not _is_exempt(path) and (num_lines := text_of(path).count("\n")) > LINES_PER_FILE_MAX
    ]

    assert not found, "\n" + "\n".join(found)


def test_functions_take_few_positional_parameters() -> None:
    found = [
        f"{shown(path)}:{node.lineno} {node.name} takes {num_positional}"
        for path in python_files(*SHIPPED)
        for node in functions_of(path)
        if not is_gpu_kernel(node)
        and (
            num_positional := sum(
                each.arg not in ("self", "cls")
                for each in (*node.args.posonlyargs, *node.args.args)
            )
        )
        > POSITIONAL_PARAMETERS_MAX
    ]

    assert not found, "\n" + "\n".join(found)


def test_every_module_says_first_what_it_is_for() -> None:
    found = [
        shown(path)
        for path in python_files(*SHIPPED)
        if text_of(path).strip() and not (ast.get_docstring(tree_of(path)) or "").strip()
    ]

    assert not found, "\n" + "\n".join(found)


def test_every_function_declares_what_it_returns() -> None:
    found = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in python_files(*SHIPPED)
        for node in functions_of(path)
        if node.returns is None and not is_gpu_kernel(node)
    ]

    assert not found, "\n" + "\n".join(found)


def test_every_suppression_has_a_code_and_a_reason() -> None:
    found = [
        line
        for path in python_files(*SHIPPED, "deploy")
        for line in bare_suppressions(path, text_of(path))
    ]

    assert not found, "\n" + "\n".join(found)


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    marks = re.compile(r"pytest\.(mark\.(skip|skipif|xfail)|skip\(|xfail\(|importorskip)")
    found = [
        f"{shown(path)}:{number}"
        for path in python_files("tests")
        if path != Path(__file__)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if marks.search(line)
    ]

    assert not found, "\n" + "\n".join(found)


def test_tidy_finds_what_it_looks_for() -> None:
    here = Path(__file__)
    long_body = "def f():\n" + "    x = 1\n" * LINES_PER_FUNCTION_MAX
    bare = "x = 1  # noqa\ny = 2  # type: ignore[arg-type]\nz = 3  # noqa: S105 - a name\n"

    assert len(list(long_functions("x", functions_in(ast.parse(long_body))))) == 1
    assert [line.split(" ")[0][-2:] for line in bare_suppressions(here, bare)] == [":1", ":2"]
