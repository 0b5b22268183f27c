"""The figures of speculation for Prometheus, read from the engine's last account of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backend.engine.interface import RoundFigures, SpeculationLoad
from backend.serving.acceptance_alarm import AcceptanceCheck

_LABELS = ("method", "model", "workload")
# Name without its prefix, what it says, how it is read.
_COUNTERS: tuple[tuple[str, str, Callable[[RoundFigures], float]], ...] = (
    ("drafts", "Rounds of a sequence that had a draft.", lambda each: each.num_drafts),
    ("draft_tokens", "Draft tokens verified.", lambda each: each.num_draft_tokens),
    ("accepted_tokens", "Draft tokens that stood.", lambda each: each.num_accepted_tokens),
    ("round_seconds", "Of rounds in steps that only decode.", lambda each: each.round_s),
    ("round_plain_seconds", "Of as many plain steps.", lambda each: each.round_plain_s),
    ("step_seconds", "Of such steps, with and without drafts.", lambda each: each.step_s),
    ("step_plain_seconds", "Of plain steps for their tokens.", lambda each: each.step_plain_s),
)
_BY_POSITION: tuple[tuple[str, str, Callable[[RoundFigures], tuple[int, ...]]], ...] = (
    ("at_risk", "Drafts here, all before them accepted.", lambda each: each.num_at_risk),
    ("accepted", "Of those, the accepted ones.", lambda each: each.num_accepted),
)
_GAUGES: tuple[tuple[str, str, Callable[[RoundFigures], float | None]], ...] = (
    ("acceptance_rate", "Share of draft tokens that stood.", lambda each: each.acceptance_rate),
    ("mean_acceptance_length", "Tokens a round, the target's own among them.",
     lambda each: each.mean_acceptance_length),
    ("round_cost", "Of a round, in plain steps.", lambda each: each.round_cost),
    ("speed_up", "Over plain decoding, as measured here.", lambda each: each.speed_up),
)  # fmt: skip


class RoundCollector(Collector):
    """`load` and `checks` are shown; the gauges of rounds are over all since the start."""

    def __init__(self) -> None:
        self.model = ""
        self.load = SpeculationLoad()
        self.checks: Sequence[AcceptanceCheck] = ()

    def collect(self) -> Iterable[Metric]:
        for name, said, read in _COUNTERS:
            counter = CounterMetricFamily(f"backend_speculation_{name}", said, labels=_LABELS)
            for each in self.load.figures:
                counter.add_metric(self._labels(each), read(each))
            yield counter
        for name, said, places in _BY_POSITION:
            counter = CounterMetricFamily(
                f"backend_speculation_{name}_at_position", said, labels=(*_LABELS, "position")
            )
            for each in self.load.figures:
                for position, count in enumerate(places(each)):
                    counter.add_metric((*self._labels(each), str(position)), count)
            yield counter
        for name, said, value_of in _GAUGES:
            gauge = GaugeMetricFamily(f"backend_speculation_{name}", said, labels=_LABELS)
            for each in self.load.figures:
                value = value_of(each)
                if value is not None:
                    gauge.add_metric(self._labels(each), value)
            yield gauge
        low = GaugeMetricFamily(
            "backend_speculation_acceptance_low",
            "1: far fewer drafts are accepted than the head's file says.",
            labels=_LABELS,
        )
        for check in self.checks:
            low.add_metric((self.load.method, self.model, check.workload), float(check.is_low))
        yield low

    def _labels(self, figures: RoundFigures) -> tuple[str, str, str]:
        return figures.method, self.model, figures.workload
