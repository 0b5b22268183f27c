"""`looprouter-backend`: serve a model, fetch one, measure one."""

from __future__ import annotations


def main() -> None:
    """The command's entry; the commands come with their modules."""
    raise SystemExit("no command yet")
