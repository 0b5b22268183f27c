"""Tensors on disk, read one at a time, and the check that they are what the family says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from backend.errors import BadCheckpoint
from backend.layers.linear import DenseLinear, Int8Linear, Linear
from backend.models.family import TensorSpec
from kernels.dispatch import Ops

# More than these would hide the first ones; the rest is counted.
FAULTS_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies and what shape it has there."""

    file: str
    shape: tuple[int, ...]
    dtype: str = ""  # safetensors' name for it


class Checkpoint(Protocol):
    """Tensors by their Hugging Face names."""

    path: str

    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Copies one tensor to `out`, in the type of `out`. Raises BadCheckpoint."""
        ...


def check_tensors(
    checkpoint: Checkpoint, specs: Iterable[TensorSpec], skips: Iterable[str]
) -> tuple[str, ...]:
    """Names that nobody needs. Raises BadCheckpoint: missing, misshaped and unknown tensors."""
    stored = checkpoint.tensors()
    wanted = {spec.name: spec.shape for spec in specs}
    patterns = tuple(skips)
    faults = []
    for name, shape in wanted.items():
        found = stored.get(name)
        if found is None:
            faults.append(f"{checkpoint.path}: tensor {name} {list(shape)} is missing")
        elif found.shape != shape:
            faults.append(
                f"{found.file}: tensor {name} is {list(found.shape)}, but by its "
                f"configuration it is {list(shape)}"
            )
    skipped = []
    for name in sorted(stored.keys() - wanted.keys()):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            skipped.append(name)
        else:
            faults.append(f"{stored[name].file}: tensor {name} is not one that its family uses")
    if faults:
        more = len(faults) - FAULTS_SHOWN_MAX
        lines = faults[:FAULTS_SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])
        raise BadCheckpoint("; ".join(lines))
    return tuple(skipped)


class CheckpointWeights:
    """A family's `Weights`. At most one linear is held twice, while it is made int8."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: Ops,
        *,
        dtype: torch.dtype,
        device: torch.device,
        is_int8: bool,
        rows_max: int,
        context_len: int,
    ) -> None:
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self.rows_max = rows_max
        self.context_len = context_len
        self.num_bytes = 0  # of all weights as they are held
        self._checkpoint = checkpoint
        self._is_int8 = is_int8
        self._stored = checkpoint.tensors()
        self._tables: dict[str, Tensor] = {}
        self._scratch = torch.empty(0, dtype=torch.float32, device=device)

    def linear(self, *names: str) -> Linear:
        if self._is_int8:
            # From float32, so that it is rounded once; a tied head is held twice: rows to look up
            # in the model's type, and int8 to multiply with.
            packed = self.ops.pack_int8(self._read(names, torch.float32, self._scratch_for(names)))
            made = Int8Linear(packed, self.ops)
            self.num_bytes += made.weight_bytes()
            return made
        tied = self._tables.get(names[0]) if len(names) == 1 else None
        if tied is not None:
            return DenseLinear(tied, self.ops)
        weight = self._read(names, self.dtype)
        self.num_bytes += weight.nbytes
        return DenseLinear(weight, self.ops)

    def table(self, name: str) -> Tensor:
        self._tables[name] = table = self._read((name,), self.dtype)
        self.num_bytes += table.nbytes
        return table

    def vector(self, name: str) -> Tensor:
        vector = self._read((name,), self.dtype)
        self.num_bytes += vector.nbytes
        return vector

    def _read(
        self, names: tuple[str, ...], dtype: torch.dtype, into: Tensor | None = None
    ) -> Tensor:
        shapes = [self._stored[name].shape for name in names]
        rows = [shape[0] for shape in shapes]
        shape = (sum(rows), *shapes[0][1:])
        if into is None:
            merged = torch.empty(shape, dtype=dtype, device=self.device)
        else:
            merged = into[: math.prod(shape)].view(shape)
        for name, part in zip(names, torch.split(merged, rows), strict=True):
            self._checkpoint.read_into(name, part)
        return merged

    def _scratch_for(self, names: tuple[str, ...]) -> Tensor:
        """One float32 buffer for all linears: a new one each would leave the heap full of holes."""
        needed = sum(math.prod(self._stored[name].shape) for name in names)
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed, dtype=torch.float32, device=self.device)
        return self._scratch[:needed]
