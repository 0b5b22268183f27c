"""A head is held against the model that is served, before its first draft."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from backend.config import DType, EngineConfig, ModelConfig
from backend.errors import SetupError
from backend.models.loading import TokenizerSource, load_model
from backend.serving.draft_check import check_draft_model, target_identity, text_fingerprint
from backend.serving.loading import load_served
from backend.serving.tokenizer_files import load_tokenizer
from backend.speculate.heads.eagle3 import Eagle3Config, Eagle3Head
from backend.speculate.heads.identity import HeadIdentity, write_identity
from backend.speculate.heads.saving import save_head
from tests.support.spelling_model import save_spelling_model
from tests.support.text_models import gguf_metadata, train_fast

CONFIG = EngineConfig(
    dtype=DType.FLOAT32, kv_cache_bytes=1 << 22, sequences_max=2, rows_max=64, context_len_max=256
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("spelling")
    save_spelling_model(made)
    return made


def of_directory(directory: Path) -> str:
    return text_fingerprint(load_tokenizer(TokenizerSource("hf_directory", directory, {})))


def test_a_template_or_a_token_more_is_another_text(directory: Path, tmp_path: Path) -> None:
    plain = of_directory(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((directory / name).read_text())
    assert of_directory(tmp_path) == plain

    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    other_template = of_directory(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    raw["added_tokens"][-1]["content"] += "!"
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    other_token = of_directory(tmp_path)

    assert len({plain, other_template, other_token}) == 3


def test_a_gguf_file_and_a_directory_of_one_tokenizer_agree(tmp_path: Path) -> None:
    fast, template = train_fast(), "{{ messages[0].content }}"
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    metadata = {**gguf_metadata(fast, "default"), "tokenizer.chat_template": template}
    source = TokenizerSource("gguf", tmp_path / "any.gguf", metadata)

    assert text_fingerprint(load_tokenizer(source)) == of_directory(tmp_path)


def save_random_head(at: Path, target: ModelConfig) -> None:
    shape = replace(target, family="draft", num_layers=1)
    config = Eagle3Config(
        shape=shape,
        windows=(0,),
        target_hidden_size=target.hidden_size,
        layer_ids=(0, 1),
        tap_side="in",
        num_features=2,
        draft_vocab_size=target.vocab_size,
        has_own_embedding=False,
        has_own_lm_head=False,
    )
    save_head(Eagle3Head(config), at, num_drafts=2)


def test_a_head_of_another_target_does_not_start_the_server(
    directory: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(TokenizerSource("hf_directory", directory, {}))
    target = target_identity(directory, tokenizer)
    assert not target.has_thinking
    head = HeadIdentity("eagle3", "spelling", (target.weights,), (target.text,), "none")
    save_random_head(tmp_path, load_model(directory, CONFIG).config)
    config = replace(CONFIG, proposer="eagle3", num_drafts_max=2, draft_path=str(tmp_path))

    write_identity(tmp_path, head)
    load_served(directory, config).engine.close()
    write_identity(tmp_path, replace(head, weights=("sha256:0",)))
    with pytest.raises(SetupError, match=f"made for spelling, not for {directory.name}"):
        load_served(directory, config)
    load_served(directory, replace(config, is_draft_forced=True)).engine.close()
    # What other methods are given a path for is no head.
    load_served(directory, replace(config, proposer="ngram")).engine.close()


def test_a_draft_model_must_mean_the_same_by_every_token(directory: Path, tmp_path: Path) -> None:
    target = load_tokenizer(TokenizerSource("hf_directory", directory, {}))
    for file in directory.iterdir():
        shutil.copy(file, tmp_path / file.name)
    check_draft_model(tmp_path, target)

    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    raw["added_tokens"][-1]["content"] += "!"
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(SetupError, match=r"means b'.*!' by token \d+, the model means b'"):
        check_draft_model(tmp_path, target)

    raw["added_tokens"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(SetupError, match=r"a vocabulary of \d+ tokens, the model has \d+"):
        check_draft_model(tmp_path, target)


def test_a_draft_model_of_the_same_vocabulary_is_served(directory: Path) -> None:
    config = replace(CONFIG, proposer="draft_model", num_drafts_max=3, draft_path=str(directory))

    loaded = load_served(directory, config)

    assert loaded.engine.load().speculation.method == "draft_model"
