"""Whether a draft head belongs to the model that is loaded, before anything is drafted with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.models.fingerprint import weights_fingerprint
from backend.models.loading import read_description
from backend.serving.tokenizer import Tokenizer
from backend.serving.tokenizer_files import load_tokenizer
from backend.speculate.heads.identity import HeadIdentity, TargetIdentity, check_identity
from backend.speculate.proposers.draft_model import DraftModelProposer
from backend.speculate.registry import head_method

_THINKING_SWITCH = "enable_thinking"  # the variable that templates read


def text_fingerprint(tokenizer: Tokenizer) -> str:
    """ "sha256:…" of what every id stands for and of the chat template, wherever they were read."""
    digest = hashlib.sha256()
    for token_id in range(tokenizer.vocab_size):
        token = tokenizer.token_bytes(token_id)
        digest.update(len(token).to_bytes(4, "little") + token)
    digest.update(tokenizer.chat_templates.get("default", "").strip().encode())
    return "sha256:" + digest.hexdigest()


def target_identity(path: Path, tokenizer: Tokenizer) -> TargetIdentity:
    """Of the model at `path`: for a head's own file when it is trained, and for the check."""
    template = tokenizer.chat_templates.get("default", "")
    return TargetIdentity(
        weights=weights_fingerprint(path),
        text=text_fingerprint(tokenizer),
        has_thinking=_THINKING_SWITCH in template,
        name=path.name,
    )


def check_draft(path: Path, tokenizer: Tokenizer, config: EngineConfig) -> HeadIdentity | None:
    """None without a head, or for one that says nothing. Raises SetupError for another target's,
    and for a draft model of another vocabulary."""
    if config.draft_path and config.proposer == DraftModelProposer.name:
        check_draft_model(Path(config.draft_path), tokenizer)
    if not config.draft_path or head_method(config.proposer) is None:
        return None
    return check_identity(
        Path(config.draft_path),
        target_identity(path, tokenizer),
        is_forced=config.is_draft_forced,
    )


def check_draft_model(path: Path, target: Tokenizer) -> None:
    """Raises SetupError unless the model at `path` means the same by every id as the target."""
    _, source = read_description(path)
    draft = load_tokenizer(source)
    if draft.vocab_size != target.vocab_size:
        raise SetupError(
            f"the draft model in {path} has a vocabulary of {draft.vocab_size} tokens, the model "
            f"has {target.vocab_size}; a draft model must have the same one"
        )
    for token_id in range(target.vocab_size):
        theirs, ours = draft.token_bytes(token_id), target.token_bytes(token_id)
        if theirs != ours:
            raise SetupError(
                f"the draft model in {path} means {theirs!r} by token {token_id}, the model means "
                f"{ours!r}; a draft model must have the same vocabulary"
            )
