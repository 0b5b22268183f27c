"""A path → everything the server needs: the engine on its device, and the model's text side."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from backend.config import EngineConfig
from backend.engine.calibrating import measure_plain_steps
from backend.engine.engine import Engine
from backend.errors import OutOfMemory
from backend.layers.ops import ops_of
from backend.models.loading import LoadedModel, load_model
from backend.serving.draft_check import check_draft
from backend.serving.prompting import TextSide
from backend.serving.service import Loaded
from backend.serving.tokenizer import Tokenizer
from backend.serving.tokenizer_files import load_tokenizer
from backend.speculate.proposers.none import NoProposer
from kernels import native


def load_served(path: Path, config: EngineConfig) -> Loaded:
    """To be called by the engine's own thread: torch counts its threads for the one that calls.

    Raises SetupError, with one line that says why.
    """
    if config.device == "cpu" and config.kv_cache_bytes > physical_bytes():
        raise OutOfMemory(
            f"{config.kv_cache_bytes >> 20} MiB are wanted for keys and values, this machine has "
            f"{physical_bytes() >> 20} MiB of memory; choose a smaller --kv-cache-mib"
        )
    try:
        return _load(path, config)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise OutOfMemory(
                f"the memory of {config.device} does not hold the model and its cache; try a "
                f"smaller --kv-cache-mib or --quantization int8 ({str(error)[:200]})"
            ) from error
        raise


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model on its device with its text side; engines are made of it."""

    loaded: LoadedModel
    tokenizer: Tokenizer
    text: TextSide
    config: EngineConfig

    @property
    def context_len(self) -> int:
        return self.config.context_len_max or self.loaded.config.context_len_max

    def make_engine(self) -> Engine:
        # Chat models often name their end of a turn beside the tokenizer only.
        ends = dict.fromkeys(self.loaded.config.eos_token_ids + self.tokenizer.end_token_ids)
        return Engine(self.loaded.model, self.config, tuple(ends))


def prepare(path: Path, config: EngineConfig) -> Prepared:
    """Loads a model for this thread. Raises SetupError."""
    config = replace(config, num_threads=config.num_threads or cores_to_use())
    torch.set_num_threads(config.num_threads)
    loaded = load_model(path, config)
    native.set_num_threads(config.num_threads)
    tokenizer = load_tokenizer(loaded.tokenizer_source)
    return Prepared(loaded, tokenizer, TextSide(tokenizer), config)


def _load(path: Path, config: EngineConfig) -> Loaded:
    prepared = prepare(path, config)
    head = check_draft(path, prepared.tokenizer, config)
    engine = prepared.make_engine()
    if config.proposer != NoProposer.name:
        measure_plain_steps(engine, min(config.sequences_max, config.waiting_max))
    report = prepared.loaded.report
    return Loaded(
        engine=engine,
        text=prepared.text,
        model=prepared.loaded.config,
        config=prepared.config,
        context_len=engine.context_len_max,
        notes={
            "file_format": report.file_format,
            "weight_bytes": report.weight_bytes,
            "load_s": round(report.load_s, 3),
            "kernels": {
                "doctor": config.kernels.verdict,
                "served_by": dict(ops_of(config).names),
                "withheld": dict(config.kernels.withheld),
            },
        },
        head=head,
    )


def cores_to_use() -> int:
    """All that this process may use but one, which is left for the event loop."""
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    return max(1, num_cores - 1)


def physical_bytes() -> int:
    """The machine's memory; where the system does not tell, more than anybody asks for."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
