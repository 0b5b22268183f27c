"""GGUF files that are cut, spoilt or ask for more than is computed: one line, never a traceback."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from backend.config import DType, EngineConfig
from backend.errors import BadCheckpoint, SetupError
from backend.models.gguf_file import read_gguf
from backend.models.loading import load_model
from kernels.dispatch import select
from tests.support.tiny_checkpoints import save_tiny
from tests.support.tiny_gguf import write_gguf

FLOAT32 = EngineConfig(dtype=DType.FLOAT32, rows_max=8)
OPS = select("cpu", "reference")
REFUSED: dict[str, dict[str, Any]] = {
    "llama.expert_count 8 is not supported": {"llama.expert_count": 8},
    "llama.final_logit_softcapping 30.0 is not": {"llama.final_logit_softcapping": 30.0},
    "sliding_window 512 is not supported": {"llama.attention.sliding_window": 512},
    "rope type 'longrope' is not supported": {"llama.rope.scaling.type": "longrope"},
    "one part of a split GGUF": {"split.count": 3},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> PreTrainedModel:
    return save_tiny(tmp_path_factory.mktemp("hf"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def content(model: PreTrainedModel, tmp_path_factory: Any) -> bytes:
    path: Path = tmp_path_factory.mktemp("whole") / "tiny.gguf"
    write_gguf(path, model)
    return path.read_bytes()


def load(path: Path) -> Any:
    return load_model(path, FLOAT32, ops=OPS)


@pytest.mark.parametrize("message", REFUSED, ids=str)
def test_what_is_not_computed_is_refused(
    tmp_path: Path, model: PreTrainedModel, message: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, metadata=REFUSED[message])

    with pytest.raises(BadCheckpoint, match=f"tiny.gguf: .*{message}"):
        load(tmp_path / "tiny.gguf")


def test_tensors_that_are_missing_or_unknown(tmp_path: Path, model: PreTrainedModel) -> None:
    norm, extra = "model.norm.weight", {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    write_gguf(tmp_path / "missing.gguf", model, without=[norm])
    write_gguf(tmp_path / "extra.gguf", model, extra=extra)

    with pytest.raises(BadCheckpoint, match=rf"missing.gguf: tensor {norm} \[64\] is missing"):
        load(tmp_path / "missing.gguf")
    with pytest.raises(BadCheckpoint, match=r"extra.gguf: tensor blk.0.attn_q.bias is not one"):
        load(tmp_path / "extra.gguf")


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", intermediate_size=128)
    write_gguf(tmp_path / "tiny.gguf", model, matrix_type=GGMLQuantizationType.Q5_0)

    with pytest.raises(BadCheckpoint, match=r"has type Q5_0; known: F32, F16, BF16, Q8_0, Q4_0"):
        load(tmp_path / "tiny.gguf")


def test_another_architecture_or_version(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content[:4] + struct.pack("<I", 1) + content[8:])
    with pytest.raises(BadCheckpoint, match="GGUF version 1 is not supported; known: 2, 3"):
        load(path)

    writer = GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadCheckpoint, match=r"general.architecture 'mamba' is not supported"):
        load(path)


def test_divisors_of_another_length(tmp_path: Path, model: PreTrainedModel) -> None:
    extra = {"rope_freqs.weight": np.ones(7, np.float32)}
    write_gguf(tmp_path / "tiny.gguf", model, extra=extra)

    with pytest.raises(BadCheckpoint, match=r"rope_freqs.weight must be F32 \[8\], not F32 \[7\]"):
        load(tmp_path / "tiny.gguf")


@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(
    tmp_path_factory: Any, content: bytes, share: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(content[: int(share * len(content))])

    with pytest.raises(BadCheckpoint):
        load(path)


@given(
    edits=st.lists(
        st.tuples(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 255)),
        min_size=1,
        max_size=4,
    )
)
def test_a_spoilt_header_is_refused_or_harmless(
    tmp_path_factory: Any, content: bytes, edits: list[tuple[float, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "spoilt.gguf"
    path.write_bytes(content)
    header_len = min(each.offset for each in read_gguf(path).tensors.values())
    spoilt = bytearray(content)
    for share, byte in edits:
        spoilt[int(share * header_len)] = byte
    path.write_bytes(spoilt)

    # Any other exception would be one that the command line does not show as a line.
    with suppress(SetupError):
        load(path)


def test_blocks_that_do_not_divide_a_row(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    blocks = quants.quantize(np.ones((2, 64), np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = path.read_bytes()
    row_len = struct.pack("<Q", 64)
    assert content.count(row_len) == 1
    path.write_bytes(content.replace(row_len, struct.pack("<Q", 48)))

    with pytest.raises(BadCheckpoint, match=r"\[2, 48\] does not divide into Q8_0 blocks of 32"):
        load(path)
