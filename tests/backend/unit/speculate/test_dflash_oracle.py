"""DFlash beside transformers' own generator of candidates, round by round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import GenerationConfig
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator
from transformers.models.muse_glimmer_assistant.configuration_muse_glimmer_assistant import (
    MuseGlimmerAssistantConfig,
)
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import (
    MuseGlimmerAssistantModel,
)

from tests.support.draft_heads import HIDDEN, INNER, MASK_TOKEN, SavedHead, save_block_head
from tests.support.draft_methods import NUM_DRAFTS, proposer_of
from tests.support.draft_references import BlockRules
from tests.support.draft_rounds import Rounds, States
from tests.support.engine_world import Tiny
from tests.support.tiny_checkpoints import CONTEXT

LAYER_IDS = (0, 2, 4)


def generator_of(target: Tiny, saved: SavedHead) -> DFlashTokenCandidateGenerator:
    dims = saved.dims
    config = MuseGlimmerAssistantConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=dims.num_layers,
        num_attention_heads=dims.num_heads,
        num_key_value_heads=dims.num_kv_heads,
        head_dim=dims.head_dim,
        rms_norm_eps=dims.eps,
        rope_parameters={"rope_type": "default", "rope_theta": dims.theta},
        layer_types=["full_attention"] * dims.num_layers,
        block_size=NUM_DRAFTS + 1,
        mask_token_id=MASK_TOKEN,
        target_layer_ids=list(LAYER_IDS),
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="eager",
    )
    assistant = MuseGlimmerAssistantModel(config).eval()
    names = {
        "fc.weight": "encoder.fc.weight",
        "hidden_norm.weight": "encoder.output_norm_enc.weight",
    }
    state = {names.get(name, name): tensor for name, tensor in saved.tensors.items()}
    assistant.load_state_dict(state)
    return DFlashTokenCandidateGenerator(
        assistant,
        target.reference.get_input_embeddings(),
        target.reference.get_output_embeddings(),
        GenerationConfig(max_length=CONTEXT, do_sample=False),
    )


def test_drafts_are_those_of_transformers(target: Tiny, states: States, tmp_path: Path) -> None:
    saved = save_block_head(
        tmp_path,
        "dflash",
        "native",
        rules=BlockRules(MASK_TOKEN),
        layer_ids=LAYER_IDS,
        has_draft_vocab=False,
        has_lm_head=False,
    )
    generator = generator_of(target, saved)
    rounds = Rounds(proposer_of(target, saved), states, NUM_DRAFTS)
    rounds.admit(1, rounds.prompt(13))
    running = rounds.running[1]
    num_seen = 0

    for accepted in (None, 2, 0, NUM_DRAFTS, 1):
        fed: list[int] = running.tokens
        if accepted is not None:
            # The target has computed all drafts; the generator cuts what was not accepted.
            fed = [*running.tokens[:num_seen], running.tokens[num_seen], *running.drafts]
            rounds.round({1: accepted})
        else:
            fed = running.tokens[:-1]
        computed = tuple(each[num_seen:][None] for each in states.of(fed))
        length = len(running.tokens)
        with torch.inference_mode():
            candidates, _ = generator.get_candidates(
                torch.tensor([running.tokens]),
                model_kwargs={
                    "position_ids": torch.arange(length)[None],
                    "attention_mask": torch.ones(1, length, dtype=torch.int64),
                },
                model_outputs=SimpleNamespace(hidden_states=computed),
                is_first_iteration=False,
                n_last_matches=accepted or 0,
            )
        assert candidates[0, length:].tolist() == running.drafts
        num_seen = length - 1
