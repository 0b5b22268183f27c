"""Money: journal, budget leases, reserve and settle, reports."""
