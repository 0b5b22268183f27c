"""Heads on disk: the layouts that are published, and this project's int8."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from backend.config import RopeConfig, RopeScaling
from backend.errors import BadCheckpoint
from backend.models.interface import FeatureTap
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.dflash import DFlashHead
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.heads.files import HeadFiles
from backend.speculate.heads.loading import METHODS, load_head
from backend.speculate.heads.saving import save_head, stored_tensors
from backend.speculate.heads.vocabulary import drafted_mask, offsets_of
from tests.support.draft_files import edit_config, edit_section
from tests.support.draft_heads import (
    DRAFT_VOCAB,
    HIDDEN,
    MASK_TOKEN,
    SavedHead,
    dimensions,
    save_block_head,
    save_eagle3,
)
from tests.support.draft_methods import NUM_DRAFTS, check_drafts, proposer_of, reference_of
from tests.support.draft_references import BlockRules, Eagle3Rules
from tests.support.draft_rounds import Rounds, States
from tests.support.engine_world import Tiny

ANCHORED = BlockRules(MASK_TOKEN, samples_from_anchor=True)
VANILLA = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")
Save = Callable[[Path], SavedHead]

LAYOUTS: dict[str, tuple[Save, Eagle3Rules | BlockRules | None]] = {
    "eagle3-native": (lambda at: save_eagle3(at, "native"), None),
    "eagle3-speculators": (lambda at: save_eagle3(at, "speculators"), None),
    "eagle3-deepspec": (
        lambda at: save_eagle3(
            at,
            "deepspec",
            dims=dimensions(num_layers=2),
            layer_ids=(0, 1, 2, 3, 4),
            has_draft_vocab=False,
            has_embedding=True,
        ),
        Eagle3Rules(is_fusing_everywhere=True),
    ),
    "dflash-native": (
        lambda at: save_block_head(
            at, "dflash", "native", layer_ids=(0, 2, 4), has_draft_vocab=False, has_lm_head=False
        ),
        BlockRules(MASK_TOKEN),
    ),
    "dflash-speculators": (lambda at: save_block_head(at), BlockRules(MASK_TOKEN)),
    "dflash-deepspec": (
        lambda at: save_block_head(
            at, "dspark", "deepspec", layer_ids=(-1, 2, 4), rules=ANCHORED, has_draft_vocab=False
        ),
        ANCHORED,
    ),
    "dspark-deepspec": (
        lambda at: save_block_head(
            at,
            "dspark",
            "deepspec",
            layer_ids=(0, 2, 4),
            rules=VANILLA,
            has_confidence=True,
            has_draft_vocab=False,
            has_embedding=True,
        ),
        VANILLA,
    ),
    "dspark-speculators": (lambda at: save_block_head(at, "dspark", rules=VANILLA), VANILLA),
}


def drafts_are_right(
    target: Tiny, states: States, saved: SavedHead, rules: Eagle3Rules | BlockRules | None
) -> None:
    rounds = Rounds(proposer_of(target, saved), states, NUM_DRAFTS)
    reference = reference_of(target, saved, rules)
    rounds.admit(1, rounds.prompt(10))
    rounds.round({1: 1})
    check_drafts(rounds, saved, reference)


@pytest.mark.parametrize(("save", "rules"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_published_layout_is_read_as_its_publisher_means_it(
    target: Tiny,
    states: States,
    tmp_path: Path,
    save: Save,
    rules: Eagle3Rules | BlockRules | None,
) -> None:
    drafts_are_right(target, states, save(tmp_path), rules)


@pytest.mark.parametrize(("save", "rules"), LAYOUTS.values(), ids=LAYOUTS)
def test_what_is_saved_drafts_the_same(
    target: Tiny,
    states: States,
    tmp_path: Path,
    save: Save,
    rules: Eagle3Rules | BlockRules | None,
    request: pytest.FixtureRequest,
) -> None:
    saved = save(tmp_path / "given")
    head = load_head(saved.directory, target.model.config)
    if "eagle3-deepspec" in request.node.callspec.id:
        with pytest.raises(ValueError, match="only the first layer"):
            save_head(head, tmp_path / "again", num_drafts=4)
        return
    save_head(head, tmp_path / "again", num_drafts=4, dtype=torch.float32, target_name="tiny")

    drafts_are_right(target, states, replace(saved, directory=tmp_path / "again"), rules)
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny"
    assert not list((tmp_path / "again").glob(".*"))


@pytest.mark.parametrize("method", ["eagle3", "dspark"])
def test_int8_on_disk_is_the_rounded_head(target: Tiny, tmp_path: Path, method: str) -> None:
    def save(at: Path, **more: Any) -> SavedHead:
        if method == "eagle3":
            return save_eagle3(at, **more)
        return save_block_head(at, "dspark", rules=VANILLA, has_confidence=True, **more)

    exact = load_head(save(tmp_path / "exact").directory, target.model.config)
    rounded = load_head(save(tmp_path / "int8", is_int8=True).directory, target.model.config)
    for name, tensor in exact.own_state().items():
        found = rounded.own_state()[name]
        if tensor.dim() != 2:
            assert torch.equal(found, tensor), name
            continue
        step = tensor.abs().amax(1, keepdim=True) / 127
        assert bool(((found - tensor).abs() <= 0.51 * step).all()), name
        assert not torch.equal(found, tensor), name

    save_head(exact, tmp_path / "own", num_drafts=4, is_int8=True)
    again = load_head(tmp_path / "own", target.model.config)
    # Rounded once more nothing changes: int8 read and served in int8 loses nothing.
    twice = stored_tensors(again, dtype=torch.bfloat16, is_int8=True)
    for name, stored in load_file(tmp_path / "own" / "model.safetensors").items():
        if stored.dtype == torch.int8:
            assert torch.equal(twice[name], stored), name
    num_bytes = (tmp_path / "own" / "model.safetensors").stat().st_size
    assert num_bytes < 0.35 * (tmp_path / "exact" / "model.safetensors").stat().st_size


def test_layers_are_counted_as_each_publisher_counts_them(target: Tiny, tmp_path: Path) -> None:
    def taps(saved: SavedHead) -> tuple[FeatureTap, ...]:
        return load_head(saved.directory, target.model.config).head_config.taps(6)

    entering = save_eagle3(tmp_path / "a", layer_ids=(0, 3, 5))
    assert taps(entering) == tuple(FeatureTap(layer, "in") for layer in (0, 3, 5))
    leaving = save_block_head(tmp_path / "b", "dflash", "native", layer_ids=(-1, 2, 4))
    assert taps(leaving) == tuple(FeatureTap(layer, "out") for layer in (-1, 2, 4))
    # transformers' state behind the last layer is normed: no head can have been trained on it so.
    for saved in (
        save_eagle3(tmp_path / "c", layer_ids=(1, 2, 6)),
        save_block_head(tmp_path / "d", "dflash", "native", layer_ids=(1, 2, 5)),
    ):
        with pytest.raises(BadCheckpoint, match="reads target layer"):
            taps(saved)


def test_a_head_that_names_no_layers_reads_its_method_s(target: Tiny, tmp_path: Path) -> None:
    eagle3 = save_eagle3(tmp_path / "a", "native")
    edit_config(eagle3.directory, eagle_config=None)
    config = load_head(eagle3.directory, target.model.config).head_config
    assert [tap.layer for tap in config.taps(36)] == [2, 18, 33]
    layers = dimensions(num_layers=5)
    dflash = save_block_head(
        tmp_path / "b", "dflash", "native", dims=layers, layer_ids=(0, 1, 2, 3, 4)
    )
    edit_config(dflash.directory, dflash_config={"mask_token_id": 3})
    config = load_head(dflash.directory, target.model.config).head_config
    assert [tap.layer for tap in config.taps(36)] == [1, 9, 17, 25, 33]
    assert {tap.side for tap in config.taps(36)} == {"out"}


def test_what_a_config_leaves_out_means_what_its_readers_take_it_for(tmp_path: Path) -> None:
    eagle3 = save_eagle3(tmp_path / "a")
    edit_config(eagle3.directory, norm_before_residual=None)
    assert configured(eagle3.directory).is_norm_before_residual
    native = save_eagle3(tmp_path / "b", "native")
    assert not configured(native.directory).is_norm_before_residual
    dspark = save_block_head(tmp_path / "c", "dspark", rules=VANILLA)
    edit_config(dspark.directory, sample_from_anchor=None)
    assert not configured(dspark.directory).samples_from_anchor
    deepspec = save_block_head(
        tmp_path / "d", "dspark", "deepspec", rules=VANILLA, has_draft_vocab=False
    )
    assert configured(deepspec.directory).samples_from_anchor
    # A saved section leaves out what is its class's default.
    edit_section(dspark.directory, rms_norm_eps=None, max_position_embeddings=None)
    shape = configured(dspark.directory).shape
    assert (shape.rms_norm_eps, shape.context_len_max) == (1e-6, 32768)


def configured(directory: Path) -> Any:
    files = HeadFiles(directory)
    read_config, _ = METHODS[files.method]
    return read_config(files)


def test_a_head_lends_the_target_s_ends_and_keeps_them_out_of_its_file(
    target: Tiny, tmp_path: Path
) -> None:
    for kind, saved in (
        (Eagle3Head, save_eagle3(tmp_path / "a", has_lm_head=False)),
        (DFlashHead, save_block_head(tmp_path / "b", has_lm_head=False)),
        (DSparkHead, save_block_head(tmp_path / "c", "dspark", rules=VANILLA, has_lm_head=False)),
    ):
        head: DraftHead = load_head(saved.directory, target.model.config)
        assert isinstance(head, kind)
        with pytest.raises(ValueError, match="attach"):
            head.project(torch.zeros(1, HIDDEN))
        before = set(head.own_state())
        head.attach(torch.zeros(320, HIDDEN), torch.zeros(DRAFT_VOCAB, HIDDEN))
        assert set(head.own_state()) == before
        assert head.project(torch.zeros(1, HIDDEN)).shape == (1, DRAFT_VOCAB)


def test_rope_of_its_own_survives_saving(target: Tiny, tmp_path: Path) -> None:
    saved = save_eagle3(tmp_path / "given")
    head = load_head(saved.directory, target.model.config)
    ropes = (
        RopeConfig(5e5, 16, RopeScaling.LLAMA3, 8.0, 1.0, 4.0, 64),
        RopeConfig(1e4, 16, RopeScaling.YARN, 4.0, original_context_len=64, attention_factor=1.2),
        RopeConfig(1e4, 16, RopeScaling.LINEAR, 4.0, original_context_len=256),
    )
    for rope in ropes:
        config = head.head_config
        head.head_config = replace(config, shape=replace(config.shape, rope=rope))
        save_head(head, tmp_path / "again", num_drafts=4)
        again = load_head(tmp_path / "again", target.model.config)
        assert again.head_config.shape.rope == rope


def test_the_draft_vocabulary_holds_the_most_frequent_tokens() -> None:
    counts = torch.tensor([0, 5, 0, 9, 5, 1, 0, 9])

    offsets = offsets_of(counts, 6)

    # Nines, fives and the one; of the tokens never seen the lowest.
    assert (offsets + torch.arange(6)).tolist() == [0, 1, 3, 4, 5, 7]
    assert drafted_mask(offsets, 8).tolist() == [True, True, False, True, True, True, False, True]
    assert offsets_of(counts, 8).tolist() == [0] * 8
    with pytest.raises(ValueError, match="9 of 8"):
        offsets_of(counts, 9)
