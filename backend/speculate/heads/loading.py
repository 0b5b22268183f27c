"""A directory → a draft head with its weights, in whichever published layout it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from backend.config import ModelConfig
from backend.errors import BadCheckpoint
from backend.speculate.heads import dflash, dspark, eagle3
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.files import HeadFiles

# Method → (reads its config, makes the module of it).
METHODS: Mapping[str, tuple[Callable[[HeadFiles], Any], Callable[[Any], DraftHead]]] = {
    "eagle3": (eagle3.read_config, eagle3.Eagle3Head),
    "dflash": (dflash.read_config, dflash.DFlashHead),
    "dspark": (dspark.read_config, dspark.DSparkHead),
}


def load_head(
    directory: str | Path, target: ModelConfig, *, dtype: torch.dtype = torch.float32
) -> DraftHead:
    """On the CPU, ready for serving or for more training. What the target lends is not there yet.

    Raises BadCheckpoint, naming file and key or tensor, for what does not fit itself or the target;
    UnsafeFormat for a file that could run code.
    """
    path = Path(directory)
    if not path.is_dir():
        raise BadCheckpoint(f"{path} is no directory; a draft head is config.json and safetensors")
    files = HeadFiles(path)
    read_config, make = METHODS[files.method]
    config = read_config(files)
    with torch.device("meta"):
        head = make(config)
    state = files.read(head.own_state(), dtype)
    head.load_state_dict(state, assign=True)
    _check_target(head, target, files.path)
    return head


def _check_target(head: DraftHead, target: ModelConfig, where: str) -> None:
    config = head.head_config
    size, vocab_size = config.shape.hidden_size, config.shape.vocab_size
    needs_ends = not (config.has_own_embedding and config.has_own_lm_head)
    for name, own, given in (
        ("hidden size", config.target_hidden_size, target.hidden_size),
        ("vocabulary", vocab_size, target.vocab_size),
        ("hidden size at its ends", size if needs_ends else target.hidden_size, target.hidden_size),
    ):
        if own != given:
            raise BadCheckpoint(
                f"{where}: the head was made for a target with a {name} of {own}, this one has "
                f"{given}; it belongs to another model"
            )
