"""The header of a GGUF file: metadata, and where each tensor lies; the rest stays on disk.

Format: github.com/ggml-org/ggml, docs/gguf.md. The reader of the `gguf` package makes several
arrays an entry, seconds for a large vocabulary, and takes a file that ends early for one with odd
shapes; so the header is read here, each length checked, and the package gives types and blocks.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from backend.errors import BadCheckpoint

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # unless general.alignment says otherwise
DIMENSIONS_MAX = 4
ARRAY_DEPTH_MAX = 4

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` as torch has it: rows first, the dimension in which blocks lie last."""

    ggml_type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # in the file, bytes
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """`content` is the mapped file; writes to it would stay private."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    content: mmap.mmap


def is_gguf(path: Path) -> bool:
    """By its first bytes."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GgufFile:
    """Raises BadCheckpoint: not GGUF, another version, cut short, an unknown tensor type."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BadCheckpoint(f"{path} is no GGUF file")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    reader = _Reader(path, content)
    version = reader.scalar("<I")
    if version not in VERSIONS:
        raise BadCheckpoint(
            f"{path}: GGUF version {version} is not supported; "
            f"known: {', '.join(str(each) for each in VERSIONS)}, little-endian"
        )
    num_tensors, num_values = reader.scalar("<Q"), reader.scalar("<Q")
    metadata = _read_metadata(reader, num_values)
    return GgufFile(path, metadata, _read_tensors(reader, num_tensors, metadata), content)


def _read_metadata(reader: _Reader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = reader.string()
        if key in metadata:
            raise BadCheckpoint(f"{reader.path}: metadata {key} is there twice")
        metadata[key] = reader.value()
    return metadata


def _read_tensors(
    reader: _Reader, count: int, metadata: Mapping[str, Any]
) -> dict[str, GgufTensor]:
    found: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int]] = {}
    for _ in range(count):
        name = reader.string()
        num_dimensions = reader.scalar("<I")
        if not 1 <= num_dimensions <= DIMENSIONS_MAX:
            raise BadCheckpoint(f"{reader.path}: tensor {name} has {num_dimensions} dimensions")
        shape = tuple(reader.scalar("<Q") for _ in range(num_dimensions))[::-1]
        number, offset = reader.scalar("<I"), reader.scalar("<Q")
        try:
            ggml_type = GGMLQuantizationType(number)
        except ValueError:
            raise BadCheckpoint(
                f"{reader.path}: tensor {name} has type {number}, which is unknown"
            ) from None
        if name in found:
            raise BadCheckpoint(f"{reader.path}: tensor {name} is there twice")
        found[name] = (ggml_type, shape, offset)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise BadCheckpoint(f"{reader.path}: general.alignment {alignment!r} is no size")
    start = -(-reader.offset // alignment) * alignment
    return {name: _placed(reader, name, start, *each) for name, each in found.items()}


def _placed(
    reader: _Reader,
    name: str,
    start: int,
    ggml_type: GGMLQuantizationType,
    shape: tuple[int, ...],
    offset: int,
) -> GgufTensor:
    block_len, block_bytes = GGML_QUANT_SIZES[ggml_type]
    if shape[-1] % block_len:
        raise BadCheckpoint(
            f"{reader.path}: tensor {name} {list(shape)} does not divide into "
            f"{ggml_type.name} blocks of {block_len}"
        )
    num_bytes = prod(shape) // block_len * block_bytes
    if start + offset + num_bytes > len(reader.content):
        raise BadCheckpoint(
            f"{reader.path} is cut short: tensor {name} ends at byte {start + offset + num_bytes}, "
            f"the file at {len(reader.content)}; fetch it again"
        )
    return GgufTensor(ggml_type, shape, start + offset, num_bytes)


class _Reader:
    """A place in the header that moves on as values are read."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path = path
        self.content = content
        self.offset = len(MAGIC)

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.content, self._take(struct.calcsize(form)))
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        at = self._take(length)
        try:
            return self.content[at : at + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadCheckpoint(
                f"{self.path}: the text at byte {at} is not UTF-8: {error}"
            ) from error

    def value(self) -> Any:
        return self._reading(self._type())()

    def _reading(self, value_type: GGUFValueType, depth: int = 0) -> Callable[[], Any]:
        if value_type is GGUFValueType.STRING:
            return self.string
        if value_type is GGUFValueType.ARRAY:
            return lambda: self._array(depth + 1)
        return lambda: self.scalar(_SCALARS[value_type])

    def _array(self, depth: int) -> list[Any]:
        if depth > ARRAY_DEPTH_MAX:
            raise BadCheckpoint(f"{self.path}: arrays are nested too deep at byte {self.offset}")
        value_type, count = self._type(), self.scalar("<Q")
        form = _SCALARS.get(value_type)
        if form is None:
            read = self._reading(value_type, depth)
            return [read() for _ in range(count)]
        at = self._take(count * struct.calcsize(form))
        return list(struct.unpack_from(f"<{count}{form[1]}", self.content, at))

    def _type(self) -> GGUFValueType:
        number = self.scalar("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise BadCheckpoint(
                f"{self.path}: metadata type {number} at byte {self.offset} is unknown"
            ) from None

    def _take(self, num_bytes: int) -> int:
        """The offset before it. Raises BadCheckpoint behind the end of the file."""
        at = self.offset
        if at + num_bytes > len(self.content):
            raise BadCheckpoint(
                f"{self.path} is cut short: its header goes on behind byte {len(self.content)}; "
                "fetch it again"
            )
        self.offset = at + num_bytes
        return at
