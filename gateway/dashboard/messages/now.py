"""Words of the page now."""

from __future__ import annotations

EN: dict[str, str] = {}

ZH: dict[str, str] = {}
