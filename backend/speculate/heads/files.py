"""A draft head on disk: config.json and safetensors, in one of the layouts that are published.

- "native": as the method's authors publish it (SafeAILab/EAGLE, z-lab/dflash);
- "speculators": vllm-project/speculators, with the layers' dimensions in a section of their own;
- "deepspec": deepseek-ai/DeepSpec.

Tensors may lie in int8 with one float32 scale a row: `x.weight` and `x.weight_scale` [N]; that is
this project's own form, for heads that are shipped with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.errors import BadCheckpoint, UnsafeFormat
from backend.models.checkpoint import FAULTS_SHOWN_MAX
from backend.models.hf_config import decoder_config, positive_int
from backend.models.safetensors_files import (
    DTYPES,
    PICKLE_SUFFIXES,
    SafetensorsDirectory,
    read_json,
)
from backend.speculate.heads.vocabulary import checked_offsets

Layout = Literal["native", "speculators", "deepspec"]
Method = Literal["eagle3", "dflash", "dspark"]

SCALE = "_scale"  # behind the name of a tensor in int8
OFFSETS, IS_DRAFTED = "d2t", "t2d"

_ARCHITECTURES: Mapping[str, tuple[Layout, Method]] = {
    "LlamaForCausalLMEagle3": ("native", "eagle3"),
    "Qwen3Eagle3Model": ("deepspec", "eagle3"),
    "DFlashDraftModel": ("native", "dflash"),
    "Qwen3DSparkModel": ("deepspec", "dspark"),
}
_SPECULATORS: tuple[Method, ...] = ("eagle3", "dflash", "dspark")
# Copies of the target's tensors that training leaves behind, and what is computed here.
_SKIPS = ("verifier_norm.weight", "verifier_lm_head.weight", "*rotary_emb.inv_freq")
# A saved section leaves out what is its class's default (transformers' classes of these names).
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
}  # fmt: skip
_WINDOW_KEYS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")


class HeadFiles:
    """One directory, opened. Raises BadCheckpoint or UnsafeFormat, naming file, key or tensor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(directory / "config.json")
        self.raw = read_json(directory / "config.json")
        if self.raw.get("auto_map"):
            raise UnsafeFormat(f"{self.path}: auto_map asks for code that comes with the head")
        self.layout, self.method = self._kind()
        for file in sorted(directory.iterdir()):
            if file.stem == "mask_embedding" and file.suffix in PICKLE_SUFFIXES:
                raise UnsafeFormat(f"{file} may run code when it is read; it is not read")
        types = (*DTYPES, "I8", "I64", "I32", "BOOL")
        self._checkpoint = SafetensorsDirectory(directory, types)
        self._stored = self._checkpoint.tensors()

    def has(self, name: str) -> bool:
        """Whether a tensor of this canonical name is stored."""
        return self.stored_name(name) in self._stored

    def stored_name(self, name: str) -> str:
        """Of a tensor that this project calls `name`."""
        if self.layout == "native" and self.method == "eagle3":
            return name.replace("layers.0.", "midlayer.", 1)
        return name

    def section(self, key: str) -> Mapping[str, Any]:
        found = self.raw.get(key) or {}
        if not isinstance(found, dict):
            raise BadCheckpoint(f"{self.path}: {key} must be an object, not {found!r}")
        return found

    def value(self, key: str, *sections: Mapping[str, Any]) -> Any:
        """From the first section that has it, else from the top; None."""
        for each in (*sections, self.raw):
            if each.get(key) is not None:
                return each[key]
        return None

    def flag(self, key: str, default: bool, *sections: Mapping[str, Any]) -> bool:
        found = self.value(key, *sections)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise BadCheckpoint(f"{self.path}: {key} must be true or false, not {found!r}")
        return found

    def whole(self, key: str, default: int | None, *sections: Mapping[str, Any]) -> int:
        """A whole number of at least 0; raises BadCheckpoint where there is none."""
        found = self.value(key, *sections)
        found = default if found is None else found
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise BadCheckpoint(f"{self.path}: {key} must be a whole number, not {found!r}")
        return found

    def layer_ids(self, key: str, *sections: Mapping[str, Any]) -> tuple[int, ...]:
        found = self.value(key, *sections) or []
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise BadCheckpoint(f"{self.path}: {key} must be a list of layers, not {found!r}")
        return tuple(found)

    def refuse_keys(self, *keys: str, why: str, section: Mapping[str, Any] | None = None) -> None:
        for key in keys:
            found = (self.raw if section is None else section).get(key)
            if found:
                raise BadCheckpoint(f"{self.path}: {key} {found!r} is not supported; {why}")

    def target_hidden_size(self, default: int) -> int:
        return positive_int(self.raw, "target_hidden_size", default)

    def draft_vocab_size(self, default: int) -> int:
        """Of the key, or of the tensor that lists the vocabulary, or the whole one."""
        offsets = self._stored.get(OFFSETS)
        if offsets is not None and len(offsets.shape) == 1:
            default = offsets.shape[0]
        return positive_int(self.raw, "draft_vocab_size", default)

    def shape(self) -> tuple[ModelConfig, tuple[int, ...]]:
        """Dimensions of the head's own layers, and each layer's window."""
        raw = dict(self.raw)
        if self.layout == "speculators":
            section = self.section("transformer_layer_config")
            raw = {**_DEFAULTS.get(str(section.get("model_type", "qwen3")), {}), **section}
        kind = str(raw.get("model_type", ""))
        head_dim = _DEFAULTS["qwen3"]["head_dim"] if kind == "qwen3" else None
        own = {key: value for key, value in raw.items() if key not in _WINDOW_KEYS}
        has_qk_norm = self.has("layers.0.self_attn.q_norm.weight")
        try:
            shape = decoder_config("draft", own, head_dim=head_dim, has_qk_norm=has_qk_norm)
            return shape, _windows(raw, shape.num_layers)
        except BadCheckpoint as error:
            raise BadCheckpoint(f"{self.path}: {error}") from error

    def read(self, wanted: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor by its canonical name; `wanted` gives shapes. Integers stay what they are.

        Raises BadCheckpoint: missing, misshaped, unknown, or of a type that does not fit.
        """
        vocab_size = self._check(wanted)
        found = {name: self._tensor(self.stored_name(name), each, dtype)
                 for name, each in wanted.items() if name != OFFSETS}  # fmt: skip
        if OFFSETS in self._stored:
            offsets = self._integers(OFFSETS)
            is_drafted = self._integers(IS_DRAFTED) if IS_DRAFTED in self._stored else None
            checked = checked_offsets(offsets, is_drafted, vocab_size, self.path)
            if OFFSETS in wanted:
                found[OFFSETS] = checked
            elif bool(checked.any()):
                raise BadCheckpoint(
                    f"{self.path}: d2t reorders a vocabulary that is as large as the target's; "
                    "only one that is smaller is read"
                )
        return found

    def _check(self, wanted: Mapping[str, Tensor]) -> int:
        """Compares names, shapes and types. Gives the size of the target's vocabulary."""
        faults: list[str] = []
        known: set[str] = set()
        for name, like in wanted.items():
            stored_name = self.stored_name(name)
            known.add(stored_name)
            faults += self._faults(stored_name, tuple(like.shape), name == OFFSETS)
            if self._is_int8(stored_name):
                known.add(stored_name + SCALE)
                faults += self._faults(stored_name + SCALE, tuple(like.shape[:1]), False)
        vocab_size = self.shape()[0].vocab_size
        for name, shape in ((OFFSETS, None), (IS_DRAFTED, (vocab_size,))):
            if name in self._stored and name not in known:
                known.add(name)
                faults += self._faults(name, shape or self._stored[name].shape, True)
        for name in sorted(self._stored.keys() - known):
            if not any(fnmatchcase(name, pattern) for pattern in _SKIPS):
                faults.append(f"{self._stored[name].file}: tensor {name} is not one of the head's")
        _raise(faults)
        return vocab_size

    def _faults(self, name: str, shape: tuple[int, ...], is_integer: bool) -> Iterable[str]:
        found = self._stored.get(name)
        if found is None:
            yield f"{self.directory}: tensor {name} {list(shape)} is missing"
            return
        if found.shape != shape:
            yield (
                f"{found.file}: tensor {name} is {list(found.shape)}, but by its configuration it "
                f"is {list(shape)}"
            )
        allowed: tuple[str, ...] = ("I64", "I32", "BOOL") if is_integer else DTYPES
        if not is_integer and len(shape) == 2 and name + SCALE in self._stored:
            allowed = ("I8",)
        if found.dtype not in allowed:
            yield (
                f"{found.file}: tensor {name} has type {found.dtype}; here it may have "
                f"{', '.join(allowed)}"
            )

    def _is_int8(self, name: str) -> bool:
        return name in self._stored and self._stored[name].dtype == "I8"

    def _tensor(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        if not self._is_int8(name):
            out = torch.empty(like.shape, dtype=dtype)
            self._checkpoint.read_into(name, out)
            return out
        rounded = torch.empty(like.shape, dtype=torch.int8)
        scale = torch.empty(like.shape[0], dtype=torch.float32)
        self._checkpoint.read_into(name, rounded)
        self._checkpoint.read_into(name + SCALE, scale)
        return (rounded.float() * scale.unsqueeze(1)).to(dtype)

    def _integers(self, name: str) -> Tensor:
        out = torch.empty(self._stored[name].shape, dtype=torch.int64)
        self._checkpoint.read_into(name, out)
        return out

    def _kind(self) -> tuple[Layout, Method]:
        named = self.raw.get("speculators_model_type")
        if named is not None:
            for method in _SPECULATORS:
                if named == method:
                    return "speculators", method
            known = ", ".join(_SPECULATORS)
            raise BadCheckpoint(
                f"{self.path}: speculators_model_type {named!r} is not supported; known: {known}"
            )
        architectures = self.raw.get("architectures")
        name = architectures[0] if isinstance(architectures, list) and architectures else None
        found = _ARCHITECTURES.get(str(name))
        if found is None:
            known = ", ".join(sorted(_ARCHITECTURES))
            raise BadCheckpoint(
                f"{self.path}: architectures {architectures!r} is no draft head that is known; "
                f"known: {known}, or a speculators_model_type"
            )
        return found


def _windows(raw: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Each layer's window of keys, 0 for all. Raises BadCheckpoint where it is not clear."""
    kinds = raw.get("layer_types")
    if kinds is None:
        if raw.get("use_sliding_window") or (
            raw.get("sliding_window") and raw.get("use_sliding_window") is None
        ):
            raise BadCheckpoint("sliding_window without layer_types does not say which layers")
        return (0,) * num_layers
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise BadCheckpoint(f"layer_types must name {num_layers} layers, not {kinds!r}")
    windows = []
    for kind in kinds:
        if kind == "full_attention":
            windows.append(0)
        elif kind == "sliding_attention":
            windows.append(positive_int(raw, "sliding_window"))
        else:
            raise BadCheckpoint(f"layer type {kind!r} is not supported")
    return tuple(windows)


def _raise(faults: list[str]) -> None:
    if faults:
        more = len(faults) - FAULTS_SHOWN_MAX
        lines = faults[:FAULTS_SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])
        raise BadCheckpoint("; ".join(lines))
