"""A path → a model on a device: Hugging Face directory or GGUF file, and no code with it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from backend.config import EngineConfig, ModelConfig, Quantization
from backend.errors import BadCheckpoint, SetupError, UnsafeFormat
from backend.layers.ops import ops_of
from backend.models.checkpoint import Checkpoint, CheckpointWeights, check_tensors
from backend.models.family import Family
from backend.models.gguf_checkpoint import GgufCheckpoint
from backend.models.gguf_config import gguf_config
from backend.models.gguf_config import unknown_keys as unknown_gguf_keys
from backend.models.gguf_file import is_gguf, read_gguf
from backend.models.hf_config import token_ids, unknown_keys
from backend.models.interface import CausalModel
from backend.models.registry import family_of_gguf, family_of_hf
from backend.models.safetensors_files import PICKLE_SUFFIXES, SafetensorsDirectory, read_json
from kernels.dispatch import Ops

# Bounds the table of cosines and sines: 512 MiB at a head size of 128.
POSITIONS_MAX = 2**20


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where the tokenizer is to be had.

    "hf_directory": `path` is the directory with tokenizer.json and its like, `metadata` is empty.
    "gguf": `metadata` holds the file's `tokenizer.*` values under their own names
    (tokenizer.ggml.tokens, .merges, .token_type, .pre, .bos_token_id, tokenizer.chat_template…).
    """

    kind: Literal["hf_directory", "gguf"]
    path: Path
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was read and what was left out, for the start-up log."""

    family: str
    file_format: Literal["safetensors", "gguf"]
    num_tensors: int
    weight_bytes: int  # as held in memory
    skipped_tensors: tuple[str, ...]
    ignored_config_keys: tuple[str, ...]
    load_s: float


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: CausalModel
    config: ModelConfig
    tokenizer_source: TokenizerSource
    report: LoadReport


@dataclass(frozen=True, slots=True)
class _Source:
    """A checkpoint with its config read: what both formats come down to."""

    family: Family
    config: ModelConfig
    checkpoint: Checkpoint
    tokenizer_source: TokenizerSource
    file_format: Literal["safetensors", "gguf"]
    ignored_config_keys: tuple[str, ...] = ()


def load_model(
    path: str | Path, engine_config: EngineConfig, *, ops: Ops | None = None
) -> LoadedModel:
    """Reads tensor by tensor; memory stays at about one copy of the weights.

    Raises UnsafeFormat or BadCheckpoint with one line that names file and tensor.
    """
    started = time.perf_counter()
    source = _open(Path(path))
    skipped = check_tensors(source.checkpoint, *_declared(source.family, source.config))
    weights = CheckpointWeights(
        source.checkpoint,
        ops or ops_of(engine_config),
        dtype=getattr(torch, engine_config.dtype.value),
        device=torch.device(engine_config.device),
        is_int8=engine_config.quantization is Quantization.INT8,
        rows_max=engine_config.rows_max,
        context_len=context_len(source.config, engine_config),
    )
    with torch.inference_mode():
        model = source.family.build(source.config, weights)
    return_freed_memory()
    report = LoadReport(
        family=source.family.name,
        file_format=source.file_format,
        num_tensors=len(source.checkpoint.tensors()) - len(skipped),
        weight_bytes=weights.num_bytes,
        skipped_tensors=skipped,
        ignored_config_keys=source.ignored_config_keys,
        load_s=time.perf_counter() - started,
    )
    return LoadedModel(model, source.config, source.tokenizer_source, report)


def read_description(path: str | Path) -> tuple[ModelConfig, TokenizerSource]:
    """What a model is, without its weights. Raises UnsafeFormat or BadCheckpoint."""
    source = _open(Path(path))
    return source.config, source.tokenizer_source


def read_tensors(path: str | Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Some of a model's weights, float32 on the CPU, by their Hugging Face names.

    Raises UnsafeFormat or BadCheckpoint, for a name that is not there too.
    """
    checkpoint = _open(Path(path)).checkpoint
    stored = checkpoint.tensors()
    found = {}
    for name in names:
        if name not in stored:
            raise BadCheckpoint(f"{checkpoint.path}: there is no tensor {name}")
        found[name] = torch.empty(stored[name].shape, dtype=torch.float32)
        checkpoint.read_into(name, found[name])
    return found


