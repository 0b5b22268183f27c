"""Files as OpenAI's API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.store.files import FileRow


def file_json(row: FileRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.num_bytes,
        "created_at": int(row.created_at),
        "expires_at": int(row.expires_at) if row.expires_at is not None else None,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def page_json(rows: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A list as the OpenAI SDKs page through it."""
    return {
        "object": "list",
        "data": list(rows),
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": has_more,
    }
