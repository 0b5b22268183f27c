"""Every Prometheus metric of the backend, declared once; labels are of bounded size."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backend.engine.interface import EngineLoad
from backend.serving.acceptance_alarm import AcceptanceCheck
from backend.serving.round_metrics import RoundCollector

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_STEP_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """One registry a process. Times are as the server sees them, without the network."""

    def __init__(self, model: str = "") -> None:
        """`model`: the name that is served."""
        self.registry = CollectorRegistry()
        registry = self.registry
        self._rounds = RoundCollector()
        self._rounds.model = model
        registry.register(self._rounds)
        self.requests = Counter(
            "backend_requests", "HTTP requests answered.", ("route", "status"), registry=registry
        )
        self.request_s = Histogram(
            "backend_request_seconds",
            "From the head of a request to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("backend_http_in_flight", "HTTP requests now.", registry=registry)
        self.ttft_s = Histogram(
            "backend_ttft_seconds",
            "From a sequence's submission to its first token, queueing included.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.inter_token_s = Histogram(
            "backend_inter_token_seconds",
            "Mean time between the tokens of a sequence, once a report of the engine.",
            buckets=_STEP_SECONDS,
            registry=registry,
        )
        self.step_s = Histogram(
            "backend_step_seconds", "One step of the engine.", buckets=_STEP_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.sequences = Counter(
            "backend_sequences", "Sequences ended, by how.", ("finish",), registry=registry
        )
        self.refused = Counter(
            "backend_sequences_refused", "Sequences the engine refused.", registry=registry
        )
        self.prompt_tokens = Counter(
            "backend_prompt_tokens", "Prompt tokens of ended sequences.", registry=registry
        )
        self.cached_tokens = Counter(
            "backend_cached_prompt_tokens",
            "Those of them that the prefix cache held.",
            registry=registry,
        )
        self.generated_tokens = Counter(
            "backend_generated_tokens", "Tokens generated.", registry=registry
        )
        self._declare_load()

    def _declare_load(self) -> None:
        registry = self.registry
        self._running = Gauge("backend_running", "Sequences being worked on.", registry=registry)
        self._waiting = Gauge("backend_waiting", "Sequences that wait.", registry=registry)
        self._kv_total = Gauge("backend_kv_blocks", "Blocks of the KV cache.", registry=registry)
        self._kv_used = Gauge(
            "backend_kv_blocks_used", "Blocks held by running sequences.", registry=registry
        )
        self._preemptions = Gauge(
            "backend_preemptions", "Sequences preempted since the start.", registry=registry
        )
        self.kernels_withheld = Gauge(
            "backend_kernels_withheld",
            "Ops that torch serves because the doctor found fault with their kernels.",
            registry=registry,
        )
        self._tokens_per_s = Gauge(
            "backend_tokens_per_second", "Generated now, all sequences.", registry=registry
        )

    def exposition(self, load: EngineLoad | None, checks: Sequence[AcceptanceCheck] = ()) -> bytes:
        """Prometheus text; the gauges show `load` and `checks`."""
        if load is not None:
            self._running.set(load.num_running)
            self._waiting.set(load.num_waiting)
            self._kv_total.set(load.kv_blocks_total)
            self._kv_used.set(load.kv_blocks_used)
            self._preemptions.set(load.num_preemptions)
            self._tokens_per_s.set(load.tokens_per_s)
            self._rounds.load = load.speculation
            self._rounds.checks = checks
        return generate_latest(self.registry)
