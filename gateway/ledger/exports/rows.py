"""One row of an export, what a format is, and how numbers and days are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation, localcontext

import msgspec

from gateway.core import NANOS_PER_DOLLAR
from gateway.errors import LoopRouterError
from gateway.ledger.windows import day_of
from gateway.wire.usage import BUCKETS

Cells = Mapping[str, str]

COST_DIGITS = 30  # providers write so many decimals of a dollar
UNITS_PER_NANO: int = 10**COST_DIGITS // NANOS_PER_DOLLAR
ROW_DOLLARS_MAX = 1_000_000
ROW_TOKENS_MAX = 10**12
TEXT_MAX = 200  # characters of a model's name or an id
UNIX_S_MAX = 253_402_300_800  # the year 10000

_PROMPT = ("input", "cached_read", "cache_write_5m", "cache_write_1h", "audio_input", "image_input")
_ANSWER = ("output", "reasoning", "audio_output")
# "-2024-08-06", "-20250514", "@20241022": which snapshot of a model it was.
_DATED = re.compile(r"[-@]20\d{2}-?[01]\d-?[0-3]\d(?=$|:)")


class ExportError(LoopRouterError):
    """An export that cannot be read: says where, what was found and what was expected."""


class ExportRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one row charges. `cost` is in units of 10^-30 dollars.

    `day` is UTC, YYYY-MM-DD. A model of "" means the row is of all models together. `tokens` has a
    number for each bucket that the format tells apart.
    """

    day: str
    model: str = ""
    cost: int = 0
    tokens: Mapping[str, int] = {}
    attempt_id: str = ""
    request_id: str = ""
    is_empty: bool = False  # says only that nothing happened on its day


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """
    A kind of export, known by its header.

    `read` raises ValueError on a cell that is wrong. `optional` None allows any further columns,
    for providers add some now and then. `rounding_nanos` is how far a row's cost may be off because
    the provider rounds it.
    """

    name: str
    title: str
    required: tuple[str, ...]
    read: Callable[[Cells], ExportRow]
    buckets: Callable[[frozenset[str]], tuple[str, ...]]  # told apart, given the columns
    has_cost: bool
    optional: tuple[str, ...] | None = None
    rounding_nanos: int = 0


def measures_of(buckets: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """
    What can be compared: a measure each bucket told apart, and which of our buckets it holds.

    A bucket that is not told apart is in `input` or in `output`, as providers count it.
    """
    measures: dict[str, tuple[str, ...]] = {bucket: (bucket,) for bucket in buckets}
    for total, kinds in (("input", _PROMPT), ("output", _ANSWER)):
        if total in measures:
            measures[total] += tuple(each for each in kinds if each not in measures)
    return {bucket: measures[bucket] for bucket in BUCKETS if bucket in measures}


def family_of(model: str) -> str:
    """
    The name under which both sides' models are compared.

    "Claude Haiku 4.5", "claude-haiku-4-5" and "claude-haiku-4-5-20251001" are one: cost exports
    name models for people, and aliases are billed under the snapshot that answered.
    """
    name = re.sub(r"[\s.]+", "-", model.strip().lower())
    return _DATED.sub("", name).removesuffix("-latest")


def dollars_cell(cells: Cells, column: str) -> int:
    """Units of 10^-30 dollars. ValueError unless a finite number of at most ROW_DOLLARS_MAX."""
    text = cells[column].strip()
    with localcontext() as context:
        context.prec = COST_DIGITS + 20
        try:
            amount = Decimal(text)
        except InvalidOperation:
            raise ValueError(f"{column} is {shown(text)}, which is no amount of dollars") from None
        if not amount.is_finite() or abs(amount) > ROW_DOLLARS_MAX:
            raise ValueError(
                f"{column} is {shown(text)}; at most {ROW_DOLLARS_MAX} dollars a row are read"
            )
        return int(amount.scaleb(COST_DIGITS).to_integral_value())


def tokens_cell(cells: Cells, column: str) -> int:
    """A whole number of tokens, 0 when blank or no such column; "120.0" is one too."""
    text = cells.get(column, "").strip()
    if not text:
        return 0
    try:
        number = int(text) if text.isdecimal() and len(text) < 20 else _whole(text)
    except (InvalidOperation, ValueError, OverflowError):
        raise ValueError(f"{column} is {shown(text)}, which is no whole number") from None
    if not 0 <= number <= ROW_TOKENS_MAX:
        raise ValueError(f"{column} is {shown(text)}; 0 to {ROW_TOKENS_MAX} can be right")
    return number


def _whole(text: str) -> int:
    number = Decimal(text)
    if not number.is_finite() or abs(number) > ROW_TOKENS_MAX or number != int(number):
        raise ValueError
    return int(number)


def text_cell(cells: Cells, column: str) -> str:
    text = cells.get(column, "").strip()
    if len(text) > TEXT_MAX:
        raise ValueError(f"{column} has {len(text)} characters; at most {TEXT_MAX} are read")
    return text


def day_cell(cells: Cells, column: str) -> str:
    """The UTC day of a date or an instant in ISO 8601; one without a zone is in UTC."""
    text = cells[column].strip()
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{column} is {shown(text)}; a date such as 2026-01-31 was expected"
        ) from None
    return moment.date().isoformat()


def unix_day_cell(cells: Cells, column: str) -> str:
    """The UTC day of an instant in unix seconds."""
    text = cells[column].strip()
    if not text.isdecimal() or len(text) > 12 or int(text) >= UNIX_S_MAX:
        raise ValueError(
            f"{column} is {shown(text)}; unix seconds such as 1767225600 were expected"
        )
    return day_of(int(text))


def shown(text: str) -> str:
    """A cell as errors may show it."""
    return repr(text if len(text) <= 40 else text[:40] + "…")


def difference(cells: Cells, total: str, part: str) -> int:
    """Tokens of `total` that are not of `part`."""
    whole, inner = tokens_cell(cells, total), tokens_cell(cells, part)
    if inner > whole:
        raise ValueError(f"{part} is {inner}, more than {total}, which is {whole}")
    return whole - inner
