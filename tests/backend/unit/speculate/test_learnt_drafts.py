"""A head that has learnt some texts by heart drafts them: training and serving mean the same."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from backend.speculate.heads.dspark import DSparkConfig, DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Config, Eagle3Head
from backend.speculate.heads.saving import save_head
from backend.speculate.registry import make_proposer
from tests.support.draft_heads import MASK_TOKEN
from tests.support.draft_rounds import States
from tests.support.engine_world import EngineWorld, Tiny, random_prompt, tiny_engine_config
from tests.support.tiny_checkpoints import VOCAB

NUM_TEXTS, NUM_TOKENS, NUM_DRAFTS = 8, 40, 4
LAYERS = (1, 3, 5)
BIAS = {token: 30.0 for token in range(10, 34)}  # few tokens are written, so that little suffices
FLOORS = {"eagle3": 4.0, "dspark": 3.2}  # tokens a round; 5 is the most

Text = tuple[list[int], Tensor, Tensor]  # prompt, [1, L] tokens, [1, L, F H] features


def written(target: Tiny, prompts: list[list[int]], proposer: object = None) -> EngineWorld:
    world = EngineWorld(
        target.model,
        proposer=proposer,  # type: ignore[arg-type] # None: plain
        num_drafts_max=NUM_DRAFTS if proposer else 0,
        rows_max=96,
    )
    for prompt in prompts:
        world.add(prompt, max_tokens=NUM_TOKENS, logit_bias=BIAS)
    world.run()
    return world


def head_of(target: Tiny, method: str) -> Eagle3Head | DSparkHead:
    fields = {
        "shape": replace(target.model.config, family="draft", num_layers=1),
        "windows": (0,),
        "target_hidden_size": target.model.config.hidden_size,
        "layer_ids": LAYERS,
        "tap_side": "in",
        "num_features": len(LAYERS),
        "draft_vocab_size": VOCAB,
        "has_own_embedding": False,
        "has_own_lm_head": False,
    }
    torch.manual_seed(0)
    if method == "eagle3":
        head: Eagle3Head | DSparkHead = Eagle3Head(Eagle3Config(**fields))
    else:
        head = DSparkHead(
            DSparkConfig(
                **fields,
                block_size=NUM_DRAFTS,
                mask_token_id=MASK_TOKEN,
                is_causal=(False,),
                samples_from_anchor=True,
                markov_rank=16,
            )
        )
    with torch.inference_mode():
        ids = torch.arange(VOCAB)
        embedding, rows = target.model.embed(ids), target.model.head_rows(ids)
    head.attach(embedding.clone(), rows.clone())
    return head


def loss_of(head: Eagle3Head | DSparkHead, text: Text, rng: random.Random) -> Tensor:
    prompt, tokens, features = text
    length, losses = tokens.shape[1], []
    if isinstance(head, Eagle3Head):
        following = torch.cat((tokens[:, 1:], tokens[:, :1]), 1)
        for step, states in enumerate(head.unroll(features, following, NUM_DRAFTS)):
            logits = head.logits(states)[0, : length - step - 2]
            losses.append(functional.cross_entropy(logits, tokens[0, step + 2 :]))
        return torch.stack(losses).sum()
    anchors = torch.tensor([rng.sample(range(len(prompt), length - NUM_DRAFTS), 8)])
    ids = head.block_ids(tokens[0][anchors], NUM_DRAFTS)
    states = head.blocks(head.context(features), anchors, ids)
    places = anchors.unsqueeze(-1) + torch.arange(NUM_DRAFTS)
    logits = head.block_logits(states, tokens[0][places])
    return functional.cross_entropy(logits.flatten(0, 2), tokens[0][places + 1].flatten())


@pytest.mark.slow
@pytest.mark.parametrize("method", FLOORS)
def test_what_was_learnt_by_heart_is_drafted(
    target: Tiny, states: States, tmp_path: Path, method: str
) -> None:
    rng = random.Random(0)
    prompts = [random_prompt(rng, rng.randrange(3, 10)) for _ in range(NUM_TEXTS)]
    plain = [answer.token_ids for answer in written(target, prompts).answers.values()]
    texts: list[Text] = []
    for prompt, answer in zip(prompts, plain, strict=True):
        tokens = [*prompt, *answer]
        features = torch.cat([states.of(tokens)[layer] for layer in LAYERS], -1)
        texts.append((prompt, torch.tensor([tokens]), features[None].clone()))
    head = head_of(target, method)
    learning = [each for each in head.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=2e-3)
    with torch.enable_grad():
        for _ in range(250):
            loss = torch.stack([loss_of(head, text, rng) for text in rng.sample(texts, 4)]).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    save_head(head, tmp_path, num_drafts=NUM_DRAFTS, is_int8=True)

    config = tiny_engine_config(
        proposer=method, draft_path=str(tmp_path), num_drafts_max=NUM_DRAFTS
    )
    world = written(target, prompts, make_proposer(target.model, config))

    answers = world.answers.values()
    assert [answer.token_ids for answer in answers] == plain
    num_rounds = sum(len(answer.events) for answer in answers)
    assert NUM_TEXTS * NUM_TOKENS / num_rounds > FLOORS[method]
