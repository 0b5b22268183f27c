"""Reads a tokenizer from where the model came from: tokenizer.json, or a GGUF file's metadata.

GGUF metadata names its pre-tokenizer instead of describing it (`tokenizer.ggml.pre`); known here
are those of the model families served. Another one is refused: a wrong split gives other tokens,
and a model that is quietly worse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from backend.errors import BadCheckpoint
from backend.models.loading import TokenizerSource
from backend.models.safetensors_files import read_json
from backend.serving.tokenizer import BYTE_OF_CHARACTER, ByteCoding, Tokenizer, TokenizerParts

TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")

# How Llama 3 and Qwen 2 cut a text before merging: contractions, words with one character before
# them, digits (up to three together, or each alone), punctuation with line ends, blanks.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS = {
    "default": "gpt-2",  # the converter knew no better
    "gpt-2": "gpt-2",
    "smollm": "smollm",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
}
# Vocabularies may lack rare bytes (SmolLM2 has no token for U+0004), which are then dropped, as
# everywhere; without one of these it is no byte-level vocabulary.
_NEEDED_BYTES = {0x0A, *range(0x20, 0x7F)}
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Raises BadCheckpoint for files that are not there, broken, or of a kind not known."""
    if source.kind == "gguf":
        return Tokenizer(_from_gguf(source.path, source.metadata))
    return Tokenizer(_from_directory(source.path))


# ------------------------------------------------------------------ Hugging Face directory


def _from_directory(directory: Path) -> TokenizerParts:
    file = directory / "tokenizer.json"
    if not file.exists():
        raise BadCheckpoint(f"{file} is missing; save the model with a fast tokenizer")
    described = read_json(file)
    coding = _coding_of(file, described.get("decoder"))
    added = _checked_added(file, described.get("added_tokens"))
    for token in added:
        # A token that is looked for in normalized text could be written in disguise.
        token["normalized"] = bool(token["normalized"]) and not token["special"]
    try:
        fast = FastTokenizer.from_str(json.dumps(described))
    except Exception as error:  # the library raises nothing narrower
        raise BadCheckpoint(f"{file} is no tokenizer: {error}") from error
    fast.no_truncation()
    fast.no_padding()
    config = _optional_json(directory / "tokenizer_config.json")
    named = {**_optional_json(directory / "special_tokens_map.json"), **config}
    tokens = {key: text for key in TEMPLATE_TOKENS if (text := _text_of(named.get(key)))}
    end_id = fast.token_to_id(tokens.get("eos_token", ""))
    return TokenizerParts(
        fast=fast,
        coding=coding,
        control_tokens={each["content"]: each["id"] for each in added if each["special"]},
        added_tokens={each["id"]: each["content"] for each in added},
        template_tokens=tokens,
        end_token_ids=() if end_id is None else (end_id,),
        chat_templates=_templates(directory, config.get("chat_template")),
    )


def _checked_added(file: Path, given: Any) -> list[dict[str, Any]]:
    fields = {"id": int, "content": str, "special": bool, "normalized": bool}
    for token in given or ():
        if not isinstance(token, dict) or not all(
            isinstance(token.get(name), kind) for name, kind in fields.items()
        ):
            raise BadCheckpoint(f"{file}: added_tokens holds {str(token)[:80]}, which is no token")
    return list(given or ())


def _coding_of(file: Path, decoder: Any) -> ByteCoding:
    parts = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {part.get("type") for part in parts}
    if kinds == {"ByteLevel"}:
        return ByteCoding.BYTE_LEVEL
    if kinds & {"ByteFallback", "Metaspace"}:
        return ByteCoding.METASPACE
    raise BadCheckpoint(
        f"{file}: a decoder of {', '.join(sorted(map(str, kinds))) or 'nothing'} is not supported; "
        "byte-level BPE and SentencePiece with byte fallback are"
    )


