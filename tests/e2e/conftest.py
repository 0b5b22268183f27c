"""One gateway for all suites of official SDKs; its books are checked after each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sdk_world import SdkWorld, check_books, sdk_world, teach_token_lengths


@pytest.fixture(scope="session")
def shared_sdk_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkWorld]:
    with sdk_world(tmp_path_factory.mktemp("sdks")) as world:
        teach_token_lengths(world)
        yield world


@pytest.fixture(scope="module")
def world(shared_sdk_world: SdkWorld) -> Iterator[SdkWorld]:
    """The gateway in front of simulated providers of both dialects; the file must leave it paid."""
    yield shared_sdk_world
    check_books(shared_sdk_world)
