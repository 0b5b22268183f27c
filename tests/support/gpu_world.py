"""The product's own router before a batching GPU and a paid endpoint, on a heap of virtual events.

Real: `decide`, `Fleet`, `PriceBook`, `MachineMeter`, the policy. Played: an engine that decodes all
its sequences in one step, as long as the step of that batch takes, and a paid endpoint that is
always as quick.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.core import NANOS_PER_DOLLAR, Candidate, Lane, MachineLoad
from gateway.errors import NoEligibleEndpoint
from gateway.fleet.fleet import Fleet
from gateway.policy.decide import decide
from gateway.policy.explain import candidates_of
from gateway.policy.load import load_policy
from gateway.prices.book import PriceBook
from gateway.prices.machine_meter import MachineMeter
from gateway.prices.rows import cost_nanos
from gateway.wire.usage import Usage
from tests.support.fleet_world import Clock, FixedRng, facts, whole

GPU, PAID = "own/m", "paid/m"
POLL_S = 1.0
BLOCK = 32  # tokens
PREFILL_TOKEN_S = 0.00005
RATE_WINDOW_S = 5.0
PAID_BASE_S, PAID_TOKENS_PER_S = 0.4, 100.0
# A memory-bound start, then a compute-bound slope.
STEP_S = {1: 0.006, 2: 0.0061, 4: 0.0063, 8: 0.0067, 16: 0.0075, 32: 0.009}

POLICY = """
version: 1
providers:
  own: {{base_url: "http://10.0.0.1/v1", network: private, self_hosted: {self_hosted}}}
  paid: {{base_url: "https://paid.example/v1"}}
models:
  chat:
    - {{provider: own, model: m, canonical: m}}
    - {{provider: paid, model: m, canonical: m, price: {price}}}
routes:
  - {{name: batch, match: {{lane: batch}}, prefer: {{by: cheapest, deadline: 24h}}}}
  - {{name: rest, prefer: {{by: fastest}}}}
exploration: {{share: 0}}
"""


def true_step_s(batch: int) -> float:
    """What a step really takes, between the sizes of the table too."""
    above = next(size for size in STEP_S if size >= batch)
    below = max((size for size in STEP_S if size <= batch), default=above)
    if above == below:
        return STEP_S[above]
    share = (batch - below) / (above - below)
    return STEP_S[below] + share * (STEP_S[above] - STEP_S[below])


@dataclass(slots=True)
class Job:
    """One request in the engine."""

    prompt_tokens: int
    tokens_left: int
    began_s: float
    num_tokens: int = 0
    ended: Callable[[float], None] = lambda _: None

    @property
    def num_blocks(self) -> int:
        return -(-(self.prompt_tokens + self.num_tokens + 1) // BLOCK)


@dataclass(slots=True)
class Gpu:
    """Admits while there is a slot and cache, decodes all in one step, tells its load."""

    kv_blocks_total: int = 4_000
    sequences_max: int = 32
    tells_places: bool = True
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    is_stepping: bool = False
    busy_s: float = 0.0
    generated: list[tuple[float, int]] = field(default_factory=list)

    @property
    def kv_blocks_used(self) -> int:
        return sum(each.num_blocks for each in self.running)

    def begin_step(self) -> float:
        """Admit, and say how long this step takes."""
        used, prompt_tokens = self.kv_blocks_used, 0
        while self.waiting and len(self.running) < self.sequences_max:
            used += self.waiting[0].num_blocks
            if used > self.kv_blocks_total:
                break
            self.running.append(self.waiting.pop(0))
            prompt_tokens += self.running[-1].prompt_tokens
        took_s = prompt_tokens * PREFILL_TOKEN_S + true_step_s(len(self.running))
        self.busy_s += took_s
        return took_s

    def end_step(self, now_s: float) -> None:
        self.generated.append((now_s, len(self.running)))
        for each in self.running:
            each.num_tokens += 1
            each.tokens_left -= 1
        ended = [each for each in self.running if each.tokens_left <= 0]
        self.running = [each for each in self.running if each.tokens_left > 0]
        for each in ended:
            each.ended(now_s)

    def load(self, now_s: float) -> MachineLoad:
        self.generated = [each for each in self.generated if each[0] > now_s - RATE_WINDOW_S]
        return MachineLoad(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            waiting_prompt_tokens=sum(each.prompt_tokens for each in self.waiting),
            sequences_max=self.sequences_max if self.tells_places else 0,
            kv_blocks_total=self.kv_blocks_total,
            kv_blocks_used=self.kv_blocks_used,
            tokens_per_s=sum(num for _, num in self.generated) / RATE_WINDOW_S,
            decode_step_s=tuple(STEP_S.items()),
            prefill_token_s=PREFILL_TOKEN_S,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one request: `endpoint` is "" where all were full."""

    at_s: float
    lane: Lane
    endpoint: str
    on_gpu: int  # running and waiting there then
    candidates: tuple[Candidate, ...] = ()


