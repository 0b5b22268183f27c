"""From prompts to a head: answers, states, training, and the head as others read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.models.interface import FeatureTap
from backend.serving.acceptance_alarm import PLACES_NOTE
from backend.serving.draft_check import target_identity
from backend.serving.loading import Prepared, prepare
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.identity import HeadIdentity, TargetIdentity, write_identity
from backend.speculate.heads.loading import load_head
from backend.speculate.heads.saving import save_head
from backend.train import dflash, dspark, eagle3
from backend.train.answers import AnswerFile, regenerate
from backend.train.answers import Progress as AnswerProgress
from backend.train.corpus import Text, split
from backend.train.counting import PlaceCounts
from backend.train.losses import LossWeights
from backend.train.method import LossFunction, LossSettings
from backend.train.new_head import (
    HeadPlan,
    Method,
    check_plan,
    default_layer_ids,
    new_head,
    start_from_head,
    start_from_target,
)
from backend.train.prompts.files import read_prompts
from backend.train.states import StateStore, token_counts
from backend.train.teacher import Teacher
from backend.train.trainer import Progress, Trainer, TrainPlan

LOSSES: Mapping[Method, LossFunction] = {
    "eagle3": eagle3.loss,
    "dflash": dflash.loss,
    "dspark": dspark.loss,
}
# As published: EAGLE-3 learns the target's distribution; DFlash the text; DSpark mostly the
# distance of both distributions.
WEIGHTS: Mapping[Method, LossWeights] = {
    "eagle3": LossWeights(soft=1.0),
    "dflash": LossWeights(text=1.0),
    "dspark": LossWeights(text=0.1, distance=0.9),
}
_BLOCK_DECAY = 0.7788  # exp(-1 / 4): a place's weight, against the one before it
_DECAY: Mapping[Method, float] = {"eagle3": 0.8, "dflash": _BLOCK_DECAY, "dspark": _BLOCK_DECAY}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """What the command line says. `layer_ids` empty: the usual three."""

    method: Method
    target: Path
    prompts: Path
    out: Path
    work: Path
    num_layers: int
    num_drafts: int
    draft_vocab_size: int
    markov_rank: int
    layer_ids: tuple[int, ...]
    answer_tokens_max: int
    epochs: int
    rows_per_step: int
    learning_rate: float
    anchor_share: float
    held_out: int
    states_bytes_max: int
    checkpoint_s: float
    seed: int
    is_int8: bool
    distil: float = 0.0  # weight of the target's whole distribution, beside the published loss
    start_from: Path | None = None  # a head whose weights are taken where they fit


@dataclass(frozen=True, slots=True)
class Show:
    """Where progress goes."""

    on_answers: AnswerProgress
    on_step: Callable[[Progress], None]
    on_checkpoint: Callable[[PlaceCounts], None]
    say: Callable[[str], None]


def train(job: TrainJob, config: EngineConfig, show: Show) -> PlaceCounts:
    """The held-out counts of the head that now lies in `job.out`. Raises SetupError."""
    job.out.mkdir(parents=True, exist_ok=True)
    job.work.mkdir(parents=True, exist_ok=True)
    prepared = prepare(job.target, config)
    identity = target_identity(job.target, prepared.tokenizer)
    plan = _plan(job, prepared)
    check_plan(plan, prepared.loaded.config)  # before the answers, which may take hours
    texts = _texts(job, prepared, identity, show)
    train_texts, held_out = split(texts, job.held_out, job.seed)
    show.say(
        f"{len(train_texts)} texts with {sum(len(each.answer) for each in train_texts)} tokens of "
        f"the target to train on, {len(held_out)} held out"
    )
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    head = _head(job, plan, prepared, train_texts, dtype)
    trainer = Trainer(
        head,
        LOSSES[job.method],
        _train_plan(job, plan, dtype),
        texts=train_texts,
        held_out=held_out,
        store=_store(job, plan, prepared, identity),
        directory=job.out,
    )
    if trainer.resume():
        show.say(f"going on from the training state in {job.out}")

    def publish(counts: PlaceCounts) -> None:
        _publish(job, head, identity, counts)
        show.on_checkpoint(counts)

    return trainer.run(show.on_step, publish)


def _texts(job: TrainJob, prepared: Prepared, identity: TargetIdentity, show: Show) -> list[Text]:
    lines = list(read_prompts(job.prompts))
    if not lines:
        raise SetupError(f"{job.prompts} holds no prompt; write one JSON object a line")
    return regenerate(
        prepared.make_engine(),
        prepared.text,
        lines,
        AnswerFile(job.work / "answers.jsonl", identity.weights, job.answer_tokens_max),
        prompts_path=job.prompts,
        at_once=prepared.config.sequences_max,
        on_progress=show.on_answers,
    )


def _plan(job: TrainJob, prepared: Prepared) -> HeadPlan:
    target = prepared.loaded.config
    return HeadPlan(
        method=job.method,
        num_layers=job.num_layers,
        layer_ids=job.layer_ids or default_layer_ids(target.num_layers),
        draft_vocab_size=min(job.draft_vocab_size, target.vocab_size),
        num_drafts=job.num_drafts,
        mask_token_id=_mask_token(prepared),
        markov_rank=job.markov_rank,
    )


def _mask_token(prepared: Prepared) -> int:
    """A token that no text holds: a control token that ends nothing, the last of them."""
    tokenizer = prepared.tokenizer
    free = sorted(tokenizer.control_ids - set(tokenizer.end_token_ids))
    return free[-1] if free else 0


def _head(
    job: TrainJob,
    plan: HeadPlan,
    prepared: Prepared,
    texts: Sequence[Text],
    dtype: torch.dtype,
) -> DraftHead:
    model, target = prepared.loaded.model, prepared.loaded.config
    head = new_head(plan, target, token_counts(texts, target.vocab_size), job.seed)
    start_from_target(head, job.target, target)
    if job.start_from is not None:
        start_from_head(head, load_head(job.start_from, target))
    device = torch.device(prepared.config.device)
    head.to(device)
    with torch.inference_mode():
        embedding = model.embed(torch.arange(target.vocab_size, device=device))
        rows = model.head_rows(head.target_ids())
    # Copies: tensors that were made for inference take no part in training.
    head.attach(embedding.to(dtype).clone(), rows.to(dtype).clone())
    return head


def _train_plan(job: TrainJob, plan: HeadPlan, dtype: torch.dtype) -> TrainPlan:
    settings = LossSettings(
        num_drafts=plan.num_drafts,
        weights=replace(WEIGHTS[job.method], soft=WEIGHTS[job.method].soft + job.distil),
        decay=_DECAY[job.method],
        anchor_share=job.anchor_share,
        dtype=dtype,
    )
    return TrainPlan(
        settings,
        epochs=job.epochs,
        rows_per_step=job.rows_per_step,
        learning_rate=job.learning_rate,
        seed=job.seed,
        checkpoint_s=job.checkpoint_s,
    )


def _store(
    job: TrainJob, plan: HeadPlan, prepared: Prepared, identity: TargetIdentity
) -> StateStore:
    config = prepared.config
    # The device's own kernels round differently; states of one are not those of another.
    key = f"{identity.weights} {config.dtype} {config.quantization} {config.device} "
    teacher = Teacher(
        prepared.loaded.model,
        tuple(_taps(plan)),
        context_len=prepared.context_len,
        rows_max=config.rows_max,
        device=torch.device(config.device),
    )
    return StateStore(job.work / "states", teacher, key + str(plan.layer_ids), job.states_bytes_max)


def _taps(plan: HeadPlan) -> list[FeatureTap]:
    return [FeatureTap(layer, "in") for layer in plan.layer_ids]


def _publish(job: TrainJob, head: DraftHead, target: TargetIdentity, counts: PlaceCounts) -> None:
    """The head in its published layout, and beside it which target it is for."""
    save_head(
        head,
        job.out,
        num_drafts=job.num_drafts,
        target_name=target.name,
        is_int8=job.is_int8,
    )
    write_identity(
        job.out,
        HeadIdentity(
            method=job.method,
            target_name=target.name,
            weights=(target.weights,),
            text=(target.text,),
            thinking="off" if target.has_thinking else "none",
            acceptance={"": _rate(counts)},
            notes={
                PLACES_NOTE: [round(each, 4) for each in counts.rates],
                "mean_acceptance_length": round(counts.mean_acceptance_length, 3),
                "prompts": job.prompts.name,
                "epochs": job.epochs,
            },
        ),
    )


def _rate(counts: PlaceCounts) -> float:
    """Accepted of drafted, as rounds count it: all places are drafted each time."""
    num_drafts = len(counts.at_risk)
    return (counts.mean_acceptance_length - 1.0) / num_drafts if num_drafts else 0.0
