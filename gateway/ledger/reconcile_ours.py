"""What the ledger says a provider charged: exact attempts in sums, estimated ones one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import PriceRow
from gateway.ledger.corrections import Corrected, booked_usage, corrections_of
from gateway.ledger.exports.rows import ExportError, family_of
from gateway.ledger.reconcile_theirs import ALL_MODELS, Group
from gateway.ledger.windows import SECONDS_PER_DAY, day_of
from gateway.store.batch_tables import corrections
from gateway.store.ledger_tables import attempts
from gateway.store.rollup_tables import MONEY, TOKENS
from gateway.wire.usage import BUCKETS, Usage

ESTIMATED_MAX = 200_000
DAYS_MAX = 400
SHARED = " (shared)"  # ends the source of a correction that is a share, not the attempt's own bill
_COLUMNS = (
    "attempt_id", "request_id", "endpoint_id", "sent_at", "is_estimated", "hold_nanos",
    "price_row", *MONEY, *TOKENS,
)  # fmt: skip


@dataclass(slots=True)
class Sum:
    """Attempts added up; tokens in the order of BUCKETS."""

    nanos: int = 0
    attempts: int = 0
    tokens: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))

    def add_all(self, other: Sum) -> None:
        self.add(other.nanos, other.tokens, other.attempts)

    def add(self, nanos: int, tokens: Sequence[int], num_attempts: int = 1) -> None:
        """Negative numbers take away again."""
        self.nanos += nanos
        self.attempts += num_attempts
        self.tokens = [a + b for a, b in zip(self.tokens, tokens, strict=True)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A settled attempt with all that is known of it by now."""

    attempt_id: str
    request_id: str
    group: Group
    nanos: int
    usage: Usage
    hold_nanos: int
    price: PriceRow | None
    is_exact: bool  # settled by what the provider said, then or in a correction since
    is_open: bool  # its own bill may still correct it

    @property
    def tokens(self) -> list[int]:
        return [getattr(self.usage, bucket) for bucket in BUCKETS]


@dataclass(slots=True)
class Ours:
    """All settled attempts of a provider on some days."""

    exact: dict[Group, Sum] = field(default_factory=dict)
    estimated: dict[str, Attempt] = field(default_factory=dict)  # by id
    names: dict[str, set[str]] = field(default_factory=dict)  # of each family
    num_in_flight: int = 0

    def exact_of(self, group: Group) -> Sum:
        return self.exact.setdefault(group, Sum())


def provider_model(endpoint_id: str) -> str:
    """The provider's own name of an endpoint's model: "openai/gpt-5#flex" is its gpt-5."""
    return endpoint_id.partition("/")[2].partition("#")[0] or endpoint_id


async def require_provider(connection: AsyncConnection, provider: str) -> None:
    """ExportError, which names those there are, when no attempt is of `provider`."""
    c = attempts.c
    one = await connection.execute(sa.select(c.attempt_id).where(c.provider == provider).limit(1))
    if one.first() is None:
        query = sa.select(c.provider).distinct().order_by(c.provider).limit(100)
        names = ", ".join((await connection.execute(query)).scalars()) or "of none yet"
        raise ExportError(f"the ledger has no attempts of a provider {provider!r}; it has: {names}")


async def read_ours(
    connection: AsyncConnection, provider: str, days: tuple[str, str], *, has_models: bool
) -> Ours:
    """
    Everything settled of `provider` from the first of `days` to the last, both whole UTC days.

    Without models all of a day is one group. ExportError where these are too many days, or too
    much is estimated to be told one by one.
    """
    c = attempts.c
    first, last = (_unix_s(day) for day in days)
    num_days = (last - first) // SECONDS_PER_DAY + 1
    if num_days > DAYS_MAX:
        raise ExportError(
            f"{num_days} days from {days[0]} to {days[1]}; reconcile at most {DAYS_MAX} at a time"
        )
    ours = Ours()
    for start in range(first, last + 1, SECONDS_PER_DAY):  # each within a statement's time
        await _add_exact(connection, ours, provider, start, has_models=has_models)
    corrected = await corrections_of(
        connection,
        corrections.c.provider == provider,
        corrections.c.day >= days[0],
        corrections.c.day <= days[1],
    )
    query = sa.select(*(c[name] for name in _COLUMNS)).where(
        c.provider == provider,
        c.sent_at >= first,
        c.sent_at < last + SECONDS_PER_DAY,
        c.state == "settled",
        c.is_estimated,
    )
    for num, row in enumerate(await connection.execute(query.limit(ESTIMATED_MAX + 1))):
        if num == ESTIMATED_MAX:
            raise ExportError(
                f"more than {ESTIMATED_MAX} attempts of {provider} are estimated on these days; "
                "reconcile fewer days at a time"
            )
        each = _attempt(row, corrected.get(row.attempt_id), has_models=has_models)
        _note_name(ours, row.endpoint_id)
        if each.is_exact:
            ours.exact_of(each.group).add(each.nanos, each.tokens)
        else:
            ours.estimated[each.attempt_id] = each
    return ours


