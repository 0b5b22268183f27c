"""The ledger's limits and rhythms, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.ledger.journal import FILE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Seconds are of the monotonic clock, but for the lease: that is database time."""

    sync_interval_s: float = 0.004  # a power loss costs at most what was written in this time
    commit_interval_s: float = 0.03
    records_per_commit: int = 256
    sql_wait_s: float = 1.0  # a reserve that needs SQL is refused after this
    heartbeat_s: float = 10.0
    lease_ttl_s: float = 30.0
    idle_s: float = 60.0  # unused money goes back to the budget after this
    refusal_s: float = 0.25  # an exhausted budget is not asked about again for so long
    progress_interval_s: float = 1.0
    open_holds_max: int = 20_000
    leases_max: int = 50_000
    journal_bytes_max: int = 1 << 30  # not yet in SQL
    journal_file_bytes_max: int = FILE_BYTES_MAX
