"""One tiny target for all draft methods, with its states as transformers computes them."""

from __future__ import annotations

import pytest

from backend.models.loading import load_model
from kernels.dispatch import select
from tests.support.draft_rounds import States
from tests.support.engine_world import Tiny, tiny_engine_config
from tests.support.tiny_checkpoints import save_tiny

NUM_LAYERS = 6


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    directory = tmp_path_factory.mktemp("draft-target")
    reference = save_tiny(directory, "llama", num_hidden_layers=NUM_LAYERS)
    loaded = load_model(directory, tiny_engine_config(), ops=select("cpu", "reference"))
    return Tiny(directory, reference, loaded.model)


@pytest.fixture(scope="session")
def states(target: Tiny) -> States:
    return States(target.reference)
