"""The real small model: it answers, and int8 costs it next to nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from backend.config import DType, EngineConfig, Quantization
from backend.models.interface import CausalModel
from backend.models.loading import LoadedModel, load_model
from tests.support.smollm2 import END, chat_prompt, long_text
from tests.support.text_models import smollm2_file, smollm2_tokenizer
from tests.support.tiny_checkpoints import Chunk, step_logits

NUM_TOKENS = 2048
WINDOW = 512
BLOCK = 32

pytestmark = pytest.mark.slow


def load(**changes: Any) -> LoadedModel:
    return load_model(smollm2_file(), EngineConfig(**changes))


def test_it_knows_the_capital_of_france() -> None:
    loaded = load(dtype=DType.FLOAT32)
    words = smollm2_tokenizer()
    prompt = words.encode_prompt(chat_prompt("What is the capital of France?"))
    cache, blocks = loaded.model.make_cache(8, BLOCK), list(range(1, 8))

    answer: list[int] = []
    fresh = prompt
    while len(answer) < 20:
        start = len(prompt) + len(answer) - len(fresh)
        logits = step_logits(loaded.model, cache, [[Chunk(fresh, start, blocks)]])
        fresh = [int(logits[-1].argmax())]
        if fresh == [END]:
            break
        answer += fresh

    assert words.decode(answer) == "The capital of France is Paris."


def test_the_gguf_says_what_it_is() -> None:
    loaded = load()

    config = loaded.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.vocab_size, config.context_len_max, config.tie_embeddings) == (49152, 8192, True)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (END,))
    assert loaded.report.num_tensors == 272
    assert loaded.report.skipped_tensors == loaded.report.ignored_config_keys == ()
    assert "<|im_start|>" in loaded.tokenizer_source.metadata["tokenizer.chat_template"]


def perplexity(model: CausalModel, token_ids: list[int]) -> float:
    """Over windows that each start without a past."""
    blocks = list(range(1, WINDOW // BLOCK + 1))
    losses = []
    for start in range(0, len(token_ids), WINDOW):
        window = token_ids[start : start + WINDOW]
        cache = model.make_cache(len(blocks) + 1, BLOCK)
        logits = step_logits(model, cache, [[Chunk(window, 0, blocks)]])
        losses.append(
            torch.nn.functional.cross_entropy(
                logits[:-1], torch.tensor(window[1:]), reduction="none"
            )
        )
    return math.exp(torch.cat(losses).mean().item())


def test_int8_raises_perplexity_by_less_than_one_percent() -> None:
    plain = load(dtype=DType.BFLOAT16)
    token_ids = smollm2_tokenizer().encode(long_text())[:NUM_TOKENS]
    assert len(token_ids) == NUM_TOKENS
    before = perplexity(plain.model, token_ids)

    int8 = load(dtype=DType.BFLOAT16, quantization=Quantization.INT8)
    after = perplexity(int8.model, token_ids)

    assert 5 < before < 30
    assert after <= 1.01 * before
