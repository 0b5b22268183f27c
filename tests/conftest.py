"""Fixtures that every test may use."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=60, deadline=None)
# For `make check`, which must stay under a minute; `make test` tries every property in full.
settings.register_profile("check", max_examples=10, deadline=None)
settings.load_profile(os.environ.get("LOOPROUTER_TEST_PROFILE", "quick"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
