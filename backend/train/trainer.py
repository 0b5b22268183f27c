"""Steps of training, with a checkpoint every few minutes from which the next run goes on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from backend.errors import SetupError
from backend.models.loading import return_freed_memory
from backend.speculate.heads.base import DraftHead
from backend.train.corpus import Text, batches, collate
from backend.train.counting import PlaceCounts
from backend.train.method import LossFunction, LossSettings, StepLoss, Vocabulary
from backend.train.states import StateStore

STATE_FILE = "training.safetensors"
# Batches of all sizes leave the heap full of holes: without it, it grew by gigabytes an hour.
_TRIMMED_EVERY = 10  # steps
_SMOOTHING = 0.95  # of the figures that are shown


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """`rows_per_step`: positions of a batch, the padding among them. `clip`: of the gradient's
    norm. `warmup_share` of all steps rises to the rate, then it falls as a cosine."""

    settings: LossSettings
    epochs: int
    rows_per_step: int
    learning_rate: float
    weight_decay: float = 0.01
    warmup_share: float = 0.04
    clip: float = 1.0
    seed: int = 0
    checkpoint_s: float = 300.0


@dataclass(slots=True)
class Progress:
    """What is shown while it runs. `held_out` is of the last checkpoint."""

    step: int
    num_steps: int
    loss: float
    mean_acceptance_length: float  # on what was trained
    tokens_per_s: float
    left_s: float
    held_out: PlaceCounts | None = None


@dataclass(slots=True)
class _Meters:
    loss: float = 0.0
    length: float = 0.0
    started_s: float = field(default_factory=time.monotonic)
    rows: int = 0
    first_step: int = 0


class Trainer:
    """One head, its texts and its optimizers."""

    def __init__(
        self,
        head: DraftHead,
        loss: LossFunction,
        plan: TrainPlan,
        *,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        store: StateStore,
        directory: Path,
    ) -> None:
        """`directory`: of the training state. Raises SetupError without texts to train on."""
        if not texts:
            raise SetupError("there is no text to train on; give more prompts (--data)")
        self._head, self._loss, self._plan = head, loss, plan
        self._texts, self._held_out, self._store = list(texts), list(held_out), store
        self._vocabulary = Vocabulary(head)
        self._file = directory / STATE_FILE
        self._optimizers = _optimizers(head, plan)
        self._rng = torch.Generator().manual_seed(plan.seed)
        self._step = 0
        self._order = [
            each
            for epoch in range(plan.epochs)
            for each in batches(list(map(len, self._texts)), plan.rows_per_step, plan.seed + epoch)
        ]

    @property
    def num_steps(self) -> int:
        return len(self._order)

    def run(
        self,
        on_progress: Callable[[Progress], None],
        on_checkpoint: Callable[[PlaceCounts], None],
    ) -> PlaceCounts:
        """To the end; the held-out counts of the finished head. `on_checkpoint` publishes it."""
        meters = _Meters(first_step=self._step)
        saved_s = time.monotonic()
        held_out: PlaceCounts | None = None
        while self._step < self.num_steps:
            found = self._train(self._order[self._step], meters)
            self._step += 1
            if self._step % _TRIMMED_EVERY == 0:
                return_freed_memory()
            is_last = self._step == self.num_steps
            if is_last or time.monotonic() - saved_s >= self._plan.checkpoint_s:
                held_out = self.measure()
                self.save()
                on_checkpoint(held_out)
                saved_s = time.monotonic()
            on_progress(self._progress(meters, found, held_out))
        if held_out is None:  # there was nothing left to train
            held_out = self.measure()
            on_checkpoint(held_out)
        return held_out

    def measure(self) -> PlaceCounts:
        """What greedy decoding would accept on the texts that were held out."""
        counts = PlaceCounts()
        settings, rng = _whole(self._plan.settings), torch.Generator().manual_seed(0)
        with torch.no_grad():
            order = batches(list(map(len, self._held_out)), self._plan.rows_per_step, 0)
            for chosen in order:
                counts.add(self._computed(self._held_out, chosen, settings, rng).counts)
        return counts

    def save(self) -> None:
        """Replaces the training state in one move."""
        tensors = {f"head.{name}": each for name, each in self._head.own_state().items()}
        for index, optimizer in enumerate(self._optimizers):
            for number, values in optimizer.state_dict()["state"].items():
                for name, each in values.items():
                    tensors[f"optimizer.{index}.{number}.{name}"] = torch.as_tensor(each)
        tensors["rng"] = self._rng.get_state()
        unfinished = self._file.with_suffix(".part")
        metadata = {"step": str(self._step), "plan": self._identity()}
        save_file({key: each.contiguous() for key, each in tensors.items()}, unfinished, metadata)
        os.replace(unfinished, self._file)

    def resume(self) -> bool:
        """Whether there was a state to go on from. Raises SetupError for another plan's."""
        if not self._file.exists():
            return False
        tensors: dict[str, Tensor] = {}
        with safe_open(self._file, framework="pt") as file:
            metadata = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118 - the file itself is no mapping
                tensors[key] = file.get_tensor(key)
        if metadata.get("plan") != self._identity():
            raise SetupError(
                f"{self._file} is of another training (data or settings differ); remove it to "
                "begin anew, or go on with the same command line"
            )
        own = {key.removeprefix("head."): each for key, each in _under("head.", tensors)}
        self._head.load_state_dict(own, strict=False)
        for index, optimizer in enumerate(self._optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for key, each in _under(f"optimizer.{index}.", tensors):
                number, name = key.split(".")[2:]
                state.setdefault(int(number), {})[name] = each
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._rng.set_state(tensors["rng"])
        self._step = int(metadata["step"])
        return True

    def _identity(self) -> str:
        config = self._head.head_config
        return f"{self._plan} {len(self._texts)} {sum(map(len, self._texts))} {config}"

    def _train(self, chosen: Sequence[int], meters: _Meters) -> StepLoss:
        rate = self._rate()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        found = self._computed(self._texts, chosen, self._plan.settings, self._rng)
        found.loss.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        nn.utils.clip_grad_norm_(self._trained(), self._plan.clip)
        for optimizer in self._optimizers:
            optimizer.step()
        meters.rows += sum(len(self._texts[each]) for each in chosen)
        return found

    def _computed(
        self,
        texts: Sequence[Text],
        chosen: Sequence[int],
        settings: LossSettings,
        rng: torch.Generator,
    ) -> StepLoss:
        picked = [texts[each] for each in chosen]
        batch = collate(picked, self._store.of_all(picked))
        labels = self._vocabulary.labels(batch.token_ids)
        kind = batch.token_ids.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=settings.dtype is torch.bfloat16):
            return self._loss(self._head, batch, labels, settings, rng)

    def _rate(self) -> float:
        """Of this step: linear up, then half a cosine down to a hundredth."""
        plan, total = self._plan, self.num_steps
        warmup = max(1, round(plan.warmup_share * total))
        if self._step < warmup:
            return plan.learning_rate * (self._step + 1) / warmup
        share = (self._step - warmup) / max(1, total - warmup)
        return plan.learning_rate * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * share)))

    def _trained(self) -> Iterator[nn.Parameter]:
        return (each for each in self._head.parameters() if each.requires_grad)

    def _progress(self, meters: _Meters, found: StepLoss, held_out: PlaceCounts | None) -> Progress:
        loss, length = float(found.loss.detach()), found.counts.mean_acceptance_length
        is_first = meters.loss == 0.0
        keep = 0.0 if is_first else _SMOOTHING
        meters.loss = keep * meters.loss + (1 - keep) * loss
        meters.length = keep * meters.length + (1 - keep) * length
        seconds = time.monotonic() - meters.started_s
        per_step = seconds / (self._step - meters.first_step)
        return Progress(
            step=self._step,
            num_steps=self.num_steps,
            loss=meters.loss,
            mean_acceptance_length=meters.length,
            tokens_per_s=meters.rows / seconds,
            left_s=per_step * (self.num_steps - self._step),
            held_out=held_out,
        )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((key, each) for key, each in tensors.items() if key.startswith(prefix))


def _whole(settings: LossSettings) -> LossSettings:
    """With a block at every anchor: nothing that is counted is left to chance."""
    return LossSettings(settings.num_drafts, settings.weights, settings.decay, 1.0, settings.dtype)


def _optimizers(head: DraftHead, plan: TrainPlan) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for everything else.

    Muon's steps are scaled to AdamW's size (Liu et al. 2025, arXiv 2502.16982), so that one rate
    serves both.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, each in head.named_parameters():
        if each.requires_grad:
            is_matrix = each.dim() == 2 and (name.startswith("layers.") or name == "fc.weight")
            (matrices if is_matrix else others).append(each)
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            others, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay
        )
    ]
    if matrices:
        muon = torch.optim.Muon(
            matrices,
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        made.append(muon)
    return made
