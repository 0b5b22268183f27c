"""The sampler: what every slot asked for, on the device, and tokens for the rows of a step.

Nothing here reads a tensor's value on the host: which work a step needs is known from the requests
themselves (`BatchTraits`), all else stays in tensors, so a step can be captured as a graph.

Logprobs are natural logarithms of the model's own distribution, before bias, penalties, temperature
and filters. Shapes: R rows, S sequences, V vocabulary, K best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from backend.errors import BadRequest, SetupError
from backend.sampling.noise import as_int64, uniforms
from backend.sampling.params import SamplingParams
from backend.sampling.penalties import TokenTables, repeat, subtract
from kernels.dispatch import Ops, select
from kernels.reference.sample import VOCAB_SIZE_MAX, filtered_weights

LOGIT_BIAS_ABS_MAX = 100.0
# How many best logprobs a step computes: few values, so that a step has few shapes.
_TOP_LOGPROBS_SIZES = (0, 5, 20)
TOP_K_SMALL = 64
# Elements worked on at once: a CPU keeps them in its cache, a GPU's memory stays bounded.
_CHUNK_ELEMENTS_CPU = 1 << 19
_CHUNK_ELEMENTS = 1 << 25

_NEUTRAL = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class BatchTraits:
    """What the requests of one step need, known on the host. Equal traits are the same program."""

    is_all_greedy: bool = True
    has_seedless: bool = False  # some are drawn without a seed: only their distribution counts
    is_all_seedless: bool = False
    has_bias: bool = False
    has_repetition: bool = False
    has_subtraction: bool = False  # frequency or presence
    has_top_k: bool = False
    top_k_max: int | None = None  # TOP_K_SMALL if none is larger: a partial sort then does
    has_top_p: bool = False
    has_min_p: bool = False
    has_logprobs: bool = False
    num_top_logprobs: int = 0  # at least what any of them asked for

    @property
    def is_plain_greedy(self) -> bool:
        """The largest of the model's own logits, and nothing else, is chosen for all."""
        return self.is_all_greedy and not self.has_bias and not self.is_counting

    @property
    def is_counting(self) -> bool:
        return self.has_repetition or self.has_subtraction


