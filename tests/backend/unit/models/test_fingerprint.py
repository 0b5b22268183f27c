"""The digest of a model's weights: the same for the same values, another for any other ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.errors import BadCheckpoint
from backend.models.fingerprint import weights_fingerprint
from tests.support.tiny_checkpoints import save_tiny
from tests.support.tiny_gguf import write_gguf

LARGE = "model.embed_tokens.weight"  # more than is hashed whole
SMALL = "model.norm.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    directory = tmp_path_factory.mktemp("whole")
    save_tiny(directory, "llama")
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    found: Tensors = {}
    for shard in set(index["weight_map"].values()):
        found |= load_file(directory / shard)
    assert found[LARGE].nbytes > 1 << 16 > found[SMALL].nbytes
    return found


def fingerprint(directory: Path, tensors: Tensors) -> str:
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    return weights_fingerprint(directory)


def test_shards_do_not_matter(tmp_path: Path, tensors: Tensors) -> None:
    save_tiny(tmp_path / "sharded", "llama")

    assert weights_fingerprint(tmp_path / "sharded") == fingerprint(tmp_path / "one", tensors)


def edited(name: str, change: Callable[[torch.Tensor], None]) -> Callable[[Tensors], None]:
    return lambda tensors: change(tensors[name])


CHANGES: dict[str, Callable[[Tensors], None]] = {
    "one value of a small tensor": edited(SMALL, lambda x: x[7].add_(1e-3)),
    "the first value of a large one": edited(LARGE, lambda x: x[0, 0].add_(1e-3)),
    "the last value of a large one": edited(LARGE, lambda x: x[-1, -1].add_(1e-3)),
    "a step of training": edited(LARGE, lambda x: x.mul_(1.0001)),
    "a name": lambda tensors: tensors.update({"model.norm2.weight": tensors.pop(SMALL)}),
    "a type": lambda tensors: tensors.update({SMALL: tensors[SMALL].bfloat16()}),
    "a shape": lambda tensors: tensors.update({SMALL: tensors[SMALL].view(8, 8)}),
    "a tensor more": lambda tensors: tensors.update({"more": torch.zeros(1)}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_other_weights_have_another(
    tmp_path: Path, tensors: Tensors, change: Callable[[Tensors], None]
) -> None:
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    change(changed)

    assert fingerprint(tmp_path / "a", tensors) != fingerprint(tmp_path / "b", changed)


def test_gguf_files_have_one_too(tmp_path: Path) -> None:
    first, second = (save_tiny(tmp_path / str(seed), "llama", seed=seed) for seed in (0, 1))
    write_gguf(tmp_path / "a.gguf", first)
    write_gguf(tmp_path / "b.gguf", first, metadata={"general.name": "another name"})
    write_gguf(tmp_path / "c.gguf", second)

    one, same, other = (weights_fingerprint(tmp_path / f"{name}.gguf") for name in "abc")
    assert one == same != other
    assert one.startswith("sha256:")
    assert len(one) == 7 + 64


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(BadCheckpoint, match="neither"):
        weights_fingerprint(tmp_path / "text.gguf")
    with pytest.raises(BadCheckpoint, match="does not exist"):
        weights_fingerprint(tmp_path / "nowhere")
