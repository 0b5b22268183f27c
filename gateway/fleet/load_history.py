"""The last minutes of a self-hosted server's own account of its load, for whoever looks at it."""

from __future__ import annotations

from collections import deque

import msgspec

from gateway.core import MachineLoad

SAMPLES_MAX = 180  # three minutes, at one a second
EVERY_S_MIN = 0.5


class LoadSample(msgspec.Struct, frozen=True, kw_only=True):
    """One account; `at_s` is monotonic."""

    at_s: float
    num_running: int
    num_waiting: int
    cache_use: float
    tokens_per_s: float


class LoadHistory:
    """At most SAMPLES_MAX samples, the oldest first."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[LoadSample] = deque(maxlen=SAMPLES_MAX)

    def add(self, load: MachineLoad, now_s: float) -> None:
        """What comes within EVERY_S_MIN of the last one is left out."""
        if self._samples and 0.0 <= now_s - self._samples[-1].at_s < EVERY_S_MIN:
            return
        self._samples.append(
            LoadSample(
                at_s=now_s,
                num_running=load.num_running,
                num_waiting=load.num_waiting,
                cache_use=load.cache_use,
                tokens_per_s=load.tokens_per_s,
            )
        )

    def samples(self) -> tuple[LoadSample, ...]:
        return tuple(self._samples)
