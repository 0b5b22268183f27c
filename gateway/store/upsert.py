"""INSERT … ON CONFLICT, which both databases have but SQLAlchemy keeps in their dialects."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def insert_into(connection: AsyncConnection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An insert with `on_conflict_do_update` and `on_conflict_do_nothing`."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
