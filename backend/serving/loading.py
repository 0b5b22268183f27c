"""A path → everything the server needs: the engine on its device, and the model's text side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.models.loading import context_len, load_model
from backend.serving.prompting import TextSide
from backend.serving.service import Loaded
from backend.serving.tokenizer_files import load_tokenizer


def load_served(path: Path, config: EngineConfig) -> Loaded:
    """To be called by the engine's own thread. Raises SetupError, with one line that says why."""
    loaded = load_model(path, config)
    tokenizer = load_tokenizer(loaded.tokenizer_source)
    model = replace(
        loaded.config,
        eos_token_ids=tuple(dict.fromkeys(loaded.config.eos_token_ids + tokenizer.end_token_ids)),
    )
    engine = Engine(loaded.model, config)
    report = loaded.report
    return Loaded(
        engine=engine,
        text=TextSide(tokenizer),
        model=model,
        config=config,
        context_len=context_len(model, config),
        notes={
            "file_format": report.file_format,
            "weight_bytes": report.weight_bytes,
            "load_s": round(report.load_s, 3),
        },
    )
