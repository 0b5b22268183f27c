"""LoopRouter in the race: the gateway's own fleet, `decide` and policy, on the virtual clock."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import count

from gateway.core import (
    AttemptOutcome,
    Endpoint,
    FleetView,
    Lane,
    Plan,
    PriceRow,
    RequestFacts,
    Rng,
)
from gateway.errors import NoEligibleEndpoint
from gateway.fleet.exploration import ExplorationLimits
from gateway.fleet.fleet import Fleet
from gateway.fleet.replicas import Replica
from gateway.fleet.sharing import FleetNews
from gateway.policy.decide import decide
from gateway.policy.load import load_policy
from gateway.policy.policy import Policy
from gateway.simulator.routing.router import Ask, Listing, NowhereNow, Setting
from gateway.wire.pieces import Surface

MODEL = "model"
PREFERENCES: dict[str, dict[str, object]] = {
    "fastest": {"by": "fastest"},
    "balanced": {"by": "balanced", "usd_per_second": 0.0005},
    "cheapest": {"by": "cheapest"},
}


def policy_of(listings: Sequence[Listing], prefer: dict[str, object]) -> Policy:
    """A policy over these endpoints with one route, read from text as a user's is."""
    names = [listing.endpoint_id.split("/", 1) for listing in listings]
    text = {
        "version": 1,
        "providers": {
            provider: {"api": "openai", "base_url": f"https://{provider}.example/v1"}
            for provider, _ in names
        },
        "models": {
            MODEL: [
                # The row in force comes from the world; here only that there is one.
                {"provider": provider, "model": model, "price": {"input": 1, "output": 1}}
                for provider, model in names
            ]
        },
        "routes": [{"name": "all", "prefer": prefer}],
    }
    return load_policy(json.dumps(text).encode(), environ=None, source="simulator")


class OurRouter:
    """One replica of the gateway, from `fleet.view` to `fleet.observe`."""

    def __init__(
        self, setting: Setting, *, prefer: dict[str, object], name: str = "ours", seed: int = 0
    ) -> None:
        self.name = name
        self.now_s = setting.now_s
        self.explored = False
        self._prefer = prefer
        self._prices = setting.prices
        self._epoch_s = setting.epoch_s
        self._rng = random.Random(seed)
        ids = count()
        self.policy = policy_of(setting.listings, prefer)
        self.fleet = Fleet(
            self.policy.endpoints.values(),
            clock=lambda: self.now_s,
            wall_clock=lambda: self._epoch_s + self.now_s,
            price_rows=self._rows,
            new_id=lambda: f"{seed:x}.{next(ids):x}",
            rng=random.Random(seed + 1),
        )
        self.fleet.limit_exploration(_limits(self.policy))
        self._ids = [each.id for each in self.policy.pools[MODEL]]
        self._replica: Replica | None = None

    def _rows(self, endpoint: Endpoint, unix_s: float) -> tuple[PriceRow, ...]:
        return (self._prices(endpoint.id, unix_s - self._epoch_s),)

    def listed(self, listings: tuple[Listing, ...], now_s: float) -> None:
        """A new policy file, as by hot reload."""
        self.now_s = now_s
        self.policy = policy_of(listings, self._prefer)
        self.fleet.replace_endpoints(self.policy.endpoints.values())
        self.fleet.limit_exploration(_limits(self.policy))
        self._ids = [each.id for each in self.policy.pools[MODEL]]

    def order(self, ask: Ask, now_s: float) -> Sequence[str]:
        """As `pipeline.decide_waiting` does, but that a wait is the world's to keep."""
        self.now_s = now_s
        facts = facts_of(ask)
        view = self.fleet.view(facts, self._ids)
        try:
            plan = decide(facts, view, self.policy, self.rng_of(ask), seed=ask.idx)
        except NoEligibleEndpoint as error:
            if not error.is_capacity:
                return ()
            raise NowhereNow(error.free_in_s) from error
        self.fleet.accrue_credit(facts)
        self.explored = plan.explored
        if plan.explored:
            self.fleet.spend_credit()
        self.decided(ask, facts, view, plan)
        return plan.order

    def rng_of(self, ask: Ask) -> Rng:
        """What this decision draws from."""
        del ask
        return self._rng

    def decided(self, ask: Ask, facts: RequestFacts, view: FleetView, plan: Plan) -> None:
        """For those who keep a log."""

    def join(self, name: str) -> None:
        """There are other replicas, and this is its name among them."""
        self._replica = Replica(self.fleet, name)

    def news(self, now_s: float) -> FleetNews | None:
        self.now_s = now_s
        return self._replica.news() if self._replica is not None else None

    def hear(self, news: FleetNews, now_s: float) -> None:
        self.now_s = now_s
        if self._replica is not None:
            self._replica.hear(news)

    def may_send(self, endpoint_id: str, now_s: float) -> bool:
        self.now_s = now_s
        return self.fleet.may_probe(endpoint_id)

    def started(self, endpoint_id: str, now_s: float) -> int:
        self.now_s = now_s
        return self.fleet.started(endpoint_id, is_stream=True)

    def first_token(self, endpoint_id: str, now_s: float) -> None:
        self.now_s = now_s
        self.fleet.first_token(endpoint_id)

    def ended(self, outcome: AttemptOutcome, now_s: float) -> None:
        self.now_s = now_s
        self.fleet.observe(outcome)

    def first_token_timeout_s(self, endpoint_id: str, ask: Ask) -> float:
        return self.fleet.ttft_timeout_s(endpoint_id, facts_of(ask))


def facts_of(ask: Ask) -> RequestFacts:
    """What the gateway would write down of this request."""
    return RequestFacts(
        request_id=str(ask.idx),
        surface=Surface.CHAT,
        models=(MODEL,),
        stream=True,
        lane=Lane.INTERACTIVE,
        key_id="simulated",
        text_bytes=ask.prompt_tokens * 4,
        prompt_tokens=ask.prompt_tokens,
        affinity_key=ask.prefix_key,
        session_key=ask.session_key,
        deadline_s=ask.deadline_s,
    )


def _limits(policy: Policy) -> ExplorationLimits:
    chosen = policy.exploration
    return ExplorationLimits(
        share=chosen.share,
        credits_max=chosen.credits_max,
        probe_after_s=chosen.probe_after_s,
        probe_nanos_per_hour=chosen.nanos_per_hour,
    )
