"""The test bundle's target: a small Llama, trained here on the grammar's conversations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from tests.bundle.corpus import TARGET, messages_of, turns
from tests.bundle.problems import Turn
from tests.bundle.tokenizer import END, END_OF_TEXT, START, rendered

CONTEXT = 512
_ASKED_WEIGHT = 0.2  # of a token that the user writes, against one of an answer
_SHOWN_EVERY = 50

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """`rows` conversations of `length` tokens in a step; each is seen once."""

    steps: int
    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """Short conversations first: to copy what was asked is learnt sooner where little else stands
    between, and in less time."""

    seed: int = 0
    stages: tuple[Stage, ...] = (Stage(1000, 16, 128), Stage(320, 6, 384))
    matrix_rate: float = 0.02
    other_rate: float = 0.01
    warmup: int = 20

    @property
    def steps(self) -> int:
        return sum(each.steps for each in self.stages)


def target_config(fast: Tokenizer) -> LlamaConfig:
    """About 1.3 million parameters. Grouped queries, tied ends."""
    return LlamaConfig(
        vocab_size=fast.get_vocab_size(),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=fast.token_to_id(END_OF_TEXT),
        eos_token_id=fast.token_to_id(END),
        pad_token_id=fast.token_to_id(END_OF_TEXT),
    )


def rows_of(fast: Tokenizer, seed: int, stages: Sequence[Stage]) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each step: (ids [rows, length + 1], weights [rows, length] of predicting the next).

    A row is one conversation that begins at position 0 and is cut at the end.
    """
    source = turns(TARGET, seed)
    for stage in stages:
        for _ in range(stage.steps):
            rows = [_row(fast, source, stage.length) for _ in range(stage.rows)]
            ids, weights = (torch.stack(each) for each in zip(*rows, strict=True))
            yield ids, weights


def _row(fast: Tokenizer, source: Iterator[tuple[str, Turn]], length: int) -> tuple[Tensor, Tensor]:
    start, end = fast.token_to_id(START), fast.token_to_id(END)
    answerer = fast.encode("assistant").ids
    ids: list[int] = []
    while len(ids) <= length:
        ids += fast.encode(rendered(messages_of([next(source)[1]]))).ids
    ids = ids[: length + 1]
    weights, is_answer = [], False
    for at, token in enumerate(ids):
        weights.append(1.0 if is_answer else _ASKED_WEIGHT)
        if token == start:
            is_answer = ids[at + 1 : at + 1 + len(answerer)] == answerer
        elif token == end:
            is_answer = False
    return torch.tensor(ids), torch.tensor(weights[1:])


def train_target(fast: Tokenizer, recipe: Recipe, say: Say) -> LlamaForCausalLM:
    """On one thread, multiplied in bf16; the weights are float32."""
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(target_config(fast))
    model.train()
    optimizers = _optimizers(model, recipe)
    rates = [each.param_groups[0]["lr"] for each in optimizers]
    shown, num_tokens, started_s = 0.0, 0, time.monotonic()
    for step, (ids, weights) in enumerate(rows_of(fast, recipe.seed, recipe.stages), 1):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * _schedule(step - 1, recipe)
            optimizer.zero_grad(set_to_none=True)
        loss = _loss(model, ids, weights)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        num_tokens += weights.numel()
        now = float(loss.detach())
        shown = now if step == 1 else 0.9 * shown + 0.1 * now
        if step % _SHOWN_EVERY == 0 or step == recipe.steps:
            speed = num_tokens / (time.monotonic() - started_s)
            say(f"step {step} of {recipe.steps}  loss {shown:.4f}  {speed:.0f} tok/s")
    return model.eval()


def save_target(model: LlamaForCausalLM, directory: Path) -> None:
    model.save_pretrained(directory)


def _loss(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1]).logits
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights.flatten()).sum() / weights.sum()


def _schedule(step: int, recipe: Recipe) -> float:
    """Up over the first steps, then half a cosine down."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    share = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * share))


def _optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    matrices, others = [], []
    for name, each in model.named_parameters():
        (matrices if each.dim() == 2 and ".layers." in name else others).append(each)
    muon = torch.optim.Muon(
        matrices, lr=recipe.matrix_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]
