"""Heads that are trained on what tiny targets write, and what an engine accepts of their drafts."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest
from backend.sampling.params import SamplingParams
from backend.speculate.heads.base import DraftHead
from backend.train.corpus import Text
from backend.train.counting import PlaceCounts
from backend.train.generating import Wanted, write_all
from backend.train.method import LossSettings
from backend.train.new_head import HeadPlan, Method, new_head, start_from_target
from backend.train.run import LOSSES, WEIGHTS
from backend.train.states import StateStore, token_counts
from backend.train.teacher import Teacher
from backend.train.trainer import Progress, Trainer, TrainPlan
from tests.support.engine_world import Tiny, random_prompt, tiny_engine_config
from tests.support.tiny_checkpoints import CONTEXT, VOCAB

NUM_DRAFTS = 4
# Few tokens are written, so that a short training suffices; not all of them can be drafted.
BIAS = {token: 30.0 for token in range(10, 34)}
DRAFT_VOCAB = 20
MASK_TOKEN = 3


def written(target: Tiny, num_texts: int, *, seed: int = 0) -> list[Text]:
    """Greedy texts of different lengths, by the batched engine."""
    rng = random.Random(seed)
    wanted = [
        Wanted(
            key,
            tuple(random_prompt(rng, rng.randrange(3, 40))),
            SamplingParams(max_tokens=rng.randrange(14, 30), temperature=0.0, logit_bias=BIAS),
        )
        for key in range(num_texts)
    ]
    engine = Engine(target.model, tiny_engine_config(), ())
    answers = {each.wanted.key: each.token_ids for each in write_all(engine, wanted, at_once=4)}
    return [Text("chat", each.prompt, answers[each.key]) for each in wanted]


def plan_of(target: Tiny, method: Method, **changes: Any) -> HeadPlan:
    last = target.model.config.num_layers - 1
    given: dict[str, Any] = {
        "method": method,
        "num_layers": 1,
        "layer_ids": (0, last - 1, last),
        "draft_vocab_size": DRAFT_VOCAB,
        "num_drafts": NUM_DRAFTS,
        "mask_token_id": MASK_TOKEN,
        "markov_rank": 8 if method == "dspark" else 0,
    }
    return HeadPlan(**{**given, **changes})


def head_of(
    target: Tiny, method: Method, texts: Sequence[Text], *, seed: int = 0, **changes: Any
) -> DraftHead:
    """A new one, ready to be trained."""
    config = target.model.config
    plan = plan_of(target, method, **changes)
    head = new_head(plan, config, token_counts(texts, VOCAB), seed)
    start_from_target(head, target.directory, config)
    lend_ends(target, head)
    return head


def lend_ends(target: Tiny, head: DraftHead) -> None:
    with torch.inference_mode():
        embedding = target.model.embed(torch.arange(VOCAB))
        rows = target.model.head_rows(head.target_ids())
    head.attach(embedding.clone(), rows.clone())


def store_of(
    target: Tiny, head: DraftHead, directory: Path, *, bytes_max: int = 1 << 26
) -> StateStore:
    teacher = Teacher(
        target.model,
        head.head_config.taps(target.model.config.num_layers),
        context_len=CONTEXT,
        rows_max=24,  # most texts are longer
        device=torch.device("cpu"),
    )
    return StateStore(directory, teacher, "tiny", bytes_max)


def train_plan(method: Method, **changes: Any) -> TrainPlan:
    settings = {
        key: changes.pop(key) for key in ("weights", "anchor_share", "dtype") if key in changes
    }
    given = {"weights": WEIGHTS[method], "anchor_share": 0.5, **settings}
    plan = {"epochs": 20, "rows_per_step": 160, "learning_rate": 3e-3, **changes}
    return TrainPlan(LossSettings(NUM_DRAFTS, decay=0.8, **given), **plan)


@dataclass
class Training:
    """One trainer, its head, and what it said on the way."""

    trainer: Trainer
    head: DraftHead
    progress: list[Progress]
    checkpoints: list[PlaceCounts]

    def run(self, watch: Callable[[Progress], None] = lambda found: None) -> PlaceCounts:
        def on_progress(found: Progress) -> None:
            self.progress.append(found)
            watch(found)

        return self.trainer.run(on_progress, self.checkpoints.append)


def training_of(
    target: Tiny,
    method: Method,
    head: DraftHead,
    directory: Path,
    *,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    **changes: Any,
) -> Training:
    """`directory` holds the training state and, below it, the target's states."""
    trainer = Trainer(
        head,
        LOSSES[method],
        train_plan(method, **changes),
        texts=texts,
        held_out=held_out,
        store=store_of(target, head, directory / "states"),
        directory=directory,
    )
    return Training(trainer, head, [], [])


