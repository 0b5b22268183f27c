"""Values of `bench`'s options: lists of loads, and what a request asks of speculation."""

from __future__ import annotations

import math

import rich_click as click

LOAD_MAX = 1024


def numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, ...] | None:
    """`1,4,16`: numbers above zero, commas between."""
    if text is None:
        return None
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no list of numbers like 1,4,16") from error
    if any(not math.isfinite(each) or not 0 < each <= LOAD_MAX for each in found):
        raise click.BadParameter(f"every number is above 0 and at most {LOAD_MAX}")
    return found


def counts(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    found = numbers(context, parameter, text)
    if found is not None and any(each != int(each) for each in found):
        raise click.BadParameter("a concurrency is a whole number")
    return tuple(int(each) for each in found) if found is not None else None


def wish(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> dict[str, object] | None:
    """`off`, `4`, `ngram` or `ngram:4` as the extension of the request body."""
    if text is None:
        return None
    if text == "off":
        return {"off": True}
    method, _, num = text.rpartition(":") if ":" in text or text.isdecimal() else (text, "", "")
    if text != method and not num.isdecimal():
        raise click.BadParameter(f"{text!r} is not like off, 4, ngram or ngram:4")
    return ({"method": method} if method else {}) | ({"n": int(num)} if num else {})
