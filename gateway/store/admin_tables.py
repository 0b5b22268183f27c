"""Tables of the dashboard's people: who may log in, and the sessions they are logged in with.

Admins belong to the whole gateway, not to a tenant. Instants are unix seconds.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.store.metadata import metadata

# Each may do all that those before it may.
ROLES = ("viewer", "operator", "owner")

admins = sa.Table(
    "admins",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),  # what one logs in with, lower case
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("password_hash", sa.Text, nullable=False),  # argon2id in PHC form
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("password_changed_at", sa.Double, nullable=False),
    sa.Column("last_login_at", sa.Double),
    sa.Column("disabled_at", sa.Double),
    sa.CheckConstraint("role IN ('viewer', 'operator', 'owner')", name="role_known"),
)

admin_sessions = sa.Table(
    "admin_sessions",
    metadata,
    sa.Column("token_hash", sa.LargeBinary, primary_key=True),  # SHA-256 of what the cookie holds
    sa.Column("admin_id", sa.Text, sa.ForeignKey("admins.id"), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("last_seen_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),  # however much it is used
    sa.Column("address", sa.Text, nullable=False, server_default=""),
    sa.Column("browser", sa.Text, nullable=False, server_default=""),
    sa.Index("ix_admin_sessions_admin_id", "admin_id"),
    sa.Index("ix_admin_sessions_expires_at", "expires_at"),
)
