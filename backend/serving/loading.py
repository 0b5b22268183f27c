"""A path → everything the server needs: the engine on its device, and the model's text side."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.models.loading import load_model
from backend.serving.prompting import TextSide
from backend.serving.service import Loaded
from backend.serving.tokenizer_files import load_tokenizer
from kernels import native


def load_served(path: Path, config: EngineConfig) -> Loaded:
    """To be called by the engine's own thread: torch counts its threads for the one that calls.

    Raises SetupError, with one line that says why.
    """
    config = replace(config, num_threads=config.num_threads or cores_to_use())
    torch.set_num_threads(config.num_threads)
    loaded = load_model(path, config)
    native.set_num_threads(config.num_threads)
    tokenizer = load_tokenizer(loaded.tokenizer_source)
    # Chat models often name their end of a turn beside the tokenizer only.
    ends = dict.fromkeys(loaded.config.eos_token_ids + tokenizer.end_token_ids)
    engine = Engine(loaded.model, config, tuple(ends))
    report = loaded.report
    return Loaded(
        engine=engine,
        text=TextSide(tokenizer),
        model=loaded.config,
        config=config,
        context_len=engine.context_len_max,
        notes={
            "file_format": report.file_format,
            "weight_bytes": report.weight_bytes,
            "load_s": round(report.load_s, 3),
        },
    )


def cores_to_use() -> int:
    """All that this process may use but one, which is left for the event loop."""
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    return max(1, num_cores - 1)
