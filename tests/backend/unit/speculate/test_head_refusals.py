"""Heads that are damaged, of another target or of another method are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.errors import BadCheckpoint, SetupError, UnsafeFormat
from backend.speculate.heads.loading import load_head
from backend.speculate.registry import make_proposer
from tests.support.draft_files import edit_config, edit_section, edit_tensors
from tests.support.draft_heads import (
    DRAFT_VOCAB,
    HIDDEN,
    MASK_TOKEN,
    save_block_head,
    save_eagle3,
)
from tests.support.draft_references import BlockRules
from tests.support.engine_world import Tiny, tiny_engine_config

VANILLA = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")


def without(*names: str) -> Callable[[Path], None]:
    return lambda at: edit_tensors(at, lambda tensors: [tensors.pop(name) for name in names])


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    return lambda at: edit_tensors(at, lambda tensors: tensors.update({name: tensor}))


EAGLE3_REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (without("fc.weight"), r"tensor fc\.weight \[64, 192\] is missing"),
    "misshaped": (
        with_tensor("fc.weight", torch.zeros(HIDDEN, 5 * HIDDEN)),
        r"fc\.weight is \[64, 320\], but by its configuration it is \[64, 192\]",
    ),
    "unknown": (with_tensor("layers.0.bias", torch.zeros(3)), "layers.0.bias is not one"),
    "of integers": (
        with_tensor("norm.weight", torch.zeros(HIDDEN, dtype=torch.int64)),
        "norm.weight has type I64",
    ),
    "int8 without scales": (
        with_tensor("fc.weight", torch.zeros(HIDDEN, 3 * HIDDEN, dtype=torch.int8)),
        "fc.weight_scale",
    ),
    "scales without int8": (
        with_tensor("fc.weight_scale", torch.zeros(HIDDEN)),
        "fc.weight has type F32; here it may have I8",
    ),
    "ids for offsets": (
        with_tensor("d2t", torch.arange(DRAFT_VOCAB) + 200),
        "must hold offsets, not ids",
    ),
    "a token twice": (with_tensor("d2t", -torch.arange(DRAFT_VOCAB)), "same token twice"),
    "another mask": (with_tensor("t2d", torch.ones(320, dtype=torch.bool)), "t2d marks other"),
    "no vocabulary": (without("d2t", "t2d"), r"tensor d2t \[120\] is missing"),
    "larger vocabulary": (
        lambda at: edit_config(at, draft_vocab_size=121),
        r"lm_head\.weight is \[120, 64\], but by its configuration it is \[121, 64\]",
    ),
    "two norms": (
        lambda at: edit_config(at, fc_norm=True, norm_before_fc=True),
        "exclude each other",
    ),
    "a word for a flag": (lambda at: edit_config(at, norm_output="yes"), "norm_output must be"),
    "layers that are none": (
        lambda at: edit_config(at, eagle_aux_hidden_state_layer_ids=[1, 2.5, 3]),
        "must be a list of layers",
    ),
    "many at once": (
        lambda at: edit_config(at, parallel_drafting=True),
        "parallel_drafting True is not supported",
    ),
    "biases": (lambda at: edit_section(at, attention_bias=True), "attention_bias"),
    "another method": (lambda at: edit_config(at, speculators_model_type="peagle"), "peagle"),
    "windows nowhere": (lambda at: edit_section(at, sliding_window=8), "which layers"),
    "code": (lambda at: edit_config(at, auto_map={"AutoModel": "x.Y"}), "auto_map"),
    "another vocabulary": (
        lambda at: edit_section(at, vocab_size=400),
        r"t2d is \[320\], but by its configuration it is \[400\]",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), EAGLE3_REFUSED.values(), ids=EAGLE3_REFUSED)
def test_what_does_not_fit_is_refused_by_name(
    target: Tiny, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    saved = save_eagle3(tmp_path)
    spoil(saved.directory)

    with pytest.raises((BadCheckpoint, UnsafeFormat), match=said) as caught:
        load_head(saved.directory, target.model.config)
    assert str(tmp_path) in str(caught.value)


BLOCKS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no mask": ({"mask_token_id": None}, "mask_token_id must be a whole number"),
    "a mask outside": ({"mask_token_id": 320}, "outside of the vocabulary of 320"),
    "no layers": ({"aux_hidden_state_layer_ids": None}, "no layers of the target"),
    "no block": ({"block_size": 1}, "leaves no draft"),
    "scaled values": ({"attention_value_scale": 0.5}, "attention_value_scale"),
    "DFlash2": ({"conv_kernel_size": 4}, "only plain DFlash"),
    "causality of other layers": ({"is_causal": [True]}, "not one for each layer"),
    "another Markov head": ({"markov_head_type": "deep"}, "'deep' is not supported"),
    "confidence of nothing": ({"markov_rank": 0}, "without a Markov head"),
    "another rank": ({"markov_rank": 9}, r"markov_w1\.weight is \[320, 8\]"),
    "sinks": ({"attention_sinks": True}, "attention_sinks"),
}


@pytest.mark.parametrize(("changes", "said"), BLOCKS_REFUSED.values(), ids=BLOCKS_REFUSED)
def test_a_block_head_that_does_not_fit_is_refused(
    target: Tiny, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    saved = save_block_head(tmp_path, "dspark", rules=VANILLA, has_confidence=True)
    edit_config(saved.directory, **changes)

    with pytest.raises(BadCheckpoint, match=said):
        load_head(saved.directory, target.model.config)


def test_a_list_of_all_tokens_must_name_them_in_order(target: Tiny, tmp_path: Path) -> None:
    saved = save_eagle3(tmp_path, has_draft_vocab=False)
    with_tensor("d2t", torch.zeros(320, dtype=torch.int64))(saved.directory)
    assert load_head(saved.directory, target.model.config).d2t is None
    swapped = torch.zeros(320, dtype=torch.int64)
    swapped[:2] = torch.tensor([1, -1])
    with_tensor("d2t", swapped)(saved.directory)

    with pytest.raises(BadCheckpoint, match="reorders"):
        load_head(saved.directory, target.model.config)


def test_pickles_are_not_read(target: Tiny, tmp_path: Path) -> None:
    saved = save_block_head(tmp_path)
    (saved.directory / "mask_embedding.pt").write_bytes(b"anything")
    with pytest.raises(UnsafeFormat, match="mask_embedding"):
        load_head(saved.directory, target.model.config)
    (saved.directory / "mask_embedding.pt").unlink()
    (saved.directory / "model.safetensors").rename(saved.directory / "pytorch_model.bin")
    with pytest.raises(UnsafeFormat, match=r"pytorch_model\.bin"):
        load_head(saved.directory, target.model.config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 128}, "hidden size of 64, this one has 128"),
        ({"vocab_size": 512}, "vocabulary of 320, this one has 512"),
    ],
)
def test_a_head_of_another_target_is_refused(
    target: Tiny, tmp_path: Path, changes: dict[str, int], said: str
) -> None:
    saved = save_eagle3(tmp_path)
    other = replace(target.model.config, **changes)

    with pytest.raises(BadCheckpoint, match=said):
        load_head(saved.directory, other)


def test_a_method_wants_a_head_of_its_own(target: Tiny, tmp_path: Path) -> None:
    eagle3 = save_eagle3(tmp_path / "a")
    dspark = save_block_head(tmp_path / "b", "dspark", rules=VANILLA)
    for method, path, said in (
        ("eagle3", "", "needs a head"),
        ("dflash", str(eagle3.directory), "not one for dflash"),
        ("eagle3", str(dspark.directory), "not one for eagle3"),
        ("dflash", str(dspark.directory), "choose the method dspark"),
        ("dspark", str(tmp_path / "nowhere"), "is no directory"),
    ):
        config = tiny_engine_config(proposer=method, draft_path=path, num_drafts_max=4)
        with pytest.raises(SetupError, match=said):
            make_proposer(target.model, config)
    config = tiny_engine_config(
        proposer="dspark", draft_path=str(dspark.directory), num_drafts_max=99, rows_max=4096
    )
    made = make_proposer(target.model, config)
    assert (made.name, made.num_drafts_max) == ("dspark", 6)
