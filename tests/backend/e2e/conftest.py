"""One server of the model that spells, and one of SmolLM2, for all tests that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from tokenizers import Tokenizer as FastTokenizer

from tests.support.backend_process import TINY, RunningBackend, run_backend, running_backend
from tests.support.spelling_model import save_spelling_model


@pytest.fixture(scope="session")
def spelling_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "spelling"
    save_spelling_model(directory)
    return directory


@pytest.fixture(scope="session")
def token_ids(spelling_model: Path) -> dict[str, int]:
    """Of the spelling model, by text."""
    return FastTokenizer.from_file(str(spelling_model / "tokenizer.json")).get_vocab()


@pytest.fixture(scope="session")
def shared_backend(
    spelling_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBackend]:
    with running_backend(spelling_model, tmp_path_factory.mktemp("backend"), *TINY) as backend:
        yield backend


@pytest.fixture
def backend(shared_backend: RunningBackend) -> Iterator[RunningBackend]:
    """Whatever a test does, no block stays taken."""
    yield shared_backend
    assert shared_backend.process.poll() is None, shared_backend.log()[-4000:]
    shared_backend.assert_all_blocks_free()


@pytest.fixture
def client(backend: RunningBackend) -> Iterator[OpenAI]:
    with OpenAI(base_url=backend.v1, api_key="unused", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def fetched_smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home into which the real command has fetched SmolLM2."""
    home = tmp_path_factory.mktemp("home")
    done = run_backend("models", "fetch", "smollm2", home=home, timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert "Apache-2.0" in done.stdout
    return home


@pytest.fixture(scope="session")
def shared_smollm2(fetched_smollm2: Path) -> Iterator[RunningBackend]:
    with running_backend("smollm2", fetched_smollm2, "--kv-cache-mib", "256") as backend:
        yield backend


@pytest.fixture
def smollm2(shared_smollm2: RunningBackend) -> Iterator[RunningBackend]:
    yield shared_smollm2
    shared_smollm2.assert_all_blocks_free()
