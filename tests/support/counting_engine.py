"""An engine without a model, for tests of threads: requests get the tokens 1, 2, 3 … in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from backend.engine.interface import EngineLoad, EngineRequest, FinishReason, TokenEvent
from backend.errors import Overloaded


class CountingEngine:
    """Fails where it is told to; notes what it was asked and by which thread."""

    def __init__(self, *, step_s: float = 0.0, waiting_max: int = 1000) -> None:
        self.step_s = step_s
        self.waiting_max = waiting_max
        self.open: dict[str, tuple[EngineRequest, int]] = {}
        self.added: list[EngineRequest] = []
        self.cancelled: list[str] = []
        self.threads: set[int] = set()
        self.on_step: Callable[[], None] = lambda: None
        self.on_add: Callable[[EngineRequest], None] = lambda request: None
        self.fails: set[str] = set()  # these requests end in an error of their own

    def add(self, request: EngineRequest) -> None:
        self._enter()
        self.on_add(request)
        if len(self.open) >= self.waiting_max:
            raise Overloaded("too many", retry_after_s=1.0)
        self.added.append(request)
        self.open[request.request_id] = (request, 0)

    def cancel(self, request_id: str) -> None:
        self._enter()
        self.cancelled.append(request_id)
        self.open.pop(request_id, None)

    def has_work(self) -> bool:
        self._enter()
        return bool(self.open)

    def step(self) -> list[TokenEvent]:
        self._enter()
        time.sleep(self.step_s)
        self.on_step()
        events = []
        for request_id, (request, count) in list(self.open.items()):
            count += 1
            finish = FinishReason.LENGTH if count >= request.params.max_tokens else None
            error = None
            if request_id in self.fails:
                finish, error = FinishReason.ERROR, "it is cursed"
            events.append(
                TokenEvent(request_id, (count,), finish=finish, num_generated=count, error=error)
            )
            self.open[request_id] = (request, count)
            if finish is not None:
                del self.open[request_id]
        return events

    def load(self) -> EngineLoad:
        self._enter()
        return EngineLoad(
            num_running=len(self.open),
            num_waiting=0,
            waiting_prompt_tokens=0,
            kv_blocks_total=8,
            kv_blocks_used=len(self.open),
            tokens_per_s=0.0,
            prompt_tokens_per_s=0.0,
            num_preemptions=0,
        )

    def _enter(self) -> None:
        self.threads.add(threading.get_ident())
