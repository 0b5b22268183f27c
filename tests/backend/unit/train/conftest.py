"""Tiny targets in float32, and a model with a tokenizer and a chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DType, EngineConfig
from backend.models.loading import load_model
from backend.serving.loading import Prepared, prepare
from kernels.dispatch import select
from tests.support.engine_world import Tiny, tiny_engine_config
from tests.support.spelling_model import save_spelling_model
from tests.support.tiny_checkpoints import save_tiny

NUM_LAYERS = 4


def _tiny(directory: Path, family: str) -> Tiny:
    reference = save_tiny(directory, family, num_hidden_layers=NUM_LAYERS)
    loaded = load_model(directory, tiny_engine_config(), ops=select("cpu", "reference"))
    return Tiny(directory, reference, loaded.model)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return _tiny(tmp_path_factory.mktemp("train-llama"), "llama")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return _tiny(tmp_path_factory.mktemp("train-qwen3"), "qwen3")


@pytest.fixture(scope="session")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    directory = tmp_path_factory.mktemp("train-spelling")
    save_spelling_model(directory)
    config = EngineConfig(
        dtype=DType.FLOAT32,
        num_threads=1,
        kv_cache_bytes=1 << 22,
        sequences_max=4,
        rows_max=64,
        context_len_max=256,
    )
    return prepare(directory, config)