async def find_attempts(
    connection: AsyncConnection, provider: str, ids: Sequence[str], *, has_models: bool
) -> list[Attempt]:
    """The settled attempts that `ids` name, or that belong to a request they name."""
    c = attempts.c
    query = sa.select(*(c[name] for name in _COLUMNS)).where(
        c.attempt_id.in_(ids) | c.request_id.in_(ids),
        c.provider == provider,
        c.state == "settled",
    )
    rows = list(await connection.execute(query))
    if not rows:
        return []
    its = corrections.c.attempt_id.in_([row.attempt_id for row in rows])
    corrected = await corrections_of(connection, its)
    return [_attempt(row, corrected.get(row.attempt_id), has_models=has_models) for row in rows]


async def _add_exact(
    connection: AsyncConnection, ours: Ours, provider: str, start: int, *, has_models: bool
) -> None:
    """Of the day that begins at `start` (unix seconds)."""
    c, k = attempts.c, corrections.c
    moved = (
        sa.select(k.attempt_id, sa.func.sum(k.cost_nanos).label("nanos"))
        .where(k.provider == provider, k.day == day_of(start))
        .group_by(k.attempt_id)
        .subquery()
    )
    query = (
        sa.select(
            c.endpoint_id,
            c.state,
            sa.func.count().label("attempts"),
            sa.func.sum(c.cost_nanos + sa.func.coalesce(moved.c.nanos, 0)).label("nanos"),
            *(sa.func.sum(c[name]).label(name) for name in TOKENS),
        )
        .outerjoin(moved, moved.c.attempt_id == c.attempt_id)
        .where(
            c.provider == provider,
            c.sent_at >= start,
            c.sent_at < start + SECONDS_PER_DAY,
            ~c.is_estimated,
            c.state.in_(("settled", "sent")),
        )
        .group_by(c.endpoint_id, c.state)
    )
    for row in await connection.execute(query):
        if row.state == "sent":
            ours.num_in_flight += int(row.attempts)
            continue
        _note_name(ours, row.endpoint_id)
        tokens = [int(getattr(row, name)) for name in TOKENS]
        group = _group(row.endpoint_id, start, has_models=has_models)
        ours.exact_of(group).add(int(row.nanos), tokens, int(row.attempts))


def _attempt(row: sa.Row[Any], since: Corrected | None, *, has_models: bool) -> Attempt:
    is_from_result = since is not None and since.kind == "native_result"
    is_share = since is not None and since.source.endswith(SHARED)
    return Attempt(
        attempt_id=row.attempt_id,
        request_id=row.request_id,
        group=_group(row.endpoint_id, row.sent_at, has_models=has_models),
        nanos=int(row.cost_nanos) + (since.money["cost_nanos"] if since else 0),
        usage=(since.usage if since else None) or booked_usage(row),
        hold_nanos=int(row.hold_nanos),
        price=msgspec.json.decode(row.price_row, type=PriceRow) if row.price_row else None,
        is_exact=not row.is_estimated or (since is not None and not is_share),
        is_open=bool(row.is_estimated) and not is_from_result,
    )


def _group(endpoint_id: str, unix_s: float, *, has_models: bool) -> Group:
    family = family_of(provider_model(endpoint_id)) if has_models else ALL_MODELS
    return family, day_of(unix_s)


def _note_name(ours: Ours, endpoint_id: str) -> None:
    model = provider_model(endpoint_id)
    ours.names.setdefault(family_of(model), set()).add(model)


def _unix_s(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())
