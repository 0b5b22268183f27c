"""Tables of the batch lane: uploaded files, batches, their lines, and batches that providers hold.

A line's state, its result and its cost change in one transaction, so after a kill a line is either
settled with its answer or open. Instants are unix seconds by the database's clock.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.store.columns import count, flag, one_of, text
from gateway.store.metadata import metadata

BATCH_STATES = (
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling",
    "cancelled",
)  # fmt: skip
# open: nobody works on it. leased: a worker sends it by itself. submitted: a provider's batch has
# it. The others are ends.
LINE_STATES = ("open", "leased", "submitted", "succeeded", "errored", "cancelled", "expired")
LINE_ENDS = LINE_STATES[3:]
# submitting: the provider may have it though we do not know its id. ended: results not fetched yet.
NATIVE_STATES = ("submitting", "running", "ended", "collected", "cancelling", "lost")


files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # "file-…"
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),  # "batch" | "batch_output"
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    count("num_lines"),
    text("sha256"),
    sa.Column("storage_key", sa.Text, nullable=False),  # where the storage keeps it
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("deleted_at", sa.Double),  # set = gone for clients; the bytes go with the next sweep
    sa.Index("ix_files_tenant_id", "tenant_id", "created_at", "id"),
    sa.Index("ix_files_expires_at", "expires_at"),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # "batch_…", Anthropic's "msgbatch_…"
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("team_id", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("dialect", sa.Text, nullable=False),  # whose object form it was created in
    sa.Column("surface", sa.Text, nullable=False),  # of all its lines
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("input_file_id", sa.Text, nullable=False),
    text("output_file_id"),
    text("error_file_id"),
    text("completion_window"),  # as it was asked for
    text("metadata"),  # JSON
    text("errors"),  # JSON list of {code, line, message, param}
    sa.Column("deadline_at", sa.Double, nullable=False),
    sa.Column("max_cost_nanos", sa.BigInteger),
    text("plan"),  # JSON: the newest placement, lane by lane
    count("list_cost_nanos"),  # what its ended lines had cost at once, at list price
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("in_progress_at", sa.Double),
    sa.Column("finalizing_at", sa.Double),
    sa.Column("completed_at", sa.Double),
    sa.Column("failed_at", sa.Double),
    sa.Column("expired_at", sa.Double),
    sa.Column("cancelling_at", sa.Double),
    sa.Column("cancelled_at", sa.Double),
    sa.Column("planned_at", sa.Double),
    count("num_lines"),
    one_of("state", BATCH_STATES),
    sa.Index("ix_batches_tenant_id", "tenant_id", "created_at", "id"),
    sa.Index("ix_batches_created_at", "created_at", "id"),  # for the operator, of all tenants
    sa.Index("ix_batches_state", "state", "deadline_at"),
)

batch_lines = sa.Table(
    "batch_lines",
    metadata,
    sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id"), primary_key=True),
    sa.Column("line_no", sa.BigInteger, primary_key=True),  # from 1, as in the input file
    sa.Column("custom_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("offset_bytes", sa.BigInteger, nullable=False),  # in the input file
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    sa.Column("model", sa.Text, nullable=False),  # public name
    count("prompt_tokens"),  # expected
    count("output_tokens"),  # expected, at most what the line allows
    text("lane"),  # where the plan puts it: "endpoint#tier" or "endpoint#native"
    sa.Column("not_before", sa.Double),  # the plan waits for a cheaper window, or for a retry
    text("lease_owner"),
    sa.Column("lease_until", sa.Double),
    count("num_tries"),
    text("native_id"),  # our id of the provider's batch that has it
    text("request_id"),
    text("attempt_id"),  # of the ledger; the newest
    text("endpoint_id"),  # that answered
    count("status_code"),
    count("cost_nanos"),
    count("billed_nanos"),
    count("list_nanos"),  # the same tokens at the sync list price
    flag("is_estimated"),
    sa.Column("ended_at", sa.Double),
    one_of("state", LINE_STATES),
    sa.UniqueConstraint("batch_id", "custom_id"),
    sa.Index("ix_batch_lines_state", "batch_id", "state", "line_no"),
    sa.Index("ix_batch_lines_lease", "state", "lease_until"),
    sa.Index("ix_batch_lines_native_id", "native_id"),
)

batch_results = sa.Table(
    "batch_results",
    metadata,
    # From the end of a line until the output files are written.
    sa.Column("batch_id", sa.Text, primary_key=True),
    sa.Column("line_no", sa.BigInteger, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),  # the answer's body, as it came
    sa.ForeignKeyConstraint(
        ["batch_id", "line_no"], ["batch_lines.batch_id", "batch_lines.line_no"]
    ),
)

native_batches = sa.Table(
    "native_batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # ours, told to the provider as metadata
    sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id"), nullable=False),
    sa.Column("endpoint_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    text("provider_file_id"),
    text("provider_batch_id"),
    count("num_lines"),
    text("error"),
    text("owner"),  # the process that has its holds and asks for it
    sa.Column("submitted_at", sa.Double),
    sa.Column("polled_at", sa.Double),  # when its owner last said that it lives
    sa.Column("ended_at", sa.Double),
    one_of("state", NATIVE_STATES),
    sa.Index("ix_native_batches_state", "state", "polled_at"),
    sa.Index("ix_native_batches_batch_id", "batch_id"),
)

# What became known after an attempt was booked: never an edit, always a booking of its own.
corrections = sa.Table(
    "corrections",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # in entries as "correction:<id>"
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("attempt_id", sa.Text, nullable=False, server_default=""),  # "" = of a day as a whole
    sa.Column("tenant_id", sa.Text, nullable=False, server_default=""),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("day", sa.Text, nullable=False),  # UTC, YYYY-MM-DD
    count("cost_nanos"),  # differences; negative where less was spent than booked
    count("billed_nanos"),
    count("overrun_nanos"),
    count("waste_nanos"),
    text("usage"),  # JSON, as it is now known
    text("source"),  # the export's name and hash, or our id of a provider's batch
    sa.Column("created_at", sa.Double, nullable=False),
    one_of("kind", ("native_result", "reconcile")),
    sa.CheckConstraint("cost_nanos = billed_nanos + overrun_nanos + waste_nanos", name="has_payer"),
    sa.Index("ix_corrections_attempt_id", "attempt_id"),
    sa.Index("ix_corrections_day", "provider", "day"),
)
