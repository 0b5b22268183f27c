"""Tables of text for a terminal, and numbers short enough for one."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry; entries that begin like numbers stand to the right.

    Raises ValueError if a row has more or fewer entries than there are headings.
    """
    for row in rows:
        if len(row) != len(headings):
            raise ValueError(f"a row has {len(row)} entries for {len(headings)} headings: {row}")
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_right = [_is_numbers(column[1:]) for column in columns]
    lines = [_line(headings, widths, is_right)]
    lines.append("  ".join("-" * width for width in widths))
    lines.extend(_line(row, widths, is_right) for row in rows)
    return "\n".join(lines)


def short(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits without an exponent where that is short; "-" for None."""
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:.{digits}g}"
        return f"{value:.0f}" if "e" in text else text
    return f"{value:.{digits - 1}e}"


def _line(entries: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    shown = (
        entry.rjust(width) if right else entry.ljust(width)
        for entry, width, right in zip(entries, widths, is_right, strict=True)
    )
    return "  ".join(shown).rstrip()


def _is_numbers(entries: Sequence[str]) -> bool:
    """Of the entries that say something."""
    said = [entry for entry in entries if entry not in ("", "-")]
    return bool(said) and all(entry[0].isdigit() or entry[0] in "-+." for entry in said)
