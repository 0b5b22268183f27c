"""Add the batch lane: new tables only, so it takes no time on large databases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("surface", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("output_file_id", sa.Text(), server_default="", nullable=False),
        sa.Column("error_file_id", sa.Text(), server_default="", nullable=False),
        sa.Column("completion_window", sa.Text(), server_default="", nullable=False),
        sa.Column("metadata", sa.Text(), server_default="", nullable=False),
        sa.Column("errors", sa.Text(), server_default="", nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=False),
        sa.Column("max_cost_nanos", sa.BigInteger(), nullable=True),
        sa.Column("plan", sa.Text(), server_default="", nullable=False),
        sa.Column("list_cost_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("in_progress_at", sa.Double(), nullable=True),
        sa.Column("finalizing_at", sa.Double(), nullable=True),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.Column("failed_at", sa.Double(), nullable=True),
        sa.Column("expired_at", sa.Double(), nullable=True),
        sa.Column("cancelling_at", sa.Double(), nullable=True),
        sa.Column("cancelled_at", sa.Double(), nullable=True),
        sa.Column("planned_at", sa.Double(), nullable=True),
        sa.Column("num_lines", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "state IN ('validating', 'in_progress', 'finalizing', 'completed', 'failed', "
            "'expired', 'cancelling', 'cancelled')",
            name=op.f("ck_batches_state_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index("ix_batches_state", ["state", "deadline_at"], unique=False)
        batch_op.create_index(
            "ix_batches_tenant_id", ["tenant_id", "created_at", "id"], unique=False
        )

    op.create_table(
        "corrections",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), server_default="", nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="", nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("billed_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("overrun_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("waste_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("usage", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('native_result', 'reconcile')", name=op.f("ck_corrections_kind_known")
        ),
        sa.CheckConstraint(
            "cost_nanos = billed_nanos + overrun_nanos + waste_nanos",
            name=op.f("ck_corrections_has_payer"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_corrections")),
    )
    with op.batch_alter_table("corrections", schema=None) as batch_op:
        batch_op.create_index("ix_corrections_attempt_id", ["attempt_id"], unique=False)
        batch_op.create_index("ix_corrections_day", ["provider", "day"], unique=False)

    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sha256", sa.Text(), server_default="", nullable=False),
        sa.Column("storage_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.create_index("ix_files_expires_at", ["expires_at"], unique=False)
        batch_op.create_index("ix_files_tenant_id", ["tenant_id", "created_at", "id"], unique=False)

    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line_no", sa.BigInteger(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("offset_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lane", sa.Text(), server_default="", nullable=False),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("lease_owner", sa.Text(), server_default="", nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("num_tries", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("native_id", sa.Text(), server_default="", nullable=False),
        sa.Column("request_id", sa.Text(), server_default="", nullable=False),
        sa.Column("attempt_id", sa.Text(), server_default="", nullable=False),
        sa.Column("endpoint_id", sa.Text(), server_default="", nullable=False),
        sa.Column("status_code", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("billed_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("list_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("is_estimated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'leased', 'submitted', 'succeeded', 'errored', 'cancelled', "
            "'expired')",
            name=op.f("ck_batch_lines_state_known"),
        ),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_lines_batch_id_batches")
        ),
        sa.PrimaryKeyConstraint("batch_id", "line_no", name=op.f("pk_batch_lines")),
        sa.UniqueConstraint(
            "batch_id", "custom_id", name=op.f("uq_batch_lines_batch_id_custom_id")
        ),
    )
    with op.batch_alter_table("batch_lines", schema=None) as batch_op:
        batch_op.create_index("ix_batch_lines_lease", ["state", "lease_until"], unique=False)
        batch_op.create_index("ix_batch_lines_native_id", ["native_id"], unique=False)
        batch_op.create_index(
            "ix_batch_lines_state", ["batch_id", "state", "line_no"], unique=False
        )

    op.create_table(
        "native_batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("provider_file_id", sa.Text(), server_default="", nullable=False),
        sa.Column("provider_batch_id", sa.Text(), server_default="", nullable=False),
        sa.Column("num_lines", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("error", sa.Text(), server_default="", nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=True),
        sa.Column("polled_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('submitting', 'running', 'ended', 'collected', 'cancelling', 'lost')",
            name=op.f("ck_native_batches_state_known"),
        ),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_native_batches_batch_id_batches")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_native_batches")),
    )
    with op.batch_alter_table("native_batches", schema=None) as batch_op:
        batch_op.create_index("ix_native_batches_batch_id", ["batch_id"], unique=False)
        batch_op.create_index("ix_native_batches_state", ["state", "polled_at"], unique=False)

    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line_no", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id", "line_no"],
            ["batch_lines.batch_id", "batch_lines.line_no"],
            name=op.f("fk_batch_results_batch_id_line_no_batch_lines"),
        ),
        sa.PrimaryKeyConstraint("batch_id", "line_no", name=op.f("pk_batch_results")),
    )


def downgrade() -> None:
    op.drop_table("batch_results")
    with op.batch_alter_table("native_batches", schema=None) as batch_op:
        batch_op.drop_index("ix_native_batches_state")
        batch_op.drop_index("ix_native_batches_batch_id")

    op.drop_table("native_batches")
    with op.batch_alter_table("batch_lines", schema=None) as batch_op:
        batch_op.drop_index("ix_batch_lines_state")
        batch_op.drop_index("ix_batch_lines_native_id")
        batch_op.drop_index("ix_batch_lines_lease")

    op.drop_table("batch_lines")
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.drop_index("ix_files_tenant_id")
        batch_op.drop_index("ix_files_expires_at")

    op.drop_table("files")
    with op.batch_alter_table("corrections", schema=None) as batch_op:
        batch_op.drop_index("ix_corrections_day")
        batch_op.drop_index("ix_corrections_attempt_id")

    op.drop_table("corrections")
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.drop_index("ix_batches_tenant_id")
        batch_op.drop_index("ix_batches_state")

    op.drop_table("batches")
