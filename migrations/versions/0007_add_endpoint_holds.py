"""Add the endpoints that an operator holds back: a new table only, so it takes no time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "endpoint_holds",
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "mode IN ('paused', 'draining')", name=op.f("ck_endpoint_holds_mode_known")
        ),
        sa.PrimaryKeyConstraint("endpoint_id", name=op.f("pk_endpoint_holds")),
    )


def downgrade() -> None:
    op.drop_table("endpoint_holds")
