"""Docs that cannot rot: what exists is named there, what is named there exists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from gateway import errors
from gateway.cli import cli
from tests.support.source_tree import ROOT, python_files, text_of

DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
DECISION_LINES_MAX = 60
VARIABLE = re.compile(r"LOOPROUTER_[A-Z][A-Z_]*[A-Z]")


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        elif not command.hidden:
            yield " ".join((*path, name))


def test_every_setting_is_in_the_settings_page() -> None:
    settings = set(VARIABLE.findall((ROOT / "gateway/settings.py").read_text()))
    named = set(VARIABLE.findall((ROOT / "docs/settings.md").read_text()))

    assert settings <= named


def test_docs_name_no_variable_that_nothing_reads() -> None:
    read = {
        name
        for path in python_files("gateway", "backend", "tests")
        if path != Path(__file__)
        for name in VARIABLE.findall(text_of(path))
    }
    named = {name for path in DOCS for name in VARIABLE.findall(path.read_text())}

    assert named <= read


def test_only_the_settings_read_the_environment() -> None:
    # Provider keys are looked up by the name that the policy gives, through what settings hand on.
    found = [
        path.relative_to(ROOT).as_posix()
        for path in python_files("gateway")
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*environ", text_of(path))
    ]

    assert found == ["gateway/settings.py"]


def test_every_command_is_in_the_docs() -> None:
    text = "\n".join(path.read_text() for path in DOCS)
    missing = [
        command
        for command in _commands(cli)
        if not re.search(rf"looprouter {re.escape(command)}\b", text)
    ]

    assert not missing, ", ".join(missing)


def test_every_error_code_is_in_the_api_page() -> None:
    text = (ROOT / "docs/api.md").read_text()
    codes = {
        each.code
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.ApiError) and each.code
    }

    assert sorted(code for code in codes if f"`{code}`" not in text) == []


def test_every_make_target_the_docs_use_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {
        name
        for path in DOCS
        for name in re.findall(r"`make (?:[A-Z]+=\S+ )?([a-z-]+)", path.read_text())
    }

    assert used <= targets
    assert {"run", "test"} <= used | set(
        re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    )


def test_every_relative_link_leads_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCS
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]

    assert broken == []


def test_decisions_are_numbered_indexed_and_a_page_long() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()

    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    for path in DECISIONS:
        text = path.read_text()
        assert f"({path.name})" in index
        assert re.search(r"^Status: (accepted|superseded by \d+)$", text, re.MULTILINE), path.name
        for heading in ("Context", "Decision", "Consequences"):
            assert f"\n## {heading}\n" in text, path.name
        assert text.count("\n") <= DECISION_LINES_MAX, path.name