def _templates(directory: Path, configured: Any) -> dict[str, str]:
    """The newest place first: chat_template.jinja, then JSON files."""
    file = directory / "chat_template.jinja"
    if file.exists():
        return {"default": file.read_text("utf-8")}
    if configured is None:
        configured = _optional_json(directory / "chat_template.json").get("chat_template")
    if isinstance(configured, str):
        return {"default": configured}
    if isinstance(configured, list):
        return {each["name"]: each["template"] for each in configured if isinstance(each, dict)}
    return {}


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _text_of(token: Any) -> str | None:
    """A special token is written as its text or as an object that holds it."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


# -------------------------------------------------------------------------------- GGUF


def _from_gguf(path: Path, metadata: Mapping[str, Any]) -> TokenizerParts:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise BadCheckpoint(
            f"{path}: a tokenizer of kind {model!r} is not supported in GGUF; byte-level BPE "
            "('gpt2') is. Use the model's Hugging Face directory instead"
        )
    tokens = _strings(path, metadata, "tokens")
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise BadCheckpoint(f"{path}: {len(tokens)} tokens but {len(kinds)} token types")
    control = {t: i for i, t in enumerate(tokens) if kinds[i] == _CONTROL}
    added = {i: t for i, t in enumerate(tokens) if kinds[i] in (_CONTROL, _USER_DEFINED)}
    fast = _byte_level_bpe(path, metadata, tokens)
    fast.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    fast.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in added.values() if t not in control]
    )
    _check_spelling(path, tokens, added, kinds)
    ids = {
        name: _optional_id(path, metadata, name, len(tokens))
        for name in ("bos", "eos", "unknown", "padding", "eot", "eom")
    }
    # Llama 3 files were made before the key was.
    is_llama3 = _PRE_TOKENIZERS.get(metadata.get("tokenizer.ggml.pre", "")) == "llama-bpe"
    if metadata.get("tokenizer.ggml.add_bos_token", is_llama3) and ids["bos"] is not None:
        begin = tokens[ids["bos"]]
        fast.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"], special_tokens=[(begin, ids["bos"])]
        )
    named = zip(TEMPLATE_TOKENS, ("bos", "eos", "unknown", "padding"), strict=True)
    ends = (ids[name] for name in ("eos", "eot", "eom"))
    return TokenizerParts(
        fast=fast,
        coding=ByteCoding.BYTE_LEVEL,
        control_tokens=control,
        added_tokens=added,
        template_tokens={
            key: tokens[token_id] for key, name in named if (token_id := ids[name]) is not None
        },
        end_token_ids=tuple(dict.fromkeys(each for each in ends if each is not None)),
        chat_templates={
            name: source
            for name, key in (("default", ""), ("tool_use", ".tool_use"))
            if isinstance(source := metadata.get(f"tokenizer.chat_template{key}"), str)
        },
    )


def _byte_level_bpe(
    path: Path, metadata: Mapping[str, Any], tokens: Sequence[str]
) -> FastTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre = _PRE_TOKENIZERS.get(name)
    if pre is None:
        raise BadCheckpoint(
            f"{path}: pre-tokenizer {name!r} is not supported; "
            f"known: {', '.join(sorted(_PRE_TOKENIZERS))}"
        )
    merges: list[tuple[str, str]] = []
    for merge in _strings(path, metadata, "merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    # The first of two equal strings is the one that is encoded to.
    vocab = {token: token_id for token_id, token in reversed(list(enumerate(tokens)))}
    try:
        bpe = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises nothing narrower
        raise BadCheckpoint(f"{path}: the merges do not fit the tokens: {error}") from error
    fast = FastTokenizer(bpe)
    fast.decoder = decoders.ByteLevel()
    fast.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        fast.normalizer = normalizers.NFC()
    return fast


def _pre_tokenizer(pre: str) -> Any:
    by_regex = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "gpt-2":
        return by_regex
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_regex])
    pattern = _SPLIT.format(digits="{1,3}" if pre == "llama-bpe" else "")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _check_spelling(
    path: Path, tokens: Sequence[str], added: Mapping[int, str], kinds: Sequence[int]
) -> None:
    """Every ordinary token is written in byte characters, and plain ASCII can be written."""
    for token_id, token in enumerate(tokens):
        is_plain = token_id not in added and kinds[token_id] != _UNKNOWN
        if is_plain and not all(character in BYTE_OF_CHARACTER for character in token):
            raise BadCheckpoint(f"{path}: token {token_id} {token!r} is not byte-level BPE")
    known = set(tokens)
    missing = [
        byte
        for character, byte in BYTE_OF_CHARACTER.items()
        if byte in _NEEDED_BYTES and character not in known
    ]
    if missing:
        raise BadCheckpoint(f"{path}: no token stands for the bytes {bytes(sorted(missing))!r}")


def _strings(path: Path, metadata: Mapping[str, Any], name: str) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
        raise BadCheckpoint(f"{path}: tokenizer.ggml.{name} is missing or no list of strings")
    return list(found)


def _optional_id(path: Path, metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    found = metadata.get(key)
    if found is None:
        return None
    if not isinstance(found, int) or not 0 <= found < num_tokens:
        raise BadCheckpoint(f"{path}: {key} {found!r} is none of {num_tokens} tokens")
    return found
