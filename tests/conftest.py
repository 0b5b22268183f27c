"""Fixtures that every test may use."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=60, deadline=None)
settings.load_profile("quick")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