class _Filters(TypedDict):
    """Arguments of the op `sample`."""

    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    top_k_max: int | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token a row, and if any request asked: its logprob, the best ids and their logprobs."""

    tokens: Tensor  # [R] int64
    logprobs: Tensor | None = None  # [R] float32
    top_ids: Tensor | None = None  # [R, K] int64, best first
    top_logprobs: Tensor | None = None  # [R, K] float32


class Sampler:
    """Per-slot settings and tables of one engine. Slot 0 pads: it is greedy and never changes.

    `set_slot`, `clear_slot` and `traits` belong to the host side between steps; `sample` and
    `commit` only launch work on the device.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        device: torch.device | str,
        *,
        ops: Ops | None = None,
    ) -> None:
        """Raises SetupError for a vocabulary too large for exact sums."""
        if vocab_size > VOCAB_SIZE_MAX:
            raise SetupError(
                f"a vocabulary of {vocab_size} tokens is too large to sample from exactly; "
                f"at most {VOCAB_SIZE_MAX}"
            )
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.ops = ops or select(str(self.device))
        self.tables = TokenTables(vocab_size, num_slots, self.device)
        self._numbers = torch.zeros((num_slots, 6), dtype=torch.float64, device=self.device)
        self._integers = torch.zeros((num_slots, 3), dtype=torch.int64, device=self.device)
        self._write(slice(None), _NEUTRAL, 0)

    def set_slot(
        self,
        slot: int,
        params: SamplingParams,
        seed: int,
        prompt_ids: Sequence[int] = (),
        output_ids: Sequence[int] = (),
    ) -> None:
        """`output_ids`: what was generated before, of a request that was preempted.

        Raises BadRequest for a bias or a stop token that is not in the vocabulary, or a bias that
        is not a number from -100 to 100; the slot is then as it was.
        """
        self.check(params)
        self._write(slot, params, seed)
        self.tables.set_slot(slot, params, prompt_ids, output_ids)

    def clear_slot(self, slot: int) -> None:
        self._write(slot, _NEUTRAL, 0)
        self.tables.clear_slot(slot)

    def check(self, params: SamplingParams) -> None:
        """What can only be checked against a vocabulary. Raises BadRequest naming the field."""
        for name, ids in (
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            for token_id in ids:
                if not 0 <= token_id < self.vocab_size:
                    raise BadRequest(
                        f"{name} names token {token_id}; this model has tokens 0 to "
                        f"{self.vocab_size - 1}",
                        param=name,
                    )
        for value in params.logit_bias.values():
            if not math.isfinite(value) or abs(value) > LOGIT_BIAS_ABS_MAX:
                raise BadRequest(
                    f"logit_bias holds {value}; it goes from -100 to 100", param="logit_bias"
                )

    @staticmethod
    def traits(params: Sequence[SamplingParams]) -> BatchTraits:
        """Of the real requests of a step; padding rows need nothing."""
        drawn = [each for each in params if not each.is_greedy]
        top_ks = [each.top_k for each in drawn if each.top_k]
        tops = max((each.logprobs or 0 for each in params), default=0)
        num_seedless = sum(each.is_seedless for each in params)
        return BatchTraits(
            is_all_greedy=not drawn,
            has_seedless=num_seedless > 0,
            is_all_seedless=0 < num_seedless == len(params),
            has_bias=any(each.logit_bias for each in params),
            has_repetition=any(each.repetition_penalty != 1.0 for each in params),
            has_subtraction=any(
                each.frequency_penalty != 0.0 or each.presence_penalty != 0.0 for each in params
            ),
            has_top_k=bool(top_ks),
            top_k_max=TOP_K_SMALL if 0 < max(top_ks, default=0) <= TOP_K_SMALL else None,
            has_top_p=any(each.top_p < 1.0 for each in drawn),
            has_min_p=any(each.min_p > 0.0 for each in drawn),
            has_logprobs=any(each.logprobs is not None for each in params),
            num_top_logprobs=next(size for size in _TOP_LOGPROBS_SIZES if size >= tops),
        )

    def sample(
        self, logits: Tensor, slots: Tensor, positions: Tensor, traits: BatchTraits
    ) -> Sampled:
        """float32 [R, V], int64 [R], int64 [R] → tokens. Changes neither logits nor state.

        `positions`: where in its sequence each token will stand; with the slot's seed they choose
        the noise. A row's result depends on that row alone.
        """
        tokens = self.choose(logits, slots, positions, traits)
        return self.describe(logits, tokens, traits)

    def choose(
        self,
        logits: Tensor,
        slots: Tensor,
        positions: Tensor,
        traits: BatchTraits,
        counts: Tensor | None = None,
    ) -> Tensor:
        """The tokens [R] alone. `counts` [R, V] int32 stand in for the committed ones."""
        if traits.is_plain_greedy:
            return self.ops.sample(logits, positions)  # without a temperature, noise is not read
        tokens = []
        for rows in self._chunks(logits.shape[0]):
            adjusted = self._adjust(
                logits[rows], slots[rows], traits, None if counts is None else counts[rows]
            )
            tokens.append(self._pick(adjusted, slots[rows], positions[rows], traits))
        return torch.cat(tokens)

    def filtered(
        self,
        logits: Tensor,
        slots: Tensor,
        traits: BatchTraits,
        counts: Tensor | None = None,
    ) -> Tensor:
        """[R, V] as `choose` draws from it: adjusted, and -inf for what a filter takes out."""
        made = []
        for rows in self._chunks(logits.shape[0]):
            adjusted = self._adjust(
                logits[rows], slots[rows], traits, None if counts is None else counts[rows]
            )
            if traits.has_top_k or traits.has_top_p or traits.has_min_p:
                weights = filtered_weights(
                    adjusted, self.temperatures(slots[rows]), **self._filters(slots[rows], traits)
                )
                adjusted = adjusted.masked_fill(weights == 0, -torch.inf)
            made.append(adjusted)
        return torch.cat(made)

    def temperatures(self, slots: Tensor) -> Tensor:
        """float64 [S]; 0: greedy."""
        return self._numbers[slots, 0]

    def draft_temperatures(self, slots: Tensor) -> Tensor:
        """float32 [S]: what drafts are drawn at. 0 where they are best not drawn at all: a greedy
        or seeded request accepts what it would have chosen itself."""
        return torch.where(self.is_seedless(slots), self.temperatures(slots), 0.0).float()

    def seeds(self, slots: Tensor) -> Tensor:
        """int64 [S]; of a request without one, what the engine drew."""
        return self._integers[slots, 0]

    def is_seedless(self, slots: Tensor) -> Tensor:
        """bool [S]: drawn, and without a seed of its own: any noise will do."""
        return self._integers[slots, 2] != 0

    def describe(self, logits: Tensor, tokens: Tensor, traits: BatchTraits) -> Sampled:
        """The tokens [R] with the logprobs that the requests asked for."""
        if not traits.has_logprobs:
            return Sampled(tokens)
        num_best = min(traits.num_top_logprobs, self.vocab_size)
        logprobs, ids, values = [], [], []
        for rows in self._chunks(logits.shape[0]):
            every = torch.log_softmax(logits[rows], 1)
            logprobs.append(every.gather(1, tokens[rows].unsqueeze(1)).squeeze(1))
            best = every.topk(num_best, dim=1)
            ids.append(best.indices)
            values.append(best.values)
        return Sampled(tokens, torch.cat(logprobs), torch.cat(ids), torch.cat(values))

    def commit(self, slots: Tensor, tokens: Tensor, num_tokens: Tensor) -> None:
        """Counts the first `num_tokens[s]` of tokens [S, n] for the penalties of later steps."""
        if self.tables.is_counting:
            self.tables.add(slots, tokens, num_tokens)

    def _adjust(
        self, logits: Tensor, slots: Tensor, traits: BatchTraits, counts: Tensor | None
    ) -> Tensor:
        if traits.has_bias:
            logits = logits + self.tables.bias[slots]
        if not traits.is_counting:
            return logits
        if counts is None:
            counts = self.tables.counts[slots]
        repetition, frequency, presence = (
            column.unsqueeze(1) for column in self._numbers[slots, 3:].float().unbind(1)
        )
        if traits.has_repetition:
            is_seen = self.tables.in_prompt[slots] | (counts > 0)
            logits = repeat(logits, is_seen, repetition)
        if traits.has_subtraction:
            logits = subtract(logits, counts, frequency, presence)
        return logits

    def _pick(
        self, adjusted: Tensor, slots: Tensor, positions: Tensor, traits: BatchTraits
    ) -> Tensor:
        if traits.is_all_greedy:
            return self.ops.sample(adjusted, positions)
        return self.ops.sample(
            adjusted,
            uniforms(self.seeds(slots), positions),
            temperature=self.temperatures(slots),
            **self._filters(slots, traits),
        )

    def _filters(self, slots: Tensor, traits: BatchTraits) -> _Filters:
        return {
            "top_k": self._integers[slots, 1] if traits.has_top_k else None,
            "top_p": self._numbers[slots, 1] if traits.has_top_p else None,
            "min_p": self._numbers[slots, 2] if traits.has_min_p else None,
            "top_k_max": traits.top_k_max,
        }

    def _chunks(self, num_rows: int) -> Iterator[slice]:
        is_cpu = self.device.type == "cpu"
        elements = _CHUNK_ELEMENTS_CPU if is_cpu else _CHUNK_ELEMENTS
        num = max(1, elements // self.vocab_size)
        return (slice(start, start + num) for start in range(0, max(num_rows, 1), num))

    def _write(self, slot: int | slice, params: SamplingParams, seed: int) -> None:
        self._numbers[slot] = torch.tensor(
            (
                params.temperature,
                params.top_p,
                params.min_p,
                params.repetition_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            ),
            dtype=torch.float64,
        )
        self._integers[slot] = torch.tensor(
            (as_int64(seed), params.top_k, params.is_seedless), dtype=torch.int64
        )
