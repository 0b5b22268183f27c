"""Which weights these are: a digest of a model's files that is had in a fraction of a second.

Every tensor's name, type and shape counts, and of its bytes all, or pieces spread evenly over a
large one: another revision or another training run differs in nearly every value. Shards and the
order of tensors in a file do not matter. A GGUF file and a directory of the same model have
different digests: their values are rounded differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from backend.errors import BadCheckpoint
from backend.models.gguf_file import is_gguf, read_gguf
from backend.models.safetensors_files import SafetensorsDirectory

_WHOLE_BYTES_MAX = 1 << 16
_PIECES, _PIECE_BYTES = 16, 1 << 12

# (name, type, shape, bytes).
_Tensor = tuple[str, str, tuple[int, ...], memoryview]


def weights_fingerprint(path: str | Path) -> str:
    """ "sha256:…" of a Hugging Face directory or a GGUF file. Raises BadCheckpoint."""
    path = Path(path)
    if not path.exists():
        raise BadCheckpoint(f"{path} does not exist; give a model directory or a GGUF file")
    tensors = _of_directory(path) if path.is_dir() else _of_gguf(path)
    digests = []
    for name, kind, shape, content in tensors:
        digest = hashlib.sha256(json.dumps([name, kind, list(shape)]).encode())
        for piece in _pieces(content):
            digest.update(piece)
        digests.append(digest.digest())
    return "sha256:" + hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def _pieces(content: memoryview) -> Iterator[memoryview]:
    size = len(content)
    if size <= _WHOLE_BYTES_MAX:
        yield content
        return
    for number in range(_PIECES):
        begin = number * (size - _PIECE_BYTES) // (_PIECES - 1)
        yield content[begin : begin + _PIECE_BYTES]


def _of_directory(directory: Path) -> Iterator[_Tensor]:
    by_file: dict[str, list[str]] = {}
    for name, stored in SafetensorsDirectory(directory).tensors().items():
        by_file.setdefault(stored.file, []).append(name)
    for file, names in by_file.items():
        opened: Any = safe_open(file, framework="pt", device="cpu")
        for name in names:
            # A view of the mapped file: only the pages that are hashed are read.
            tensor = opened.get_tensor(name)
            content = memoryview(tensor.flatten().view(torch.uint8).numpy())
            yield name, str(tensor.dtype), tuple(tensor.shape), content


def _of_gguf(path: Path) -> Iterator[_Tensor]:
    if not is_gguf(path):
        raise BadCheckpoint(f"{path} is neither a model directory nor a GGUF file")
    file = read_gguf(path)
    whole = memoryview(file.content)
    for name, tensor in file.tensors.items():
        content = whole[tensor.offset : tensor.offset + tensor.num_bytes]
        yield name, tensor.ggml_type.name, tensor.shape, content
