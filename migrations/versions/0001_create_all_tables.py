"""Create all tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("holder_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("surface", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("hold_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("billed_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("overrun_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("waste_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_read_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cache_write_5m_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cache_write_1h_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("audio_input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("audio_output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("image_input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_tokens_estimate", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("unseen_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("is_estimated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("price_source", sa.Text(), server_default="", nullable=False),
        sa.Column("price_id", sa.Text(), server_default="", nullable=False),
        sa.Column("price_tier", sa.Text(), server_default="", nullable=False),
        sa.Column("price_row", sa.Text(), server_default="", nullable=False),
        sa.Column("price_rows", sa.Text(), server_default="", nullable=False),
        sa.Column("finish", sa.Text(), server_default="", nullable=False),
        sa.Column("failure", sa.Text(), server_default="", nullable=False),
        sa.Column("is_simulated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('sent', 'settled', 'released')", name=op.f("ck_attempts_state_known")
        ),
        sa.CheckConstraint(
            "billed_nanos BETWEEN 0 AND hold_nanos", name=op.f("ck_attempts_billed_within_hold")
        ),
        sa.CheckConstraint(
            "cost_nanos = billed_nanos + overrun_nanos + waste_nanos",
            name=op.f("ck_attempts_cost_has_payer"),
        ),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_attempts")),
    )
    op.create_index("ix_attempts_holder_id", "attempts", ["holder_id", "state"], unique=False)
    op.create_index("ix_attempts_request_id", "attempts", ["request_id"], unique=False)
    op.create_index("ix_attempts_sent_at", "attempts", ["sent_at"], unique=False)
    op.create_index("ix_attempts_tenant_id", "attempts", ["tenant_id", "sent_at"], unique=False)
    op.create_table(
        "audit_events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
    )
    op.create_index("ix_audit_events_tenant_id", "audit_events", ["tenant_id", "id"], unique=False)
    op.create_table(
        "budgets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "period IN ('day', 'month', 'total')", name=op.f("ck_budgets_period_known")
        ),
        sa.CheckConstraint(
            "scope_kind IN ('tenant', 'team', 'key')", name=op.f("ck_budgets_scope_kind_known")
        ),
        sa.CheckConstraint("limit_nanos >= 0", name=op.f("ck_budgets_limit_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sa.UniqueConstraint(
            "tenant_id",
            "scope_kind",
            "scope_id",
            "period",
            name=op.f("uq_budgets_tenant_id_scope_kind_scope_id_period"),
        ),
    )
    op.create_table(
        "changes",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic", name=op.f("pk_changes")),
    )
    op.create_table(
        "endpoint_state",
        sa.Column("state_key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("state_key", name=op.f("pk_endpoint_state")),
    )
    op.create_table(
        "entries",
        sa.Column("txn_id", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("booked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("txn_id", "account", name=op.f("pk_entries")),
    )
    op.create_index("ix_entries_account", "entries", ["account"], unique=False)
    op.create_table(
        "holders",
        sa.Column("holder_id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("journal_dir", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("applied_file", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("applied_offset", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("holder_id", name=op.f("pk_holders")),
    )
    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("holder_id", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("status", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("headers", sa.Text(), server_default="", nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("usage", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "state IN ('in_flight', 'done')", name=op.f("ck_idempotency_state_known")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_expires_at", "idempotency", ["expires_at"], unique=False)
    op.create_index("ix_idempotency_holder_id", "idempotency", ["holder_id", "state"], unique=False)
    op.create_table(
        "meta",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "policies",
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("activated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policies")),
    )
    op.create_index("ix_policies_activated_at", "policies", ["activated_at"], unique=False)
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("surface", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("facts", sa.Text(), server_default="", nullable=False),
        sa.Column("policy_version", sa.Text(), server_default="", nullable=False),
        sa.Column("route", sa.Text(), server_default="", nullable=False),
        sa.Column("preference", sa.Text(), server_default="", nullable=False),
        sa.Column("candidates", sa.Text(), server_default="", nullable=False),
        sa.Column("live", sa.Text(), server_default="", nullable=False),
        sa.Column("seed", sa.Text(), server_default="", nullable=False),
        sa.Column("snapshot_id", sa.Text(), server_default="", nullable=False),
        sa.Column("endpoint_id", sa.Text(), server_default="", nullable=False),
        sa.Column("num_attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("status", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("error", sa.Text(), server_default="", nullable=False),
        sa.Column("ttft_any_ms", sa.Double(), nullable=True),
        sa.Column("ttft_visible_ms", sa.Double(), nullable=True),
        sa.Column("duration_ms", sa.Double(), nullable=True),
        sa.Column("overhead_us", sa.Double(), nullable=True),
        sa.Column("usage", sa.Text(), server_default="", nullable=False),
        sa.Column("is_estimated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("billed_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index("ix_requests_created_at", "requests", ["created_at"], unique=False)
    op.create_index(
        "ix_requests_key_id", "requests", ["tenant_id", "key_id", "created_at", "id"], unique=False
    )
    op.create_index(
        "ix_requests_tenant_id", "requests", ["tenant_id", "created_at", "id"], unique=False
    )
    op.create_table(
        "snapshots",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index("ix_snapshots_at", "snapshots", ["at"], unique=False)
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "budget_windows",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("leased_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("unattributed_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("limit_seen_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint("leased_nanos >= 0", name=op.f("ck_budget_windows_leased_not_negative")),
        sa.CheckConstraint(
            "spent_nanos + leased_nanos <= limit_seen_nanos",
            name=op.f("ck_budget_windows_within_limit"),
        ),
        sa.CheckConstraint("spent_nanos >= 0", name=op.f("ck_budget_windows_spent_not_negative")),
        sa.CheckConstraint(
            "unattributed_nanos >= 0", name=op.f("ck_budget_windows_unattributed_not_negative")
        ),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budgets.id"], name=op.f("fk_budget_windows_budget_id_budgets")
        ),
        sa.PrimaryKeyConstraint("budget_id", "window_start", name=op.f("pk_budget_windows")),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("holder_id", sa.Text(), nullable=False),
        sa.Column("granted_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("journal_file", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint(
            "state IN ('open', 'closed', 'expired')", name=op.f("ck_leases_state_known")
        ),
        sa.CheckConstraint(
            "spent_nanos <= granted_nanos", name=op.f("ck_leases_spent_within_grant")
        ),
        sa.CheckConstraint("spent_nanos >= 0", name=op.f("ck_leases_spent_not_negative")),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budgets.id"], name=op.f("fk_leases_budget_id_budgets")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_index("ix_leases_budget_id", "leases", ["budget_id", "window_start"], unique=False)
    op.create_index("ix_leases_holder_id", "leases", ["holder_id", "state"], unique=False)
    op.create_index("ix_leases_state_expires_at", "leases", ["state", "expires_at"], unique=False)
    op.create_table(
        "teams",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_teams_tenant_id_tenants")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_teams")),
        sa.UniqueConstraint("tenant_id", "id", name=op.f("uq_teams_tenant_id_id")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_teams_tenant_id_name")),
    )
    op.create_table(
        "attempt_leases",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.attempt_id"],
            name=op.f("fk_attempt_leases_attempt_id_attempts"),
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_attempt_leases_lease_id_leases")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "lease_id", name=op.f("pk_attempt_leases")),
    )
    op.create_index("ix_attempt_leases_lease_id", "attempt_leases", ["lease_id"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary(), nullable=True),
        sa.Column("previous_expires_at", sa.Double(), nullable=True),
        sa.Column("models", sa.Text(), server_default="", nullable=False),
        sa.Column("routes", sa.Text(), server_default="", nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("concurrency_max", sa.BigInteger(), nullable=True),
        sa.Column("no_explore", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("rotated_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "team_id"], ["teams.tenant_id", "teams.id"], name="fk_keys_team_of_tenant"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_keys_tenant_id_tenants")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_index("ix_keys_tenant_id", "keys", ["tenant_id", "created_at", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_keys_tenant_id", table_name="keys")
    op.drop_table("keys")
    op.drop_index("ix_attempt_leases_lease_id", table_name="attempt_leases")
    op.drop_table("attempt_leases")
    op.drop_table("teams")
    op.drop_index("ix_leases_state_expires_at", table_name="leases")
    op.drop_index("ix_leases_holder_id", table_name="leases")
    op.drop_index("ix_leases_budget_id", table_name="leases")
    op.drop_table("leases")
    op.drop_table("budget_windows")
    op.drop_table("tenants")
    op.drop_index("ix_snapshots_at", table_name="snapshots")
    op.drop_table("snapshots")
    op.drop_index("ix_requests_tenant_id", table_name="requests")
    op.drop_index("ix_requests_key_id", table_name="requests")
    op.drop_index("ix_requests_created_at", table_name="requests")
    op.drop_table("requests")
    op.drop_index("ix_policies_activated_at", table_name="policies")
    op.drop_table("policies")
    op.drop_table("meta")
    op.drop_index("ix_idempotency_holder_id", table_name="idempotency")
    op.drop_index("ix_idempotency_expires_at", table_name="idempotency")
    op.drop_table("idempotency")
    op.drop_table("holders")
    op.drop_index("ix_entries_account", table_name="entries")
    op.drop_table("entries")
    op.drop_table("endpoint_state")
    op.drop_table("changes")
    op.drop_table("budgets")
    op.drop_index("ix_audit_events_tenant_id", table_name="audit_events")
    op.drop_table("audit_events")
    op.drop_index("ix_attempts_tenant_id", table_name="attempts")
    op.drop_index("ix_attempts_sent_at", table_name="attempts")
    op.drop_index("ix_attempts_request_id", table_name="attempts")
    op.drop_index("ix_attempts_holder_id", table_name="attempts")
    op.drop_table("attempts")
