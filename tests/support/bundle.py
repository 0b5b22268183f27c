"""The test bundle: a small trained chat model and a trained draft head for each method.

`tests/bundle/make_bundle.py` makes it. The target lies in the repository in int8 with one scale a
row; `unpack_target` writes the ordinary Hugging Face directory that heads and engine know.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.config import DType, EngineConfig
from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest, Priority, RoundFigures
from backend.models.interface import CausalModel
from backend.models.loading import load_model
from backend.sampling.params import SamplingParams
from backend.serving.prompting import ChatRequest, TextSide
from backend.serving.tokenizer_files import load_tokenizer
from backend.speculate.heads.dflash import DFlashHead
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.heads.files import SCALE
from backend.speculate.heads.loading import load_head
from backend.speculate.proposers.dflash import DFlashProposer
from backend.speculate.proposers.dspark import DSparkProposer
from backend.speculate.proposers.eagle3 import Eagle3Proposer
from kernels.dispatch import Ops, select
from kernels.reference.linear_int8 import quantize_int8

DATA = Path(__file__).resolve().parents[1] / "bundle" / "data"
TARGET_NAME = "tiny-chat"
METHODS = ("eagle3", "dflash", "dspark")
WEIGHTS = "model.safetensors"
_TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def packed_target(data: Path = DATA) -> Path:
    return data / TARGET_NAME


def head_directory(method: str, data: Path = DATA) -> Path:
    return data / "heads" / method


def pack_target(model: Path, packed: Path) -> None:
    """A Hugging Face directory → one whose matrices are int8 `x` and float32 `x_scale` [rows]."""
    packed.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Tensor] = {}
    for name, tensor in load_file(model / WEIGHTS).items():
        if tensor.dim() == 2:
            rounded = quantize_int8(tensor)
            stored[name], stored[name + SCALE] = rounded.qweight, rounded.scale
        else:
            stored[name] = tensor.float()
    save_file(stored, packed / WEIGHTS)
    _copy_text(model, packed)


def unpack_target(directory: Path, data: Path = DATA) -> Path:
    """Writes `directory / TARGET_NAME`, in float32, and returns it.

    A value is one float32 product, so its bits are the same everywhere, and quantizing it again
    finds the same integers.
    """
    model, packed = directory / TARGET_NAME, packed_target(data)
    model.mkdir(parents=True, exist_ok=True)
    stored = load_file(packed / WEIGHTS)
    weights = {
        name: tensor.float() * stored[name + SCALE].unsqueeze(1)
        if tensor.dtype is torch.int8
        else tensor
        for name, tensor in stored.items()
        if not name.endswith(SCALE)
    }
    save_file(weights, model / WEIGHTS, metadata={"format": "pt"})
    _copy_text(packed, model)
    return model


def _copy_text(source: Path, target: Path) -> None:
    for name in _TEXT_FILES:
        shutil.copyfile(source / name, target / name)


FeatureProposers = Eagle3Proposer | DFlashProposer


@dataclass(frozen=True)
class Served:
    """What came back: a text for each prompt, and what drafting was worth."""

    texts: list[list[int]]
    figures: RoundFigures | None


@dataclass(frozen=True)
class BundleWorld:
    """The unpacked target, loaded for the ops of plain torch."""

    directory: Path
    model: CausalModel
    text: TextSide
    ops: Ops
    config: EngineConfig

    @classmethod
    def load(cls, directory: Path, *, ops: Ops | None = None, **changes: Any) -> BundleWorld:
        config = EngineConfig(
            **{
                "dtype": DType.FLOAT32,
                "kv_cache_bytes": 16 << 20,
                "sequences_max": 8,
                "rows_max": 256,
                **changes,
            }
        )
        ops = ops or select("cpu", "reference")
        loaded = load_model(directory, config, ops=ops)
        text = TextSide(load_tokenizer(loaded.tokenizer_source))
        return cls(directory, loaded.model, text, ops, config)

    def token_ids(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Of a chat, up to where the answer begins."""
        return self.text.chat_prompt(ChatRequest(messages=messages)).token_ids

    def proposer(self, method: str, num_drafts: int, ops: Ops | None = None) -> FeatureProposers:
        """The shipped head of a method. `ops`: for its layers, others than the target's."""
        config = replace(self.config, num_drafts_max=num_drafts)
        head, ops = load_head(head_directory(method), self.model.config), ops or self.ops
        match head:
            case Eagle3Head():
                return Eagle3Proposer(head, self.model, config, ops)
            case DSparkHead():
                return DSparkProposer(head, self.model, config, ops)
            case DFlashHead():
                return DFlashProposer(head, self.model, config, ops)
        raise ValueError(f"{type(head).__name__} is the head of no method here")

    def serve(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        proposer: FeatureProposers | None = None,
    ) -> Served:
        """All prompts at once, greedily, each to its end or so many tokens."""
        config = self.config
        make: dict[str, Any] = {}
        if proposer is not None:
            config = replace(config, num_drafts_max=proposer.num_drafts_max)
            make["make_proposer"] = lambda model, config: proposer
        engine = Engine(self.model, config, self.text.tokenizer.end_token_ids, **make)
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        texts: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            texts[str(number)] = []
            request = EngineRequest(str(number), tuple(prompt), params, Priority.INTERACTIVE)
            engine.add(request)
        while engine.has_work():
            for event in engine.step():
                assert event.error is None, event.error
                texts[event.request_id] += event.token_ids
        figures = engine.load().speculation.figures
        return Served(list(texts.values()), figures[0] if figures else None)
