"""Changes to a head on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def edit_config(directory: Path, **changes: Any) -> None:
    """None takes a key out."""
    file = directory / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: each for key, each in config.items() if each is not None}))


def edit_section(directory: Path, **changes: Any) -> None:
    section = json.loads((directory / "config.json").read_text())["transformer_layer_config"]
    kept = {key: each for key, each in {**section, **changes}.items() if each is not None}
    edit_config(directory, transformer_layer_config=kept)


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
