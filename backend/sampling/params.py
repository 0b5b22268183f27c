"""How one request wants its tokens drawn. The same for plain and speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.errors import BadRequest

LOGIT_BIAS_MAX = 1024  # entries
TOP_LOGPROBS_MAX = 20
STOP_TOKENS_MAX = 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Field names and ranges are those of the OpenAI API and its usual extensions.

    Raises BadRequest naming the field.
    """

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and answer
    presence_penalty: float = 0.0  # over the answer
    frequency_penalty: float = 0.0  # over the answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: the engine picks one
    logprobs: int | None = None  # None: none; k: of the token drawn and of the k best
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own ends
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 2.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadRequest(f"{name} is {value}; it goes from {low} to {high}", param=name)
        if self.max_tokens < 1:
            raise BadRequest(
                f"max_tokens is {self.max_tokens}; ask for at least 1", param="max_tokens"
            )
        if self.top_k < 0:
            raise BadRequest("top_k is negative; 0 means all", param="top_k")
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise BadRequest(
                "repetition_penalty goes from above 0 to 10", param="repetition_penalty"
            )
        if self.top_p == 0.0:
            raise BadRequest("top_p is 0; use temperature 0 for greedy", param="top_p")
        if len(self.logit_bias) > LOGIT_BIAS_MAX:
            raise BadRequest(
                f"logit_bias has more than {LOGIT_BIAS_MAX} entries", param="logit_bias"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= TOP_LOGPROBS_MAX:
            raise BadRequest(
                f"top_logprobs goes from 0 to {TOP_LOGPROBS_MAX}", param="top_logprobs"
            )
        if len(self.stop_token_ids) > STOP_TOKENS_MAX:
            raise BadRequest(f"more than {STOP_TOKENS_MAX} stop tokens", param="stop_token_ids")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_seedless(self) -> bool:
        """Drawn, and any noise will do: only the distribution counts."""
        return self.seed is None and not self.is_greedy

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )
