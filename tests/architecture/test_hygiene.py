"""What must not be in the tree: code from text, shells, registry hosts, paths of one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_layout import tracked
from tests.support.source_tree import ROOT, SERVER_PACKAGES, python_files, shown, tree_of

# Code or objects made from data, and other programs: none of it in a server. The exceptions are
# the supervisor of `looprouter up`, which starts our own servers, the native kernels, whose own
# sources a C++ compiler of the machine builds once, and the doctor, whose children are ourselves.
FORBIDDEN_MODULES = frozenset({"subprocess", "pickle", "marshal", "shelve", "pty", "code", "dill"})
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "__import__"})
FORBIDDEN_METHODS = frozenset(
    {
        *("os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.spawnv", "os.fork"),
        *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load"),
    }
)
ALLOWED = {
    "gateway/app/up.py": {"subprocess"},
    "gateway/app/own_backend.py": {"subprocess"},
    # Our own command, so that no request waits for a backtest.
    "gateway/dashboard/policy_backtest.py": {"asyncio.create_subprocess_exec"},
    "backend/cli/fetch_wheel.py": {"subprocess"},  # pip, with a pinned hash
    "backend/cli/measuring/own_server.py": {"subprocess"},
    "kernels/native/build.py": {"subprocess"},
    "kernels/doctor/process.py": {"subprocess"},
    "gateway/policy/yaml_guard.py": {"yaml.load"},  # with a SafeLoader of its own
}

REGISTRY_HOST = re.compile(
    r"//[a-z0-9.-]*(pypi|npmjs|npm|debian|pythonhosted|yarnpkg)[a-z0-9-]*\.(org|com|net|io)"
)
MACHINE_PATH = re.compile(r"(?<![\w.$~/-])/(work|farm|root|home/[a-z]|Users/[a-z])[\w]*/")
BINARY = frozenset({".png", ".gz", ".parquet", ".npz", ".ico", ".woff2"})


def dangerous(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in FORBIDDEN_MODULES:
                yield node.module
            yield from (
                name for a in node.names if (name := f"{node.module}.{a.name}") in FORBIDDEN_METHODS
            )
        elif isinstance(node, ast.Call):
            called = _dotted(node.func)
            if called in FORBIDDEN_CALLS or called in FORBIDDEN_METHODS:
                yield called


def _dotted(called: ast.expr) -> str:
    """`os.system` for such a name, "" for anything more complicated."""
    if isinstance(called, ast.Name):
        return called.id
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return f"{called.value.id}.{called.attr}"
    return ""


def test_servers_run_no_code_from_data_and_no_other_program() -> None:
    found = [
        f"{shown(path)}: {what}"
        for path in python_files(*SERVER_PACKAGES)
        for what in dangerous(tree_of(path))
        if what not in ALLOWED.get(shown(path), ())
    ]

    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from subprocess import run",
        "eval(x)",
        "import os\nos.system('x')",
        "from asyncio import create_subprocess_exec",
        "import yaml\nyaml.load(x)",
    ],
)
def test_gate_finds_each_kind(code: str) -> None:
    assert list(dangerous(ast.parse(code)))


def _texts() -> Iterator[tuple[str, str]]:
    for name in tracked():
        path = ROOT / name
        if path.suffix not in BINARY and path != Path(__file__):
            yield name, path.read_text("utf-8", "replace")


def test_no_tracked_file_names_a_registry_host() -> None:
    found = [
        f"{name}: {match[0]}" for name, text in _texts() if (match := REGISTRY_HOST.search(text))
    ]

    assert not found, "\n" + "\n".join(found)


def test_no_tracked_file_holds_a_path_of_some_machine() -> None:
    found = [
        f"{name}: {match[0]}" for name, text in _texts() if (match := MACHINE_PATH.search(text))
    ]

    assert not found, "\n" + "\n".join(found)


def test_patterns_find_what_they_look_for() -> None:
    host = "https://files.python" + "hosted.org/packages"
    path = "see /ro" + "ot/.cache/x"

    assert REGISTRY_HOST.search(host)
    assert MACHINE_PATH.search(path)
    assert not MACHINE_PATH.search("GET /v1/root/x and tests/work/x")
