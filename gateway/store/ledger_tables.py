"""Tables of the ledger: budgets, leased slices of them, attempts, and double-entry bookings.

Money is BIGINT nano-dollars. Instants are unix seconds by the *database's* clock; a window's
start is whole unix seconds (UTC midnight, first of the month, or 0 for a total).
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.core import BUDGET_PERIODS
from gateway.store.columns import flag, one_of, text
from gateway.store.metadata import metadata

SCOPE_KINDS = ("tenant", "team", "key")
LEASE_STATES = ("open", "closed", "expired")
ATTEMPT_STATES = ("sent", "settled", "released")
# Money was neither booked nor owed for it: the only attempts that may ever be deleted. Literal, so
# that both databases see that the index on it fits.
FREE_ATTEMPTS = "state = 'released' AND cost_nanos = 0"


def _nanos(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _tokens(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("scope_kind", sa.Text, nullable=False),
    sa.Column("scope_id", sa.Text, nullable=False),
    sa.Column("period", sa.Text, nullable=False),
    sa.Column("limit_nanos", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),  # set = no longer in force; rows are never deleted
    one_of("scope_kind", SCOPE_KINDS),
    one_of("period", BUDGET_PERIODS),
    sa.CheckConstraint("limit_nanos >= 0", name="limit_not_negative"),
    sa.UniqueConstraint("tenant_id", "scope_kind", "scope_id", "period"),
)

budget_windows = sa.Table(
    "budget_windows",
    metadata,
    sa.Column("budget_id", sa.Text, sa.ForeignKey("budgets.id"), primary_key=True),
    sa.Column("window_start", sa.BigInteger, primary_key=True),
    _nanos("spent_nanos"),  # billed to clients, plus what expired leases may have spent
    _nanos("leased_nanos"),  # granted to open leases and not yet spent
    _nanos("unattributed_nanos"),  # the part of spent that no attempt has claimed
    _nanos("limit_seen_nanos"),  # the highest limit a slice was granted under
    sa.CheckConstraint("spent_nanos >= 0", name="spent_not_negative"),
    sa.CheckConstraint("leased_nanos >= 0", name="leased_not_negative"),
    sa.CheckConstraint("unattributed_nanos >= 0", name="unattributed_not_negative"),
    sa.CheckConstraint("spent_nanos + leased_nanos <= limit_seen_nanos", name="within_limit"),
)

holders = sa.Table(
    "holders",
    metadata,
    sa.Column("holder_id", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("journal_dir", sa.Text, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("heartbeat_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),  # closed in order, or its journal was replayed to the end
    # Everything of the journal before this place is in SQL: moved in the same transaction.
    sa.Column("applied_file", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("applied_offset", sa.BigInteger, nullable=False, server_default="0"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("budget_id", sa.Text, sa.ForeignKey("budgets.id"), nullable=False),
    sa.Column("window_start", sa.BigInteger, nullable=False),
    sa.Column("holder_id", sa.Text, nullable=False),
    _nanos("granted_nanos"),
    _nanos("spent_nanos"),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    text("journal_file"),  # where the holder wrote when the lease was opened
    one_of("state", LEASE_STATES),
    sa.CheckConstraint("spent_nanos >= 0", name="spent_not_negative"),
    sa.CheckConstraint("spent_nanos <= granted_nanos", name="spent_within_grant"),
    sa.Index("ix_leases_state_expires_at", "state", "expires_at"),
    sa.Index("ix_leases_holder_id", "holder_id", "state"),
    sa.Index("ix_leases_budget_id", "budget_id", "window_start"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("team_id", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("holder_id", sa.Text, nullable=False),
    sa.Column("endpoint_id", sa.Text, nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("surface", sa.Text, nullable=False),
    sa.Column("lane", sa.Text, nullable=False, server_default="interactive"),
    flag("stream"),
    sa.Column("state", sa.Text, nullable=False),
    _nanos("hold_nanos"),
    _nanos("cost_nanos"),  # what the provider charges
    _nanos("billed_nanos"),  # what the client pays, at most the hold
    _nanos("overrun_nanos"),  # the rest of a cost above the hold; the operator pays
    _nanos("waste_nanos"),  # cost of an attempt that the client does not pay at all
    _tokens("input_tokens"),
    _tokens("cached_read_tokens"),
    _tokens("cache_write_5m_tokens"),
    _tokens("cache_write_1h_tokens"),
    _tokens("output_tokens"),
    _tokens("reasoning_tokens"),
    _tokens("audio_input_tokens"),
    _tokens("audio_output_tokens"),
    _tokens("image_input_tokens"),
    _tokens("prompt_tokens_estimate"),
    _tokens("unseen_tokens"),  # for the estimate of a crash: see HoldRequest
    flag("is_estimated"),
    text("price_source"),
    text("price_id"),
    text("price_tier"),
    text("price_row"),  # JSON; the row the cost was computed with
    text("price_rows"),  # JSON; the rows fixed at reserve, emptied once settled
    text("finish"),
    text("failure"),  # failure class, or why it was released
    flag("is_simulated"),
    sa.Column("sent_at", sa.Double, nullable=False),
    sa.Column("settled_at", sa.Double),
    one_of("state", ATTEMPT_STATES),
    sa.CheckConstraint("billed_nanos BETWEEN 0 AND hold_nanos", name="billed_within_hold"),
    sa.CheckConstraint(
        "cost_nanos = billed_nanos + overrun_nanos + waste_nanos", name="cost_has_payer"
    ),
    sa.Index("ix_attempts_request_id", "request_id"),
    sa.Index("ix_attempts_tenant_id", "tenant_id", "sent_at"),
    sa.Index("ix_attempts_holder_id", "holder_id", "state"),
    sa.Index("ix_attempts_sent_at", "sent_at"),
    sa.Index(
        "ix_attempts_free",
        "sent_at",
        sqlite_where=sa.text(FREE_ATTEMPTS),
        postgresql_where=sa.text(FREE_ATTEMPTS),
    ),
)

attempt_leases = sa.Table(
    "attempt_leases",
    metadata,
    sa.Column("attempt_id", sa.Text, sa.ForeignKey("attempts.attempt_id"), primary_key=True),
    sa.Column("lease_id", sa.Text, sa.ForeignKey("leases.id"), primary_key=True),
    sa.Index("ix_attempt_leases_lease_id", "lease_id"),
)

entries = sa.Table(
    "entries",
    metadata,
    # "attempt:<id>" or "lease:<id>": one transaction each, whose amounts sum to zero.
    sa.Column("txn_id", sa.Text, primary_key=True),
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("amount_nanos", sa.BigInteger, nullable=False),
    sa.Column("booked_at", sa.Double, nullable=False),
    sa.Index("ix_entries_account", "account"),
)
