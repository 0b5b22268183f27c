"""The command page is what the commands say."""

from __future__ import annotations

from pathlib import Path

from gateway.cli.reference import commands_markdown

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_command_page_is_current() -> None:
    # Renew it with: python -m gateway.cli.reference > docs/commands.md
    assert commands_markdown() == PAGE.read_text()
