"""Programming tasks out of Python's own standard library: signatures and docstrings."""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = ("test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo")
DOC_CHARS = (30, 600)
_ASKS = (
    "Write a Python function that does what its docstring says.\n\n{}",
    "Complete this Python function:\n\n{}",
    "Implement the following in Python.\n\n{}",
    "{}\nFill in the body of the function and explain it briefly.",
)


def code_prompts(seed: int) -> Iterator[str]:
    """Without end of the same, in an order that `seed` gives: each function of the library once."""
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    library, skipped = _library(), set(_SKIPPED)
    found = (each.relative_to(library) for each in library.rglob("*.py"))
    files = sorted(each for each in found if skipped.isdisjoint(each.parts))
    rng.shuffle(files)
    for file in files:
        try:
            tree = ast.parse((library / file).read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (stub := _stub(node)):
                yield rng.choice(_ASKS).format(stub)


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _stub(node: ast.FunctionDef) -> str:
    doc = ast.get_docstring(node)
    low, high = DOC_CHARS
    if doc is None or not low <= len(doc) <= high or node.name.startswith("_"):
        return ""
    return f'def {node.name}({ast.unparse(node.args)}):\n    """{doc}"""\n'