def context_len(config: ModelConfig, engine_config: EngineConfig) -> int:
    """Positions that will be used. Raises SetupError if the engine wants more than there are."""
    wanted = engine_config.context_len_max or config.context_len_max
    if wanted > config.context_len_max:
        raise SetupError(
            f"a context of {wanted} tokens is more than the model's {config.context_len_max}"
        )
    if wanted > POSITIONS_MAX:
        raise SetupError(
            f"the model has a context of {wanted} tokens; set one of at most {POSITIONS_MAX}"
        )
    return wanted


def return_freed_memory() -> None:
    """What reading left in the heap goes back to the system, where the C library can do that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _declared(family: Family, config: ModelConfig) -> tuple[Any, tuple[str, ...]]:
    specs = family.tensor_specs(config)
    # A tied head may be written out a second time; the table is what counts.
    tied = ("lm_head.weight",) if config.tie_embeddings else ()
    return specs, family.skips + tied


def _open(path: Path) -> _Source:
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        raise BadCheckpoint(f"{path} does not exist; give a model directory or a GGUF file")
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise UnsafeFormat(
            f"{path} may run code when it is read; only safetensors and GGUF are taken: convert it"
        )
    if not is_gguf(path):
        raise BadCheckpoint(f"{path} is neither a model directory nor a GGUF file")
    return _open_gguf(path)


def _open_gguf(path: Path) -> _Source:
    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture")
    with _blaming(path):
        family = family_of_gguf(str(architecture))
        config = gguf_config(file, family)
    tokenizer = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    return _Source(
        family=family,
        config=config,
        checkpoint=GgufCheckpoint(file, family, config),
        tokenizer_source=TokenizerSource("gguf", path, tokenizer),
        file_format="gguf",
        ignored_config_keys=unknown_gguf_keys(file, family.gguf_architecture),
    )


def _open_directory(directory: Path) -> _Source:
    raw = read_json(directory / "config.json")
    _refuse_remote_code(directory, raw)
    with _blaming(directory / "config.json"):
        architectures = raw.get("architectures")
        if not isinstance(architectures, list) or len(architectures) != 1:
            raise BadCheckpoint(f"architectures must name one, not {architectures!r}")
        family = family_of_hf(architectures[0])
        config = family.config_from_hf(raw)
    config = _with_generation_ends(directory, config)
    return _Source(
        family=family,
        config=config,
        checkpoint=SafetensorsDirectory(directory),
        tokenizer_source=TokenizerSource("hf_directory", directory, {}),
        file_format="safetensors",
        ignored_config_keys=unknown_keys(raw),
    )


@contextmanager
def _blaming(file: Path) -> Iterator[None]:
    """Readers of a config name the key; this puts the file before it."""
    try:
        yield
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{file}: {error}") from error


def _refuse_remote_code(directory: Path, raw: Mapping[str, Any]) -> None:
    tokenizer_file = directory / "tokenizer_config.json"
    tokenizer = read_json(tokenizer_file) if tokenizer_file.exists() else {}
    for file, given in (("config.json", raw), ("tokenizer_config.json", tokenizer)):
        if given.get("auto_map"):
            raise UnsafeFormat(
                f"{directory / file}: auto_map asks for code that comes with the model; "
                "it is never run"
            )


def _with_generation_ends(directory: Path, config: ModelConfig) -> ModelConfig:
    """Chat models name their end-of-turn token only in generation_config.json."""
    file = directory / "generation_config.json"
    if not file.exists():
        return config
    more = token_ids(read_json(file).get("eos_token_id"), f"{file}: eos_token_id")
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))
