"""The command page is what the commands say."""

from __future__ import annotations

import re
from pathlib import Path

from backend.cli.reference import commands_markdown

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/backend-commands.md"


def test_the_command_page_is_current() -> None:
    # Renew it with: python -m backend.cli.reference > docs/backend-commands.md
    assert commands_markdown() == PAGE.read_text()


def test_only_one_file_reads_the_environment() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "backend").rglob("*.py"))
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*environ", path.read_text())
    ]

    assert found == ["backend/cli/environment.py"]
