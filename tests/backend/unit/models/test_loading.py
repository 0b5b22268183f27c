"""Loading a directory: what it reports, and every way in which files are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import DType, EngineConfig, Quantization
from backend.errors import BadCheckpoint, SetupError, UnsafeFormat
from backend.models.loading import load_model
from kernels.dispatch import select
from tests.support.tiny_checkpoints import BLOCK_SIZE, Chunk, save_tiny, step_logits

FLOAT32 = EngineConfig(dtype=DType.FLOAT32, rows_max=64)
OPS = select("cpu", "reference")
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """Sharded, as it should be."""
    directory: Path = tmp_path_factory.mktemp("whole")
    save_tiny(directory)
    return directory


@pytest.fixture
def directory(whole: Path, tmp_path: Path) -> Path:
    return Path(copytree(whole, tmp_path / "model"))


def edit_json(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def shard_of(directory: Path, name: str) -> Path:
    index = json.loads((directory / INDEX).read_text())
    return directory / index["weight_map"][name]


def edit_tensors(
    directory: Path, name: str, change: Callable[[dict[str, torch.Tensor]], Any]
) -> Path:
    """Rewrites the shard that holds `name`, and the index with it."""
    file = shard_of(directory, name)
    tensors = load_file(file)
    before = set(tensors)
    change(tensors)
    save_file(tensors, file)

    def follow(index: dict[str, Any]) -> None:
        for gone in before - set(tensors):
            del index["weight_map"][gone]
        for come in set(tensors) - before:
            index["weight_map"][come] = file.name

    edit_json(directory / INDEX, follow)
    return file


K_PROJ = "model.layers.1.self_attn.k_proj.weight"
NORM = "model.norm.weight"


def miss_a_tensor(directory: Path) -> None:
    edit_tensors(directory, K_PROJ, lambda held: held.pop(K_PROJ))


def add_a_tensor(directory: Path) -> None:
    edit_tensors(directory, NORM, lambda held: held.update(bias_of_nothing=torch.zeros(3)))


def misshape_a_tensor(directory: Path) -> None:
    edit_tensors(directory, K_PROJ, lambda held: held.update({K_PROJ: torch.zeros(31, 64)}))


def store_integers(directory: Path) -> None:
    wrong = torch.zeros(64, dtype=torch.int32)
    edit_tensors(directory, NORM, lambda held: held.update({NORM: wrong}))


def cut_a_shard(directory: Path) -> None:
    file = shard_of(directory, NORM)
    file.write_bytes(file.read_bytes()[:-100])


def cut_a_header(directory: Path) -> None:
    file = shard_of(directory, NORM)
    file.write_bytes(file.read_bytes()[:20])


def lose_a_shard(directory: Path) -> None:
    shard_of(directory, NORM).unlink()


def leave_the_directory(directory: Path) -> None:
    edit_json(directory / INDEX, lambda held: held["weight_map"].update({NORM: "../x.safetensors"}))


def index_a_pickle(directory: Path) -> None:
    edit_json(
        directory / INDEX, lambda held: held["weight_map"].update({NORM: "pytorch_model.bin"})
    )


def index_the_wrong_shard(directory: Path) -> None:
    other = shard_of(directory, "model.embed_tokens.weight").name
    edit_json(directory / INDEX, lambda held: held["weight_map"].update({NORM: other}))


def empty_the_index(directory: Path) -> None:
    (directory / INDEX).write_text("{}")


def only_pickles(directory: Path) -> None:
    for file in directory.glob("model*.safetensors*"):
        file.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def no_weights(directory: Path) -> None:
    for file in directory.glob("model*.safetensors*"):
        file.unlink()


def config_with(key: str, value: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(
        directory / "config.json", lambda held: held.update({key: value})
    )


def remote_tokenizer(directory: Path) -> None:
    text = json.dumps({"auto_map": {"AutoTokenizer": ["x.Tokenizer", None]}})
    (directory / "tokenizer_config.json").write_text(text)


def broken_config(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


@dataclass(frozen=True)
class Refusal:
    spoil: Callable[[Path], Any]
    message: str
    error: type[SetupError] = BadCheckpoint


REFUSALS = {
    each.spoil.__name__ if each.spoil.__name__ != "<lambda>" else each.message: each
    for each in (
        Refusal(miss_a_tensor, rf"model: tensor {K_PROJ} \[32, 64\] is missing"),
        Refusal(add_a_tensor, r"safetensors: tensor bias_of_nothing is not one that its family"),
        Refusal(misshape_a_tensor, rf"tensor {K_PROJ} is \[31, 64\], .* \[32, 64\]"),
        Refusal(store_integers, f"tensor {NORM} has type I32; known: F32, BF16, F16"),
        Refusal(cut_a_shard, r"safetensors is no whole safetensors file .* fetch it again"),
        Refusal(cut_a_header, r"safetensors is no whole safetensors file .* fetch it again"),
        Refusal(lose_a_shard, r"safetensors is missing, though model.safetensors.index.json"),
        Refusal(leave_the_directory, r"'../x.safetensors' is outside of the directory"),
        Refusal(index_a_pickle, r"is in 'pytorch_model.bin', not in a saf", UnsafeFormat),
        Refusal(index_the_wrong_shard, rf"tensor {NORM} is not in model-.* as the index says"),
        Refusal(empty_the_index, r"index.json: there is no weight_map"),
        Refusal(only_pickles, r"pytorch_model.bin may run code when it is read", UnsafeFormat),
        Refusal(no_weights, r"there is neither model.safetensors nor"),
        Refusal(
            config_with("auto_map", {"AutoModel": "x.Model"}),
            r"config.json: auto_map asks for code",
            UnsafeFormat,
        ),
        Refusal(remote_tokenizer, r"tokenizer_config.json: auto_map asks for code", UnsafeFormat),
        Refusal(config_with("architectures", ["MistralForCausalLM"]), r"config.json: architecture"),
        Refusal(config_with("architectures", None), r"config.json: architectures must name one"),
        Refusal(config_with("hidden_act", "relu"), r"config.json: hidden_act 'relu'"),
        Refusal(config_with("num_hidden_layers", 2), r"tensor model.layers.2.\S+ is not one"),
        Refusal(broken_config, r"config.json is not JSON"),
        Refusal(no_config, r"config.json cannot be read"),
    )
}


@pytest.mark.parametrize("name", REFUSALS, ids=str)
def test_refused_with_one_clear_line(directory: Path, name: str) -> None:
    refusal = REFUSALS[name]
    refusal.spoil(directory)

    with pytest.raises(SetupError) as raised:
        load_model(directory, FLOAT32, ops=OPS)

    assert type(raised.value) is refusal.error
    assert re.search(refusal.message, str(raised.value))
    assert "\n" not in str(raised.value)


def test_many_faults_are_counted(directory: Path) -> None:
    config_with("num_hidden_layers", 9)(directory)

    with pytest.raises(BadCheckpoint, match=r"is missing; and 46 more$"):
        load_model(directory, FLOAT32, ops=OPS)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    pickle, text = tmp_path / "model.pt", tmp_path / "notes.txt"
    pickle.write_bytes(b"\x80\x04.")
    text.write_text("hello")

    with pytest.raises(UnsafeFormat, match=r"model.pt may run code"):
        load_model(pickle, FLOAT32, ops=OPS)
    with pytest.raises(BadCheckpoint, match=r"notes.txt is neither a model directory nor"):
        load_model(text, FLOAT32, ops=OPS)
    with pytest.raises(BadCheckpoint, match="does not exist"):
        load_model(tmp_path / "absent", FLOAT32, ops=OPS)


def test_the_report_names_what_was_left_out(directory: Path) -> None:
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(directory, NORM, lambda held: held.update({frequencies: torch.zeros(8)}))
    config_with("some_new_key", 1)(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))

    loaded = load_model(directory, FLOAT32, ops=OPS)

    assert loaded.report.skipped_tensors == (frequencies,)
    assert loaded.report.ignored_config_keys == ("some_new_key",)
    assert (loaded.report.family, loaded.report.file_format) == ("llama", "safetensors")
    assert loaded.report.num_tensors == 3 + 9 * 3
    assert loaded.config.eos_token_ids == (2, 9)
    assert loaded.tokenizer_source.kind == "hf_directory"
    assert loaded.tokenizer_source.path == directory


def test_one_file_without_an_index(directory: Path) -> None:
    merged: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("model-*.safetensors")):
        merged |= load_file(file)
        file.unlink()
    (directory / INDEX).unlink()
    save_file(merged, directory / "model.safetensors")

    loaded = load_model(directory, FLOAT32, ops=OPS)

    assert loaded.report.weight_bytes == sum(each.nbytes for each in merged.values())


@pytest.mark.parametrize("quantization", Quantization)
def test_bfloat16_and_int8_stay_close(whole: Path, quantization: Quantization) -> None:
    prompt = [Chunk(list(range(40)), 0, [1, 2, 3, 4, 5])]
    exact = load_model(whole, FLOAT32, ops=OPS).model
    rough = load_model(
        whole, EngineConfig(dtype=DType.BFLOAT16, quantization=quantization), ops=OPS
    )

    expected = step_logits(exact, exact.make_cache(8, BLOCK_SIZE), [prompt])
    actual = step_logits(rough.model, rough.model.make_cache(8, BLOCK_SIZE), [prompt])

    assert actual.dtype == torch.float32
    error_max = {Quantization.NONE: 0.06, Quantization.INT8: 0.06}[quantization]
    assert 0 < (expected - actual).norm() / expected.norm() < error_max
    held = {Quantization.NONE: 1.9, Quantization.INT8: 2.4}[quantization]
    assert (
        load_model(whole, FLOAT32, ops=OPS).report.weight_bytes / rough.report.weight_bytes > held
    )


def test_a_context_beyond_the_models_is_refused(whole: Path) -> None:
    with pytest.raises(SetupError, match="context of 300 tokens is more than the model's 256"):
        load_model(whole, EngineConfig(dtype=DType.FLOAT32, context_len_max=300), ops=OPS)
