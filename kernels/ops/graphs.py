"""Work of ops on a GPU, recorded once as a graph (CUDA's, or HIP's) and repeated in one launch.

A graph repeats the same launches with the same numbers at the same addresses. So the work may ask
for nothing that waits for the device, numbers must come from shapes, and who repeats it copies what
is new into the memory that it was recorded with (`backend.models.captured`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

_log = logging.getLogger(__name__)


class Graphs:
    """Of one GPU. All share one pool for the memory that work asks for: they follow each other on
    one stream, so what one leaves there any other may write over.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        # Kept for as long as this: a pool that no graph has cannot be had again.
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], None]) -> Callable[[], bool] | None:
        """Does the work, and gives a function that does it again; None where it cannot be recorded,
        with the reason logged.

        `work` is called a second time to be recorded, in which nothing is computed: results that it
        makes anew then are where a repetition writes them.
        """
        work()  # compiles what is missing; no module may be loaded while a graph is recorded
        graph = torch.cuda.CUDAGraph()
        pool = None if self._first is None else self._first.pool()
        try:
            # Of this thread alone: others may ask for memory meanwhile.
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
            ):
                work()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            _log.warning("a step is launched op by op, as it cannot be recorded: %s", reason[0])
            return None
        self._first = self._first or graph

        def repeat() -> bool:
            with torch.cuda.device(self._device):
                graph.replay()
            return True

        return repeat
