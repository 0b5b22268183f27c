"""Baselines by name, each with where its rule is written down."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from gateway.simulator.routing.baselines.cheapest_listed import cheapest_listed
from gateway.simulator.routing.baselines.clairvoyant import clairvoyant_greedy, clairvoyant_means
from gateway.simulator.routing.baselines.least_in_flight import least_in_flight
from gateway.simulator.routing.baselines.litellm_lowest_latency import litellm_lowest_latency
from gateway.simulator.routing.baselines.litellm_lowest_latency_old import (
    litellm_lowest_latency_old,
)
from gateway.simulator.routing.baselines.litellm_simple_shuffle import litellm_simple_shuffle
from gateway.simulator.routing.baselines.llm_gateway_weighted import llm_gateway_weighted
from gateway.simulator.routing.baselines.openrouter_edge import openrouter_edge
from gateway.simulator.routing.baselines.openrouter_inverse_square import (
    openrouter_inverse_square,
)
from gateway.simulator.routing.baselines.p2c_peak_ewma import p2c_peak_ewma
from gateway.simulator.routing.baselines.random_choice import random_choice
from gateway.simulator.routing.baselines.round_robin import round_robin
from gateway.simulator.routing.baselines.ruled import RuledRouter
from gateway.simulator.routing.baselines.sort_throughput import sort_throughput
from gateway.simulator.routing.baselines.static_table import static_table
from gateway.simulator.routing.router import Setting


@dataclass(frozen=True, slots=True)
class Baseline:
    """A factory of routers, and the source of their rule."""

    build: Callable[[Setting], RuledRouter]
    source: str
    is_clairvoyant: bool = False

    def __call__(self, setting: Setting) -> RuledRouter:
        return self.build(setting)


def _sourced(build: Callable[[Setting], RuledRouter], is_clairvoyant: bool = False) -> Baseline:
    """The source is the sentence of the module's first paragraph that names it."""
    documentation = sys.modules[build.__module__].__doc__ or ""
    source = " ".join(documentation.partition("Source: ")[2].partition("\n\n")[0].split())
    assert source, f"{build.__module__} names no source"
    return Baseline(build, source, is_clairvoyant)


BASELINES: dict[str, Baseline] = {
    "round_robin": _sourced(round_robin),
    "random_choice": _sourced(random_choice),
    "least_in_flight": _sourced(least_in_flight),
    "p2c_peak_ewma": _sourced(p2c_peak_ewma),
    "litellm_lowest_latency": _sourced(litellm_lowest_latency),
    "litellm_lowest_latency_old": _sourced(litellm_lowest_latency_old),
    "litellm_simple_shuffle": _sourced(litellm_simple_shuffle),
    "llm_gateway_weighted": _sourced(llm_gateway_weighted),
    "openrouter_inverse_square": _sourced(openrouter_inverse_square),
    "openrouter_edge": _sourced(openrouter_edge),
    "sort_throughput": _sourced(sort_throughput),
    "cheapest_listed": _sourced(cheapest_listed),
    "static_table": _sourced(static_table),
    "clairvoyant_greedy": _sourced(clairvoyant_greedy, is_clairvoyant=True),
    "clairvoyant_means": _sourced(clairvoyant_means, is_clairvoyant=True),
}
