"""The files of this repository, as the architecture tests see them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("gateway", "backend", "kernels", "migrations")
PYTHON_TREES = (*SHIPPED, "tests", "deploy")
SERVER_PACKAGES = ("gateway", "backend", "kernels")
UNTRACKED = frozenset({"__pycache__", "node_modules"})


def python_files(*trees: str) -> list[Path]:
    return [
        path
        for tree in trees or PYTHON_TREES
        for path in sorted((ROOT / tree).rglob("*.py"))
        if not UNTRACKED.intersection(path.parts)
    ]


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@cache
def functions_of(path: Path) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    return functions_in(tree_of(path))


def functions_in(tree: ast.Module) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    """Functions are statements, so no expression is looked into: most of a tree is expressions."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, block, ())
            if isinstance(inner, list):  # a conditional expression has a `body` too
                waiting.extend(inner)
    return tuple(sorted(found, key=lambda each: each.lineno))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
