"""A directory of safetensors, one file or sharded with an index, mapped and read lazily."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend.errors import BadCheckpoint, UnsafeFormat
from backend.models.checkpoint import StoredTensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = ("F32", "BF16", "F16")
# Formats that are pickles or may hold one: to read them is to run what they say.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class SafetensorsDirectory:
    """A `Checkpoint`. Raises BadCheckpoint for damaged files, UnsafeFormat if there is no other."""

    def __init__(self, directory: Path, dtypes: Collection[str] = DTYPES) -> None:
        self.path = str(directory)
        self._dtypes = dtypes
        self._opened: dict[str, Any] = {}
        self._stored: dict[str, StoredTensor] = {}
        index = _read_index(directory)
        for file in _weight_files(directory, index):
            self._add(file)
        if index is not None:
            self._compare(directory / INDEX, index)

    def tensors(self) -> Mapping[str, StoredTensor]:
        return self._stored

    def read_into(self, name: str, out: Tensor) -> None:
        file = self._stored[name].file
        try:
            # A view of the mapped file: its pages come in as they are copied.
            out.copy_(self._opened[file].get_tensor(name))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise BadCheckpoint(f"{file}: tensor {name} cannot be read: {error}") from error

    def _add(self, file: Path) -> None:
        shown = str(file)
        try:
            opened: Any = safe_open(file, framework="pt", device="cpu")
            names: list[str] = opened.keys()
            for name in names:
                part = opened.get_slice(name)
                dtype = part.get_dtype()
                if dtype not in self._dtypes:
                    raise BadCheckpoint(
                        f"{shown}: tensor {name} has type {dtype}; known: {', '.join(self._dtypes)}"
                    )
                if name in self._stored:
                    raise BadCheckpoint(
                        f"{shown}: tensor {name} is in {self._stored[name].file} too"
                    )
                self._stored[name] = StoredTensor(shown, tuple(part.get_shape()), dtype)
        except (SafetensorError, OSError) as error:
            raise BadCheckpoint(
                f"{shown} is no whole safetensors file ({error}); fetch it again"
            ) from error
        self._opened[shown] = opened

    def _compare(self, shown: Path, index: Mapping[str, str]) -> None:
        for name, file in index.items():
            found = self._stored.get(name)
            if found is None or Path(found.file).name != file:
                raise BadCheckpoint(f"{shown}: tensor {name} is not in {file} as the index says")
        for name in self._stored.keys() - index.keys():
            raise BadCheckpoint(f"{self._stored[name].file}: tensor {name} is not in {INDEX}")


def read_json(file: Path) -> dict[str, Any]:
    """An object. Raises BadCheckpoint."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadCheckpoint(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadCheckpoint(f"{file} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadCheckpoint(f"{file} holds no JSON object")
    return found


def _read_index(directory: Path) -> dict[str, str] | None:
    file = directory / INDEX
    if not file.exists():
        return None
    weight_map = read_json(file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadCheckpoint(f"{file}: there is no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise UnsafeFormat(f"{file}: tensor {name} is in {shard!r}, not in a safetensors file")
        if Path(shard).name != shard:
            raise BadCheckpoint(f"{file}: shard {shard!r} is outside of the directory")
    return weight_map


def _weight_files(directory: Path, index: Mapping[str, str] | None) -> list[Path]:
    if index is not None:
        files = [directory / shard for shard in sorted(set(index.values()))]
        for file in files:
            if not file.exists():
                raise BadCheckpoint(f"{file} is missing, though {INDEX} names it")
        return files
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    pickles = sorted(
        each.name for each in directory.iterdir() if each.suffix.lower() in PICKLE_SUFFIXES
    )
    if pickles:
        raise UnsafeFormat(
            f"{directory}: {pickles[0]} may run code when it is read; "
            "only safetensors and GGUF are taken: convert it"
        )
    raise BadCheckpoint(f"{directory}: there is neither {SINGLE} nor {INDEX}")
