"""Add the dashboard's admins and their sessions: new tables only, so it takes no time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admins",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("password_changed_at", sa.Double(), nullable=False),
        sa.Column("last_login_at", sa.Double(), nullable=True),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "role IN ('viewer', 'operator', 'owner')", name=op.f("ck_admins_role_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admins")),
        sa.UniqueConstraint("name", name=op.f("uq_admins_name")),
    )
    op.create_table(
        "admin_sessions",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("admin_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("address", sa.Text(), server_default="", nullable=False),
        sa.Column("browser", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["admin_id"], ["admins.id"], name=op.f("fk_admin_sessions_admin_id_admins")
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_admin_sessions")),
    )
    with op.batch_alter_table("admin_sessions", schema=None) as batch_op:
        batch_op.create_index("ix_admin_sessions_admin_id", ["admin_id"], unique=False)
        batch_op.create_index("ix_admin_sessions_expires_at", ["expires_at"], unique=False)


def downgrade() -> None:
    op.drop_table("admin_sessions")
    op.drop_table("admins")
