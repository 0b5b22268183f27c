"""What an export charges, added up in bounded memory: by model and day, and by id on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.ledger.exports.reader import ExportReader
from gateway.ledger.exports.rows import (
    UNITS_PER_NANO,
    ExportError,
    ExportRow,
    family_of,
    measures_of,
)
from gateway.wire.usage import BUCKETS

MODEL_DAYS_MAX = 50_000
IDS_PER_WRITE = 5_000
CACHE_KIB = 64 * 1024
NANOS_MAX = 2**62  # of any sum: what the ledger's columns hold
ALL_MODELS = ""  # the family of an export that tells no models apart

Group = tuple[str, str]  # (family of models, UTC day)


@dataclass(slots=True)
class Charge:
    """A sum of rows. `cost` is in units of 10^-30 dollars; `tokens` by bucket told apart."""

    cost: int = 0
    rows: int = 0
    tokens: dict[str, int] = field(default_factory=dict)

    @property
    def nanos(self) -> int:
        return nanos_of(self.cost)

    def add_nanos(self, nanos: int, tokens: dict[str, int], rows: int) -> None:
        self.add(nanos * UNITS_PER_NANO, tokens, rows)

    def add_all(self, other: Charge) -> None:
        self.add(other.cost, other.tokens, other.rows)

    def add(self, cost: int, tokens: dict[str, int], rows: int = 1) -> None:
        self.cost += cost
        self.rows += rows
        for bucket, number in tokens.items():
            self.tokens[bucket] = self.tokens.get(bucket, 0) + number


@dataclass(frozen=True, slots=True)
class IdCharge:
    """The rows of one id, added up."""

    attempt_id: str
    request_id: str
    model: str
    day: str
    nanos: int
    rows: int
    tokens: dict[str, int]


@dataclass(slots=True)
class Theirs:
    """A whole export. Rows with an id are in `ids`, the others in `groups`."""

    measures: dict[str, tuple[str, ...]]
    has_models: bool = True
    first_day: str = ""
    last_day: str = ""
    num_rows: int = 0
    groups: dict[Group, Charge] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)  # of each family, as they stand

    def charge(self, group: Group) -> Charge:
        return self.groups.setdefault(group, Charge())


def nanos_of(cost: int) -> int:
    """Whole nano-dollars of 10^-30 dollars, halves to even."""
    nanos, rest = divmod(cost, UNITS_PER_NANO)
    half = UNITS_PER_NANO // 2
    return nanos + int(rest > half or (rest == half and nanos % 2 == 1))


class IdCharges:
    """Rows with ids, added up by id in a temporary file that goes when this is closed."""

    def __init__(self) -> None:
        # SQLite deletes a database without a name by itself, and keeps a small one in memory.
        self._file = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
            self._file.execute(f"PRAGMA {pragma}")
        tokens = ", ".join(f"{bucket} INTEGER NOT NULL" for bucket in BUCKETS)
        self._file.execute(
            "CREATE TABLE charges (attempt_id TEXT NOT NULL, request_id TEXT NOT NULL, "
            "model TEXT NOT NULL, day TEXT NOT NULL, nanos INTEGER NOT NULL, "
            f"num_rows INTEGER NOT NULL, {tokens}, PRIMARY KEY (attempt_id, request_id)) "
            "WITHOUT ROWID"
        )
        self._file.execute("CREATE TABLE seen (attempt_id TEXT PRIMARY KEY) WITHOUT ROWID")
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in ("nanos", *BUCKETS))
        # The least of both, for the order of rows must not matter.
        self._upsert = (
            f"INSERT INTO charges VALUES (?, ?, ?, ?, ?, 1, {', '.join('?' * len(BUCKETS))}) "  # noqa: S608  # column names of ours
            "ON CONFLICT DO UPDATE SET num_rows = num_rows + 1, "
            f"model = min(model, excluded.model), day = min(day, excluded.day), {sums}"
        )
        self._waiting: list[tuple[object, ...]] = []

    def add(self, row: ExportRow) -> None:
        tokens = (row.tokens.get(bucket, 0) for bucket in BUCKETS)
        self._waiting.append(
            (row.attempt_id, row.request_id, row.model, row.day, nanos_of(row.cost), *tokens)
        )
        if len(self._waiting) >= IDS_PER_WRITE:
            self._write()

    def chunks(self, size: int) -> Iterator[list[IdCharge]]:
        """All ids in order, at most `size` at a time."""
        self._write()
        cursor = self._file.execute("SELECT * FROM charges ORDER BY attempt_id, request_id")
        while rows := cursor.fetchmany(size):
            # SQLite goes on with floats where whole numbers end.
            if not all(isinstance(cell, int) for row in rows for cell in row[4:]):
                raise ExportError("the rows of one id add up to more than a ledger can hold")
            yield [
                IdCharge(
                    attempt_id=row[0],
                    request_id=row[1],
                    model=row[2],
                    day=row[3],
                    nanos=row[4],
                    rows=row[5],
                    tokens=dict(zip(BUCKETS, row[6:], strict=True)),
                )
                for row in rows
            ]

    def is_first(self, attempt_id: str) -> bool:
        """Whether this attempt was not asked for before: two ids may be of the same one."""
        found = self._file.execute("INSERT OR IGNORE INTO seen VALUES (?)", (attempt_id,))
        return found.rowcount == 1

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        self._file.execute("BEGIN")
        self._file.executemany(self._upsert, self._waiting)
        self._file.execute("COMMIT")
        self._waiting.clear()


def add_up(reader: ExportReader, ids: IdCharges, aliases: dict[str, str]) -> Theirs:
    """
    Read the export to its end. Raises ExportError.

    `aliases` are families of theirs that are ours under another name.
    """
    theirs = Theirs(measures_of(reader.format.buckets(frozenset(reader.columns))))
    has_models: bool | None = None
    for row in reader:
        theirs.first_day = min(theirs.first_day or row.day, row.day)
        theirs.last_day = max(theirs.last_day, row.day)
        if row.is_empty:
            continue
        theirs.num_rows += 1
        if has_models is None:
            has_models = bool(row.model)
        if has_models != bool(row.model):
            raise reader.error(
                "some rows name a model and some do not; export it grouped by model (by line item "
                "for costs), or without any grouping"
            )
        if row.attempt_id or row.request_id:
            ids.add(row)
            continue
        theirs.charge((family(theirs, row.model, aliases), row.day)).add(row.cost, dict(row.tokens))
        if len(theirs.groups) > MODEL_DAYS_MAX:
            raise reader.error(
                f"more than {MODEL_DAYS_MAX} days of models; export fewer days at a time"
            )
    if not theirs.first_day:
        raise reader.error("no rows; there is nothing to reconcile")
    theirs.has_models = has_models is not False
    if any(abs(charge.nanos) > NANOS_MAX for charge in theirs.groups.values()):
        raise reader.error("its dollars add up to more than a ledger can hold")
    return theirs


def family(theirs: Theirs, model: str, aliases: dict[str, str]) -> str:
    """The family of a model of theirs, whose name is noted."""
    if not model:
        return ALL_MODELS
    found = family_of(model)
    found = aliases.get(found, found)
    theirs.names.setdefault(found, set()).add(model)
    return found


def fold(tokens: Sequence[int], measures: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Our tokens, one number a bucket in the order of BUCKETS, as theirs are told apart."""
    by_bucket = dict(zip(BUCKETS, tokens, strict=True))
    return {name: sum(by_bucket[each] for each in held) for name, held in measures.items()}
