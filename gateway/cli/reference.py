"""The command reference, made from the commands themselves (see docs/commands.md)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import rich_click as click

HEADER = """\
# Commands

Generated from the commands' own help (`python -m gateway.cli.reference > docs/commands.md`).
With `--json` nothing but JSON goes to standard output. Exit codes: 0 done; 1 the answer is no (an
invalid policy, sums that do not balance, an endpoint that does not answer, an unknown key); 2 wrong
usage; 3 something on this machine is missing or wrong, in one line that says what to do.
"""


def commands_markdown() -> str:
    """The whole page."""
    from gateway.cli import cli

    return HEADER + "".join(_section(path, command) for path, command in _leaves(cli, ()))


def _leaves(
    group: click.Group, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name), command


def _section(path: tuple[str, ...], command: click.Command) -> str:
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join(["looprouter", *path, *(str(each.human_readable_name) for each in arguments)])
    lines = [f"\n## `{usage}`\n\n{inspect.cleandoc(command.help or '')}\n"]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        lines.append("\n| option | default | meaning |\n|---|---|---|\n")
        lines.extend(_row(option) for option in options)
    return "".join(lines)


def _row(option: click.Option) -> str:
    kind = option.type
    value = ""
    if not option.is_flag:
        choices = getattr(kind, "choices", None)
        value = " " + ("\\|".join(choices) if choices else (kind.name or "text").upper())
    default = option.default
    has_default = isinstance(default, str | int | float) and not isinstance(default, bool)
    meaning = option.help or ("Required." if option.required else "")
    return f"| `{option.opts[0]}`{value} | {default if has_default else '–'} | {meaning} |\n"


if __name__ == "__main__":
    click.echo(commands_markdown(), nl=False)