class GpuWorld:
    """Send it load, let time pass, look at `decisions`."""

    def __init__(self, *, self_hosted: str, price: str, seed: int = 1, **gpu: Any) -> None:
        self.clock = Clock()
        self.began_s = self.clock()
        self.rng = random.Random(seed)
        self.gpu = Gpu(**gpu)
        self.policy = load_policy(
            POLICY.format(self_hosted=self_hosted, price=price).encode(), environ=None
        )
        self.meter = MachineMeter(began_s=self.clock.wall())
        ids = itertools.count()
        self.fleet = Fleet(
            self.policy.endpoints.values(),
            clock=self.clock,
            wall_clock=self.clock.wall,
            price_rows=PriceBook(live_rows=self.meter.rows).rows,
            new_id=lambda: f"id{next(ids)}",
            rng=FixedRng(),
        )
        self.decisions: list[Decision] = []
        self.occupancy: list[tuple[float, int]] = []  # at each poll
        self.is_telling = True
        self.paid_nanos = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._at(0.0, self._poll)

    def _at(self, in_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.clock() + in_s, next(self._order), event))

    def run(self, seconds: float) -> None:
        until_s = self.clock() + seconds
        while self._events and self._events[0][0] <= until_s:
            at_s, _, event = heapq.heappop(self._events)
            self.clock.now_s = at_s
            event()
        self.clock.now_s = until_s

    def burst(self, num_requests: int) -> None:
        """So many batch requests in one instant."""
        for _ in range(num_requests):
            self._arrive(Lane.BATCH, 500, 200)

    def offer(self, per_s: float, seconds: float, lane: Lane = Lane.BATCH) -> None:
        """Poisson arrivals over the next seconds; lengths vary as those of real answers do."""
        at_s = self.rng.expovariate(per_s)
        while at_s < seconds:
            num_tokens = max(1, min(1_000, int(self.rng.expovariate(1 / 200))))
            prompt_tokens = self.rng.randint(200, 1_000)
            self._at(at_s, lambda p=prompt_tokens, n=num_tokens: self._arrive(lane, p, n))  # type: ignore[misc]
            at_s += self.rng.expovariate(per_s)

    def _arrive(self, lane: Lane, prompt_tokens: int, num_tokens: int) -> None:
        asked = facts(lane=lane, stream=False, prompt_tokens=prompt_tokens)
        seed = self.rng.getrandbits(53)
        view = self.fleet.view(asked, list(self.policy.endpoints))
        on_gpu = len(self.gpu.running) + len(self.gpu.waiting)
        try:
            plan = decide(asked, view, self.policy, random.Random(seed), seed=seed)
        except NoEligibleEndpoint:
            self.decisions.append(Decision(self.clock(), lane, "", on_gpu))
            return
        chosen = plan.order[0]
        candidates = candidates_of(plan, asked, view, self.policy)
        self.decisions.append(Decision(self.clock(), lane, chosen, on_gpu, candidates))
        self.fleet.started(chosen)
        job = Job(prompt_tokens, num_tokens, self.clock())
        job.ended = lambda now_s: self._ended(chosen, job)
        if chosen == PAID:
            took_s = PAID_BASE_S + num_tokens / PAID_TOKENS_PER_S
            job.num_tokens = num_tokens
            self._at(took_s, lambda: job.ended(self.clock()))
            return
        self.gpu.waiting.append(job)
        self._step()

    def _step(self) -> None:
        if self.gpu.is_stepping or not (self.gpu.running or self.gpu.waiting):
            return
        self.gpu.is_stepping = True
        self._at(self.gpu.begin_step(), self._stepped)

    def _stepped(self) -> None:
        self.gpu.is_stepping = False
        self.gpu.end_step(self.clock())
        self._step()

    def _ended(self, endpoint_id: str, job: Job) -> None:
        outcome = whole(
            self.clock(),
            seconds=self.clock() - job.began_s,
            tokens=job.num_tokens,
            endpoint_id=endpoint_id,
            usage=Usage(input=job.prompt_tokens, output=job.num_tokens),
            prompt_tokens_expected=job.prompt_tokens,
        )
        self.fleet.observe(outcome)
        self.meter.observe(self.policy.endpoints, [outcome], self.clock.wall())
        if endpoint_id == PAID and outcome.usage is not None:
            (row,) = self.policy.endpoints[PAID].prices
            self.paid_nanos += cost_nanos(row, outcome.usage)

    def _poll(self) -> None:
        if self.is_telling:
            load = self.gpu.load(self.clock())
            self.fleet.report_load(GPU, load)
            self.meter.report("own", load.tokens_per_s, self.clock.wall())
        self.occupancy.append((self.clock(), len(self.gpu.running) + len(self.gpu.waiting)))
        self._at(POLL_S, self._poll)

    # What it showed

    def share(self, from_s: float, until_s: float) -> float:
        """Of the batch requests in these seconds since the start, how many went to the GPU."""
        found = self._batch(from_s, until_s)
        return sum(each.endpoint == GPU for each in found) / len(found)

    def num_turns(self, from_s: float, until_s: float) -> int:
        """How often seconds that sent (nearly) all batch to the GPU and such that sent none of it
        took turns: what a router does that swings with every account of the load."""
        regimes = []
        for second in range(int(from_s), int(until_s)):
            if self._batch(second, second + 1.0):
                share = self.share(second, second + 1.0)
                regimes += [share >= 0.9] if share >= 0.9 or share <= 0.1 else []
        return sum(one != other for one, other in itertools.pairwise(regimes))

    def crowd(self, from_s: float, until_s: float) -> list[int]:
        """Requests at the GPU, as often as it was asked."""
        return [num for at_s, num in self.occupancy if from_s <= at_s - self.began_s < until_s]

    def spent_usd(self) -> float:
        """The machine's busy seconds and the paid endpoint's bills."""
        hour = (self.policy.endpoints[GPU].usd_per_hour_nanos or 0) / NANOS_PER_DOLLAR
        return self.gpu.busy_s * hour / 3_600.0 + self.paid_nanos / NANOS_PER_DOLLAR

    def _batch(self, from_s: float, until_s: float) -> list[Decision]:
        return [
            each
            for each in self.decisions
            if each.lane is Lane.BATCH and from_s <= each.at_s - self.began_s < until_s
        ]
