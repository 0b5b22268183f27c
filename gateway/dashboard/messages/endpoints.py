"""Words of the page endpoints."""

from __future__ import annotations

EN: dict[str, str] = {}

ZH: dict[str, str] = {}
