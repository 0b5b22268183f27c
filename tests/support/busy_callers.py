"""Applications at work on a gateway, as clients do: streams, batch traffic, some that fail."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from gateway.simulator.words import WORDS
from tests.support.lived_in import CALLERS, SEED, Caller, Owned

REQUEST_S_MAX = 60.0
LEAVES_S = 0.5  # a reader who leaves does so early in the answer
SHARES = {"fault": 0.012, "unknown": 0.008, "leaves": 0.015}  # of what goes wrong by itself


class Traffic:
    """Asks until it is stopped. `counts` has the answers by their status."""

    def __init__(self, base_url: str, owned: Owned) -> None:
        self.counts: Counter[int] = Counter()
        self._base_url = base_url
        self._owned = owned
        self._rng = random.Random(SEED)
        self._is_over = threading.Event()

    def stop(self) -> None:
        """No further request; those that run are still read to their end."""
        self._is_over.set()

    def run(self) -> None:
        """Until it is stopped. Runs an event loop of its own."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with (
            httpx.AsyncClient(base_url=self._base_url, timeout=REQUEST_S_MAX) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for caller in CALLERS:
                for _ in range(caller.at_once):
                    tasks.create_task(self._talk(http, caller))

    async def _talk(self, http: httpx.AsyncClient, caller: Caller) -> None:
        while not self._is_over.is_set():
            await asyncio.sleep(min(self._rng.expovariate(1 / caller.pause_s), 8.0))
            dice = self._rng.random()
            fault = dice < SHARES["fault"]
            unknown = not fault and dice < SHARES["fault"] + SHARES["unknown"]
            leaves = not unknown and dice > 1 - SHARES["leaves"] and caller.stream
            with contextlib.suppress(TimeoutError):
                asked = self._ask(http, caller, fault=fault, unknown=unknown)
                answer = await asyncio.wait_for(asked, LEAVES_S if leaves else None)
                self.counts[answer.status_code] += 1

    async def _ask(
        self, http: httpx.AsyncClient, caller: Caller, *, fault: bool, unknown: bool
    ) -> httpx.Response:
        rng = self._rng
        num_words = round(caller.prompt_tokens * 0.75 * rng.lognormvariate(0.0, 0.4))
        text = " ".join(rng.choices(WORDS, k=num_words))
        wanted = max(8, round(caller.answer_tokens * rng.lognormvariate(0.0, 0.4)))
        steer = f"[[sim tokens={wanted}{' fault=error status=500' if fault else ''}]]"
        headers = {
            "authorization": f"Bearer {self._owned.keys[caller.name].key}",
            "x-looprouter-tags": caller.tags,
            "x-looprouter-lane": caller.lane,
        }
        body = {
            "model": "chat-large" if unknown else caller.model,
            "stream": caller.stream,
            "max_tokens": 2_000,
            "messages": [{"role": "user", "content": f"{steer} {text}"}],
        }
        return await http.post("/v1/chat/completions", json=body, headers=headers)


@contextmanager
def busy_callers(base_url: str, owned: Owned) -> Iterator[Traffic]:
    """All callers at work in a thread of their own, to the end of the block."""
    traffic = Traffic(base_url, owned)
    thread = threading.Thread(target=traffic.run, daemon=True)
    thread.start()
    try:
        yield traffic
    finally:
        traffic.stop()
        thread.join(REQUEST_S_MAX)
