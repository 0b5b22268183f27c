"""Workloads: statistics of the recorded traces and of their stand-ins, seeds, load, windows."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gateway.simulator.routing.arrivals import BLOCK_TOKENS, Arrival, Workload
from gateway.simulator.routing.workloads.llmperf import embedded_shapes, llmperf
from gateway.simulator.routing.workloads.registry import WORKLOADS, workload
from gateway.simulator.routing.workloads.servegen import PARTS, Window, spaced
from tests.support.traces import TRACES_DIR, TRACES_DIRS

HOUR_S = 3_500.0  # the shortest trace is a little shorter than an hour


def lengths(found: Workload) -> tuple[np.ndarray, np.ndarray]:
    prompts = np.array([each.prompt_tokens for each in found.arrivals])
    outputs = np.array([each.output_tokens for each in found.arrivals])
    return prompts, outputs


def reuse(arrivals: tuple[Arrival, ...]) -> float:
    """Share of prefix blocks that a cache without end would hold."""
    seen: set[int] = set()
    num_hits = num_blocks = 0
    for arrival in arrivals:
        for block in arrival.blocks:
            if block not in seen:
                break
            num_hits += 1
        num_blocks += len(arrival.blocks)
        seen.update(arrival.blocks)
    return num_hits / num_blocks


def of_seeds(name: str, traces_dir: Path | None, num_seeds: int = 6) -> list[Workload]:
    return [
        workload(name, seed=seed, duration_s=HOUR_S, traces_dir=traces_dir)
        for seed in range(num_seeds)
    ]


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_same_seed_is_the_same_to_the_byte_and_another_seed_is_not(
    name: str, traces_dir: Path | None
) -> None:
    def drawn(seed: int) -> bytes:
        return msgspec.msgpack.encode(
            workload(name, seed=seed, duration_s=900.0, load=1.5, traces_dir=traces_dir)
        )

    assert drawn(3) == drawn(3)
    if "night" not in name or traces_dir is None:  # some nights nobody comes
        assert drawn(3) != drawn(4)


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_arrivals_are_in_order_within_the_run_and_of_positive_length(
    name: str, traces_dir: Path | None
) -> None:
    found = workload(name, seed=1, duration_s=900.0, load=2.0, traces_dir=traces_dir)
    times = [each.at_s for each in found.arrivals]

    assert times == sorted(times)
    assert all(0.0 <= at_s < 900.0 for at_s in times)
    assert all(min(each.prompt_tokens, each.output_tokens) >= 1 for each in found.arrivals)
    assert all(
        len(each.blocks) <= -(-each.prompt_tokens // BLOCK_TOKENS) for each in found.arrivals
    )


def test_a_stand_in_says_so_and_a_recorded_trace_does_not() -> None:
    stand_in = workload("azure-code", seed=1, duration_s=60.0, load=3.0)

    assert stand_in.name == "azure-code x3 (no traces: synthetic-code)"
    if TRACES_DIR is not None:
        recorded = workload("azure-code", seed=1, duration_s=60.0, traces_dir=TRACES_DIR)

        assert recorded.name == "azure-code"


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_conversation_has_azures_lengths(traces_dir: Path | None) -> None:
    prompts, outputs = lengths(
        workload("azure-conversation", seed=1, duration_s=HOUR_S, load=3.0, traces_dir=traces_dir)
    )

    assert np.percentile(prompts, [50, 95]) == pytest.approx([1_020, 4_083], rel=0.03)
    assert np.percentile(outputs, [50, 95]) == pytest.approx([129, 451], rel=0.06)
    assert outputs.mean() == pytest.approx(211, rel=0.03)


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_conversation_has_azures_dependence_of_answer_on_prompt(traces_dir: Path | None) -> None:
    prompts, outputs = lengths(
        workload("azure-conversation", seed=2, duration_s=HOUR_S, load=3.0, traces_dir=traces_dir)
    )
    medians = [
        float(np.median(outputs[(prompts >= low) & (prompts < high)]))
        for low, high in ((200, 450), (1_040, 1_150), (3_900, 4_200))
    ]

    assert medians == pytest.approx([95, 407, 52], rel=0.05)
    assert abs(np.corrcoef(np.log(prompts), np.log(outputs))[0, 1]) < 0.15


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_conversation_has_azures_rate_and_its_wandering(traces_dir: Path | None) -> None:
    found = of_seeds("azure-conversation", traces_dir, num_seeds=12)
    rates = [each.requests_per_s for each in found]
    dispersion = []
    for each in found:
        per_minute = np.bincount([int(arrival.at_s // 60) for arrival in each.arrivals])[:58]
        dispersion.append(per_minute.var() / per_minute.mean())

    assert np.mean(rates) == pytest.approx(5.4, rel=0.08)
    assert 8 < np.median(dispersion) < 35  # the trace: 20; a Poisson process: 1


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_code_is_short_answers_in_bursts(traces_dir: Path | None) -> None:
    found = of_seeds("azure-code", traces_dir)
    prompts, outputs = lengths(found[0])
    dispersion = []
    for each in found:
        per_10_s = np.bincount([int(arrival.at_s // 10) for arrival in each.arrivals])[:349]
        dispersion.append(per_10_s.var() / per_10_s.mean())

    assert np.percentile(prompts, 50) == pytest.approx(1_469, rel=0.08)
    assert np.percentile(outputs, [50, 95]) == pytest.approx([13, 90], rel=0.2)
    assert 25 < np.median(dispersion) < 200  # the trace: 70


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_multi_turn_has_mooncakes_lengths_and_reuse(traces_dir: Path | None) -> None:
    found = of_seeds("mooncake-conversation", traces_dir, num_seeds=4)
    prompts, outputs = lengths(found[0])

    assert np.mean([reuse(each.arrivals) for each in found]) == pytest.approx(0.366, abs=0.03)
    assert np.percentile(prompts, [50, 95]) == pytest.approx([6_909, 39_550], rel=0.12)
    assert np.percentile(outputs, [50, 95]) == pytest.approx([350, 698], rel=0.06)
    assert np.mean([each.requests_per_s for each in found]) == pytest.approx(3.4, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
@pytest.mark.parametrize("name", ["azure-conversation", "mooncake-conversation"])
def test_load_is_that_many_processes_not_requests_repeated(
    name: str, traces_dir: Path | None
) -> None:
    duration_s = 1_800.0 if name.startswith("azure") else 600.0

    def rate(load: float) -> float:
        runs = (
            workload(name, seed=seed, duration_s=duration_s, load=load, traces_dir=traces_dir)
            for seed in range(8)
        )
        return float(np.mean([each.requests_per_s for each in runs]))

    tripled = workload(name, seed=1, duration_s=HOUR_S, load=3.0, traces_dir=traces_dir)
    gaps = np.diff([each.at_s for each in tripled.arrivals])

    assert rate(3.0) / rate(1.0) == pytest.approx(3.0, rel=0.12)
    assert rate(0.5) / rate(1.0) == pytest.approx(0.5, rel=0.15)
    assert (gaps == 0.0).mean() < 0.001


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_overlaid_copies_share_only_the_common_block(traces_dir: Path | None) -> None:
    one = workload(
        "mooncake-conversation", seed=1, duration_s=HOUR_S, load=1.0, traces_dir=traces_dir
    )
    three = workload(
        "mooncake-conversation", seed=1, duration_s=HOUR_S, load=3.0, traces_dir=traces_dir
    )

    assert reuse(three.arrivals) == pytest.approx(reuse(one.arrivals), abs=0.03)
    assert len({each.blocks[0] for each in three.arrivals}) == 1


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_a_run_longer_than_the_trace_goes_on(traces_dir: Path | None) -> None:
    found = workload("azure-conversation", seed=1, duration_s=9_000.0, traces_dir=traces_dir)

    assert found.arrivals[-1].at_s > 8_950.0
    assert found.requests_per_s == pytest.approx(5.4, rel=0.25)


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_an_hour_at_one_fold_load_takes_less_than_a_second(traces_dir: Path | None) -> None:
    for name in WORKLOADS:
        workload(name, seed=1, duration_s=60.0, traces_dir=traces_dir)  # files are read once
        began_s = time.process_time()
        workload(name, seed=2, duration_s=3_600.0, traces_dir=traces_dir)

        assert time.process_time() - began_s < 1.0, name


def test_multi_turn_sessions_repeat_their_full_blocks() -> None:
    found = workload("synthetic-multi-turn", seed=1, duration_s=HOUR_S)
    last: dict[str, Arrival] = {}
    num_followed = 0
    for arrival in found.arrivals:
        before = last.get(arrival.session)
        if before is not None:
            num_full = before.prompt_tokens // BLOCK_TOKENS
            num_followed += 1

            assert arrival.blocks[:num_full] == before.blocks[:num_full]
            assert arrival.prompt_tokens > before.prompt_tokens + before.output_tokens
        last[arrival.session] = arrival

    assert num_followed / len(found.arrivals) > 0.3


@pytest.mark.parametrize("law", ["Weibull", "Gamma"])
def test_a_window_keeps_the_count_and_the_laws_unevenness(law: str) -> None:
    rng = np.random.default_rng(1)
    even, bursty = (np.diff(spaced(Window(1.0, law, shape), 600, rng)) for shape in (1.0, 0.4))

    assert len(even) == len(bursty) == 599
    assert even.std() / even.mean() == pytest.approx(1.0, abs=0.2)
    assert bursty.std() / bursty.mean() > 1.4


@pytest.mark.parametrize("part", PARTS)
def test_servegen_days_have_busy_and_quiet_parts(part: str) -> None:
    rates = [
        workload(
            f"servegen-{part}", seed=seed, duration_s=3_600.0, load=4.0, traces_dir=TRACES_DIR
        ).requests_per_s
        for seed in range(6)
    ]
    mean_per_fold = float(np.mean(rates)) / 4.0
    if TRACES_DIR is None:
        assert mean_per_fold == pytest.approx(5.4, rel=0.2)  # the stand-in has no day
    elif part in ("morning", "afternoon"):
        assert mean_per_fold > 0.8
    else:
        assert mean_per_fold < 2.0


def test_shapes_are_residuals_about_a_median() -> None:
    measured = llmperf(TRACES_DIR) if TRACES_DIR is not None else ()
    for shape in (*embedded_shapes(), *measured):
        assert np.median(shape.ttft_residuals) == pytest.approx(0.0, abs=0.01)
        assert np.median(shape.rate_residuals) == pytest.approx(0.0, abs=0.01)
        assert 0.0 <= shape.failed_share < 1.0


def test_measured_shapes_show_the_long_tail_and_the_error_bursts() -> None:
    shapes = {each.name: each for each in (llmperf(TRACES_DIR) if TRACES_DIR else ())}
    tailed, failing = embedded_shapes()[1:]
    for each in (tailed, shapes.get("replicate_70b", tailed)):
        assert np.percentile(each.ttft_residuals, 95) > 2.5
    for each in (failing, shapes.get("lepton_70b", failing)):
        assert each.failed_share == pytest.approx(130 / 150, abs=0.01)
        assert each.failed_run_mean > 20.0
