"""Whether a draft head belongs to the model that is loaded, before anything is drafted with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from backend.config import EngineConfig
from backend.models.fingerprint import weights_fingerprint
from backend.serving.tokenizer import Tokenizer
from backend.speculate.heads.identity import HeadIdentity, TargetIdentity, check_identity
from backend.speculate.registry import HEAD_METHODS

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
    """None without a head, or for one that says nothing. Raises SetupError for another target's."""
    if not config.draft_path or config.proposer not in HEAD_METHODS:
        return None
    return check_identity(
        Path(config.draft_path),
        target_identity(path, tokenizer),
        is_forced=config.is_draft_forced,
    )
