"""Engines with tiny models; after every test each of them must be empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend.models.loading import load_model
from kernels.dispatch import select
from tests.support.engine_world import EngineWorld, MakeWorld, Tiny, tiny_engine_config
from tests.support.tiny_checkpoints import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    directory = tmp_path_factory.mktemp("tiny-llama")
    reference = save_tiny(directory, "llama")
    loaded = load_model(directory, tiny_engine_config(), ops=select("cpu", "reference"))
    return Tiny(directory, reference, loaded.model)


@pytest.fixture
def make_world(tiny: Tiny) -> Iterator[MakeWorld]:
    """Makes engines; at the end what is left is finished, and every block must be free."""
    worlds: list[EngineWorld] = []

    def make(**changes: Any) -> EngineWorld:
        worlds.append(EngineWorld(tiny.model, **changes))
        return worlds[-1]

    yield make
    for world in worlds:
        world.run()
        world.check_empty()
