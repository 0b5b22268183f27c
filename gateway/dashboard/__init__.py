"""The dashboard at /admin: an edge of its own, with its own middleware, beside the hot path."""
