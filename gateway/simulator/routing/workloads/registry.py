"""Workloads by name. A name means the same traffic with or without the traces' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.simulator.routing.arrivals import Arrival, Workload
from gateway.simulator.routing.workloads.azure import azure
from gateway.simulator.routing.workloads.mooncake import mooncake
from gateway.simulator.routing.workloads.multiturn import multi_turn
from gateway.simulator.routing.workloads.servegen import PARTS, servegen
from gateway.simulator.routing.workloads.synthetic import CODE, CONVERSATION, Traffic, synthetic
from gateway.simulator.routing.workloads.traces import Trace, overlay


@dataclass(frozen=True, slots=True)
class Scale:
    """How long, how much, and which of many runs."""

    seed: int
    duration_s: float
    load: float


Maker = Callable[[Path, Scale], tuple[Arrival, ...]]
StandIn = Callable[[Scale], tuple[Arrival, ...]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a workload's arrivals come from."""

    stand_in: StandIn  # without traces
    stand_in_name: str
    recorded: Maker | None = None  # None: there is no trace of it


def _of_trace(read: Callable[[Path, str], Trace], kind: str) -> Maker:
    def make(traces_dir: Path, scale: Scale) -> tuple[Arrival, ...]:
        trace = read(traces_dir, kind)
        return overlay(trace, seed=scale.seed, duration_s=scale.duration_s, load=scale.load)

    return make


def _of_servegen(part: str) -> Maker:
    def make(traces_dir: Path, scale: Scale) -> tuple[Arrival, ...]:
        return servegen(
            traces_dir, part, seed=scale.seed, duration_s=scale.duration_s, load=scale.load
        )

    return make


def _of_traffic(traffic: Traffic) -> StandIn:
    def make(scale: Scale) -> tuple[Arrival, ...]:
        return synthetic(traffic, seed=scale.seed, duration_s=scale.duration_s, load=scale.load)

    return make


def _multi_turn(scale: Scale) -> tuple[Arrival, ...]:
    return multi_turn(seed=scale.seed, duration_s=scale.duration_s, load=scale.load)


_CONVERSATION = _of_traffic(CONVERSATION)
WORKLOADS: dict[str, Source] = {
    "azure-conversation": Source(
        _CONVERSATION, "synthetic-conversation", _of_trace(azure, "conversation")
    ),
    "azure-code": Source(_of_traffic(CODE), "synthetic-code", _of_trace(azure, "code")),
    "mooncake-conversation": Source(
        _multi_turn, "synthetic-multi-turn", _of_trace(mooncake, "conversation")
    ),
    "mooncake-synthetic": Source(
        _multi_turn, "synthetic-multi-turn", _of_trace(mooncake, "synthetic")
    ),
    **{
        f"servegen-{part}": Source(_CONVERSATION, "synthetic-conversation", _of_servegen(part))
        for part in PARTS
    },
    "synthetic-conversation": Source(_CONVERSATION, "synthetic-conversation"),
    "synthetic-code": Source(_of_traffic(CODE), "synthetic-code"),
    "synthetic-multi-turn": Source(_multi_turn, "synthetic-multi-turn"),
}


def workload(
    name: str, *, seed: int, duration_s: float, load: float = 1.0, traces_dir: Path | None = None
) -> Workload:
    """
    `duration_s` of the traffic called `name`, at `load` times its own rate.

    Same arguments, same arrivals. Without `traces_dir` a generator stands in, and the workload's
    name says so; with it, a missing or broken file is a TraceError, never a silent stand-in.
    """
    source = WORKLOADS.get(name)
    if source is None:
        raise ValueError(f"workload {name!r} is unknown; there are: {', '.join(WORKLOADS)}")
    scale = Scale(seed, duration_s, load)
    shown = name if load == 1.0 else f"{name} x{load:g}"
    if source.recorded is not None and traces_dir is not None:
        arrivals = source.recorded(traces_dir, scale)
    else:
        arrivals = source.stand_in(scale)
        if source.recorded is not None:
            shown += f" (no traces: {source.stand_in_name})"
    return Workload(name=shown, arrivals=arrivals, duration_s=duration_s)
