"""Runs migrations on the connection that `gateway.store.migrate` hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy.sql.elements import False_

from gateway.store.migrate import defaults_differ
from gateway.store.tables import metadata


def render_item(kind: str, item: object, _context: object) -> str | bool:
    """Render a boolean default so that both databases understand it; the rest as ever."""
    if kind == "server_default" and isinstance(getattr(item, "arg", None), False_):
        return "sa.false()"
    return False


connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run: looprouter db upgrade   (migrations take their connection from it)")

context.configure(
    connection=connection,
    target_metadata=metadata,
    # SQLite cannot alter most things in place; a batch copies the table.
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
    render_item=render_item,
    compare_type=True,
    compare_server_default=defaults_differ,
)
context.run_migrations()