class Server:
    """An engine that serves a head's directory, as the command line sets it up."""

    def __init__(self, target: Tiny, method: Method, directory: Path, **changes: Any) -> None:
        config = tiny_engine_config(
            proposer=method,
            draft_path=str(directory),
            num_drafts_max=NUM_DRAFTS,
            rows_max=96,
            kv_cache_bytes=1 << 22,
            **changes,
        )
        self.engine = Engine(target.model, config, ())

    def rounds(self, text: Text) -> dict[int, int]:
        """One round behind each written token: its position → drafts accepted.

        Places behind the text's end are drafted and verified too; `counts` leaves them out.
        """
        tokens, shown = text.token_ids, defaultdict[str, list[tuple[int, ...]]](list)
        anchors = range(len(text.prompt), len(tokens) - 1)
        for at in anchors:
            num_left = min(len(tokens) - 1 - at, NUM_DRAFTS)
            self._add(str(at), tokens[:at], NUM_DRAFTS + 2, workload=str(num_left))
        while self.engine.has_work():
            for event in self.engine.step():
                if event.token_ids:
                    shown[event.request_id].append(event.token_ids)
                if len(shown[event.request_id]) == 2:
                    self.engine.cancel(event.request_id)
        for at in anchors:
            first, rest = shown[str(at)]
            told = (*first, *rest)[: len(tokens) - at]
            assert told == tokens[at : at + len(told)], "the text is the plain one"
        return {at: len(shown[str(at)][1]) - 1 for at in anchors}

    def counts(self) -> PlaceCounts:
        """Of all `rounds` so far, by the engine's own figures, without places behind an end."""
        found = PlaceCounts()
        for figures in self.engine.load().speculation.figures:
            places = slice(int(figures.workload))
            at_risk, hits = figures.num_at_risk[places], figures.num_accepted[places]
            found.add(PlaceCounts(list(at_risk), list(hits)))
        return found

    def whole(self, texts: Sequence[Text]) -> list[list[int]]:
        """All answers at once, from their prompts on: the drafts accepted in each round."""
        for number, text in enumerate(texts):
            self._add(str(number), text.prompt, len(text.answer) + NUM_DRAFTS + 1, workload="whole")
        accepted: list[list[int]] = [[] for _ in texts]
        answers: list[list[int]] = [[] for _ in texts]
        while self.engine.has_work():
            for event in self.engine.step():
                number = int(event.request_id)
                if answers[number]:
                    accepted[number].append(len(event.token_ids) - 1)
                answers[number] += event.token_ids
        for text, answer in zip(texts, answers, strict=True):
            assert tuple(answer[: len(text.answer)]) == text.answer
        return accepted

    def _add(self, name: str, prompt: tuple[int, ...], max_tokens: int, *, workload: str) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, logit_bias=BIAS)
        self.engine.add(EngineRequest(name, prompt, params, workload=workload))


def chained(text: Text, rounds: Mapping[int, int]) -> list[int]:
    """The rounds that an answer from its start takes, of all that could be, while each of their
    drafts lies within the text."""
    at, accepted = len(text.prompt), []
    while at + NUM_DRAFTS < len(text):
        accepted.append(rounds[at])
        at += rounds[at] + 1
    return accepted
