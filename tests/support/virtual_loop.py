"""An asyncio loop whose clock jumps to the next timer when nothing else can run."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1_000.0


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]  # chosen at import
    """Keeps the loop's clock: waits in real time, or only moves the clock while `jumps`."""

    now_s = START_S
    jumps = False

    def select(self, timeout: float | None = None) -> Any:
        if self.jumps and timeout is not None:
            ready = super().select(0)
            if not ready:
                self.now_s += timeout
            return ready
        began_s = time.monotonic()
        ready = super().select(timeout)
        self.now_s += time.monotonic() - began_s
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Real time until `jumping`; in it a second takes as long as the work done in it."""

    def __init__(self) -> None:
        self._keeper = _Selector()
        super().__init__(self._keeper)

    def time(self) -> float:
        return self._keeper.now_s

    @contextmanager
    def jumping(self) -> Iterator[None]:
        """No thread may be waited for in here: the clock would run away from it."""
        self._keeper.jumps = True
        try:
            yield
        finally:
            self._keeper.jumps = False


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
