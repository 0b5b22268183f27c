"""One request on its way through the engine: its tokens, counters, slot and blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from backend.engine.block_manager import BlockTable
from backend.engine.interface import EngineRequest, FinishReason, Priority


class Status(Enum):
    WAITING = auto()  # new, or preempted: holds neither slot nor blocks
    PREFILL = auto()  # some of its tokens are not in the cache yet
    DECODE = auto()  # only its last token is not in the cache
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """`token_ids` is prompt and answer; a recomputed sequence is a longer prompt, nothing else."""

    request: EngineRequest
    order: int  # of arrival
    arrived_s: float
    seed: int
    table: BlockTable
    token_ids: list[int] = field(init=False)
    status: Status = Status.WAITING
    slot: int = 0  # row of the device state; 0: none
    num_computed: int = 0  # tokens whose keys and values are in the cache
    num_generated: int = 0  # a stop token among them
    num_cached_tokens: int | None = None  # found in the prefix cache when first admitted
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_tokens_left(self) -> int:
        """How many more it may generate."""
        return self.request.params.max_tokens - self.num_generated

    def urgency(self, now_s: float, batch_age_s: float) -> Priority:
        """A batch request that has waited long enough is as urgent as an interactive one."""
        if now_s - self.arrived_s >= batch_age_s:
            return Priority.INTERACTIVE
        return self.request.priority

    def take(
        self, drawn: Iterable[int], eos_token_ids: frozenset[int], context_len_max: int
    ) -> list[int]:
        """Appends drawn tokens up to the first that ends the sequence; returns those to be shown.

        A stop token is counted but neither appended nor shown.
        """
        params = self.request.params
        shown: list[int] = []
        for token_id in drawn:
            self.num_generated += 1
            is_end = token_id in eos_token_ids and not params.ignore_eos
            if is_end or token_id in params.stop_token_ids:
                self.finish = FinishReason.STOP
                break
            self.token_ids.append(token_id)
            shown.append(token_id)
            if self.num_tokens_left <= 0 or self.num_tokens >= context_len_max:
                self.finish = FinishReason.LENGTH
                break
        return shown
