"""Noise by measured residuals: the sample's own quantiles, at the world's own medians."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gateway.simulator.routing.arrivals import Arrival
from gateway.simulator.routing.places import Place, PlaceSpec, draw_noise
from gateway.simulator.routing.weather import Weather, steady
from gateway.simulator.routing.workloads.llmperf import embedded_shapes
from gateway.simulator.routing.workloads.traces import TraceError
from gateway.simulator.routing.worlds import make_world

NUM = 20_000
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def _place(spec: PlaceSpec) -> Place:
    noise = draw_noise(NUM, np.random.default_rng(1))
    rows = make_world("calm", seed=1, duration_s=60.0).places((), 1)[0].price(0.0)
    return Place(spec, Weather(steady(60.0), ()), noise, ((0.0, rows),))


def test_times_have_the_quantiles_of_the_sample() -> None:
    shape = embedded_shapes()[0]
    spec = PlaceSpec(
        id="a/m",
        ttft_s=0.5,
        tokens_per_s=100.0,
        error_share=0.0,
        ttft_residuals=shape.ttft_residuals,
        rate_residuals=shape.rate_residuals,
    )
    place = _place(spec)
    arrival = Arrival(at_s=0.0, prompt_tokens=0, output_tokens=100)
    fates = [place.foresee(arrival, idx, 0.0) for idx in range(NUM)]
    ttft = np.log([each.ttft_s / 0.5 for each in fates])
    rate = np.log([1.0 / (each.whole_s - each.ttft_s) for each in fates])
    for found, sample in ((ttft, shape.ttft_residuals), (rate, shape.rate_residuals)):
        assert np.quantile(found, LEVELS) == pytest.approx(np.quantile(sample, LEVELS), abs=0.03)
    assert ttft.max() <= max(shape.ttft_residuals) + 1e-9
    assert abs(np.corrcoef(ttft, rate)[0, 1]) < 0.03


def test_the_world_differs_from_drift_in_its_noise_alone() -> None:
    ours, drift = (make_world(name, seed=4, duration_s=60.0) for name in ("llmperf", "drift"))
    assert [each.tokens_per_s for each in ours.specs] == [each.tokens_per_s for each in drift.specs]
    assert [each.speed(30.0) for each in ours.weather] == [
        each.speed(30.0) for each in drift.weather
    ]
    assert all(each.ttft_residuals and each.rate_residuals for each in ours.specs)
    # The one that refused most of its run has no spread to show: never drawn.
    assert max(each.error_share for each in ours.specs) < 0.05


def test_measurements_are_read_where_there_are_any_and_missed_aloud(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no \*\.json"):
        make_world("llmperf", seed=1, duration_s=60.0, traces_dir=tmp_path)
    folder = tmp_path / "llmperf-2023" / "individual"
    folder.mkdir(parents=True)
    requests = [
        {"ttft_s": 0.2 + 0.01 * i, "end_to_end_latency_s": 2.5, "number_output_tokens": 100}
        for i in range(33)
    ]
    (folder / "one_7b.json").write_text(json.dumps(requests))
    world = make_world("llmperf", seed=1, duration_s=60.0, traces_dir=tmp_path)
    assert {len(each.ttft_residuals) for each in world.specs} == {33}
    assert world.specs[0].ttft_residuals[0] == pytest.approx(np.log(0.2 / 0.36))
