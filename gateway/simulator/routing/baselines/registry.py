"""Baselines by name, each with where its rule is written down."""

from __future__ import annotations

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


BASELINES: dict[str, Baseline] = {
    "round_robin": Baseline(round_robin, "nginx, default balancing method"),
    "random_choice": Baseline(random_choice, "nginx, `random` balancing method"),
    "least_in_flight": Baseline(least_in_flight, "nginx, `least_conn`; LiteLLM, `least-busy`"),
    "p2c_peak_ewma": Baseline(p2c_peak_ewma, "Finagle, P2C with PeakEwma, tau 10 s"),
    "litellm_lowest_latency": Baseline(
        litellm_lowest_latency, "LiteLLM 1.110 (autumn 2026), `latency-based-routing`"
    ),
    "litellm_lowest_latency_old": Baseline(
        litellm_lowest_latency_old,
        "LiteLLM before April 2026 (LL#25548, LL#40202), `latency-based-routing`",
    ),
    "litellm_simple_shuffle": Baseline(
        litellm_simple_shuffle, "LiteLLM, `simple-shuffle`, its default"
    ),
    "llm_gateway_weighted": Baseline(
        llm_gateway_weighted, "theopenco/llmgateway, documentation, `features/routing`"
    ),
    "openrouter_inverse_square": Baseline(
        openrouter_inverse_square, "OpenRouter, provider-routing guide until mid-2026"
    ),
    "openrouter_edge": Baseline(
        openrouter_edge,
        "OpenRouter, 'How OpenRouter Routes Traffic Between Providers' (autumn 2026); our reading "
        "of its undocumented numbers",
    ),
    "sort_throughput": Baseline(sort_throughput, "OpenRouter, `sort: throughput`, `:nitro`"),
    "cheapest_listed": Baseline(cheapest_listed, "OpenRouter, `sort: price`, `:floor`"),
    "static_table": Baseline(static_table, "a hand-written list by listed speed, nginx `backup`"),
    "clairvoyant_greedy": Baseline(
        clairvoyant_greedy, "the world itself, every draw known", is_clairvoyant=True
    ),
    "clairvoyant_means": Baseline(
        clairvoyant_means, "the world itself, means known but no draw", is_clairvoyant=True
    ),
}
