"""What steps cost here, as measured: the figures behind /v1/load, Retry-After and the router."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median

WINDOW_S = 10.0
_SAMPLES_MAX = 32
_PROMPT_SAMPLES_MAX = 64


class Rate:
    """Events a second over the last seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_s = clock()
        self._events: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        self._events.append((self._clock(), count))
        self._sum += count

    def per_s(self) -> float:
        """Since the start, if that was not long ago."""
        now_s = self._clock()
        while self._events and self._events[0][0] <= now_s - WINDOW_S:
            self._sum -= self._events.popleft()[1]
        return self._sum / min(WINDOW_S, max(now_s - self._started_s, 1.0))


class StepCosts:
    """Running medians: seconds of a decode step by batch size, and seconds of one prompt token."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.generated = Rate(clock)
        self.prompt = Rate(clock)
        self.decode_step_s: Mapping[int, float] = {}
        self.prefill_token_s = 0.0
        self._decodes: dict[int, deque[float]] = {}
        self._prompts: deque[tuple[float, int]] = deque(maxlen=_PROMPT_SAMPLES_MAX)

    def observe(
        self, seconds: float, *, num_sequences: int, tokens_each: float, num_prompt_tokens: int
    ) -> None:
        """One step. `num_sequences`: the decode group as it was padded.

        A step in which a sequence got `tokens_each` on average is worth so many plain ones.
        """
        if num_prompt_tokens == 0:
            if num_sequences:
                self._observe_decode(seconds, num_sequences, tokens_each)
            return
        seconds -= self.decode_s(num_sequences)
        if seconds > 0.0:
            self._prompts.append((seconds / num_prompt_tokens, num_prompt_tokens))
            self.prefill_token_s = weighted_median(self._prompts)

    def decode_s(self, num_sequences: int) -> float:
        """Of a batch not yet seen: that of the next larger one that was, else the largest."""
        if num_sequences == 0 or not self.decode_step_s:
            return 0.0
        larger = [size for size in self.decode_step_s if size >= num_sequences]
        return self.decode_step_s[min(larger) if larger else max(self.decode_step_s)]

    def _observe_decode(self, seconds: float, num_sequences: int, tokens_each: float) -> None:
        samples = self._decodes.setdefault(num_sequences, deque(maxlen=_SAMPLES_MAX))
        samples.append(seconds / max(tokens_each, 1.0))
        # A new table each time: the old one may be in a reader's hands.
        self.decode_step_s = {**self.decode_step_s, num_sequences: median(samples)}


def weighted_median(samples: Iterable[tuple[float, int]]) -> float:
    """The value at which half of the weight is reached."""
    ordered = sorted(samples)
    half = sum(weight for _, weight in ordered) / 2
    reached = 0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return 0.0
