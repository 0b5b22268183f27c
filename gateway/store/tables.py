"""All tables but the ledger's: who may call, what was asked and decided, what must survive.

Instants are unix seconds (UTC). JSON is kept as text, written and read by `gateway.store` only.
Each table that belongs to a tenant has `tenant_id`, and each query on it is scoped by it.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.store import admin_tables, batch_tables, ledger_tables, rollup_tables
from gateway.store.columns import count, flag, text
from gateway.store.metadata import metadata

__all__ = [
    "admin_tables",
    "audit_events",
    "batch_tables",
    "changes",
    "endpoint_holds",
    "endpoint_state",
    "idempotency",
    "keys",
    "ledger_tables",
    "meta",
    "metadata",
    "policies",
    "requests",
    "rollup_tables",
    "snapshots",
    "teams",
    "tenants",
]

IDEMPOTENCY_STATES = ("in_flight", "done")
ERRORS = "status >= 400"  # literal, so that both databases see that the index on it fits
# SQLite numbers rows by itself only for a column that is called INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", sa.Double, nullable=False),
)

teams = sa.Table(
    "teams",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.UniqueConstraint("tenant_id", "name"),
    # So that a key can only name a team of its own tenant.
    sa.UniqueConstraint("tenant_id", "id"),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # the public part, safe to log
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("team_id", sa.Text, nullable=False),
    text("name"),
    sa.Column("secret_hash", sa.LargeBinary, nullable=False),  # HMAC-SHA-256, see gateway.keys
    # After a rotation the secret before it still opens, until this instant.
    sa.Column("previous_hash", sa.LargeBinary),
    sa.Column("previous_expires_at", sa.Double),
    text("models"),  # JSON list of public model names; "" = all
    text("routes"),  # JSON list of surfaces; "" = all
    sa.Column("requests_per_minute", sa.BigInteger),
    sa.Column("tokens_per_minute", sa.BigInteger),
    sa.Column("concurrency_max", sa.BigInteger),
    flag("no_explore"),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("rotated_at", sa.Double),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.ForeignKeyConstraint(
        ["tenant_id", "team_id"], ["teams.tenant_id", "teams.id"], name="fk_keys_team_of_tenant"
    ),
    sa.Index("ix_keys_tenant_id", "tenant_id", "created_at", "id"),
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("team_id", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("surface", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),  # public name
    sa.Column("lane", sa.Text, nullable=False),
    flag("stream"),
    # What `decide` saw and said; with the snapshot it can be repeated exactly.
    text("facts"),  # RequestFacts
    text("policy_version"),
    text("route"),
    text("preference"),
    text("candidates"),  # list of Candidate
    text("live"),  # StoredView: the part of the FleetView that is not in the snapshot
    text("seed"),  # decimal; may have more than 63 bits
    text("snapshot_id"),
    # What came of it.
    text("endpoint_id"),
    count("num_attempts"),
    count("status"),
    text("error"),
    sa.Column("ttft_any_ms", sa.Double),
    sa.Column("ttft_visible_ms", sa.Double),
    sa.Column("duration_ms", sa.Double),
    sa.Column("overhead_us", sa.Double),
    text("usage"),  # Usage; "" = none
    flag("is_estimated"),
    count("cost_nanos"),
    count("billed_nanos"),
    # Keyset pages: newest first within a tenant, and within one of its keys.
    sa.Index("ix_requests_tenant_id", "tenant_id", "created_at", "id"),
    sa.Index("ix_requests_key_id", "tenant_id", "key_id", "created_at", "id"),
    # What the log is filtered by, so that a long look back reads no row that it does not show.
    sa.Index(
        "ix_requests_filters",
        "created_at",
        "id",
        "tenant_id",
        "key_id",
        "model",
        "endpoint_id",
        "lane",
        "stream",
        "status",
    ),
    # What one filter lets through little of: a model that few ask for, an endpoint seldom chosen.
    sa.Index("ix_requests_model", "model", "created_at", "id"),
    sa.Index("ix_requests_endpoint", "endpoint_id", "created_at", "id"),
    # The few that did not go well, with what else they are filtered by.
    sa.Index(
        "ix_requests_errors",
        "created_at",
        "id",
        "tenant_id",
        "key_id",
        "model",
        "endpoint_id",
        "lane",
        "status",
        sqlite_where=sa.text(ERRORS),
        postgresql_where=sa.text(ERRORS),
    ),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),  # FleetSnapshot as JSON, deflated
    sa.Index("ix_snapshots_at", "at"),
)

policies = sa.Table(
    "policies",
    metadata,
    sa.Column("version", sa.Text, primary_key=True),  # hash of the text
    sa.Column("text", sa.Text, nullable=False),  # verbatim, comments too
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("activated_at", sa.Double, nullable=False),
    sa.Index("ix_policies_activated_at", "activated_at"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),  # what the client sent
    sa.Column("claim_id", sa.Text, nullable=False),  # only who claimed it may finish it
    sa.Column("holder_id", sa.Text, nullable=False),  # the process that works on it
    sa.Column("request_hash", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    count("status"),
    text("headers"),  # JSON list of pairs
    sa.Column("body", sa.LargeBinary),  # NULL = not stored (a stream, or too long)
    text("usage"),  # Usage; what a stream has cost already
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),  # of the claim, then of the answer
    sa.CheckConstraint("state IN ('in_flight', 'done')", name="state_known"),
    sa.Index("ix_idempotency_expires_at", "expires_at"),
    sa.Index("ix_idempotency_holder_id", "holder_id", "state"),
)

endpoint_state = sa.Table(
    "endpoint_state",
    metadata,
    sa.Column("state_key", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),  # JSON of the fleet's own
    sa.Column("updated_at", sa.Double, nullable=False),
)

# Endpoints that an operator has taken out of routing; by the id that the policy gives them.
endpoint_holds = sa.Table(
    "endpoint_holds",
    metadata,
    sa.Column("endpoint_id", sa.Text, primary_key=True),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    text("note"),
    sa.Column("since", sa.Double, nullable=False),
    sa.CheckConstraint("mode IN ('paused', 'draining')", name="mode_known"),
)

audit_events = sa.Table(
    "audit_events",
    metadata,
    sa.Column("id", _ROW_NUMBER, primary_key=True, autoincrement=True),
    sa.Column("tenant_id", sa.Text, nullable=False),  # "" = the whole gateway
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),  # "cli", "gateway", a user
    sa.Column("action", sa.Text, nullable=False),  # "key.create", "breaker.open"
    sa.Column("subject", sa.Text, nullable=False),  # id of the thing acted on
    text("detail"),  # JSON, never a secret
    sa.Index("ix_audit_events_tenant_id", "tenant_id", "id"),
    sa.Index("ix_audit_events_subject", "subject", "id"),
)

# A counter a topic, moved in the transaction that changes something; see gateway.store.changes.
changes = sa.Table(
    "changes",
    metadata,
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
