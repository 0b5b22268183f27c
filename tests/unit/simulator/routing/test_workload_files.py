"""Trace files: hand-made ones are read exactly, broken ones are named with their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.simulator.routing.workloads.azure import FOLDER as AZURE
from gateway.simulator.routing.workloads.azure import azure
from gateway.simulator.routing.workloads.llmperf import FOLDER as LLMPERF
from gateway.simulator.routing.workloads.llmperf import llmperf
from gateway.simulator.routing.workloads.mooncake import FOLDER as MOONCAKE
from gateway.simulator.routing.workloads.mooncake import mooncake
from gateway.simulator.routing.workloads.registry import workload
from gateway.simulator.routing.workloads.servegen import FOLDER as SERVEGEN
from gateway.simulator.routing.workloads.servegen import read_servegen, servegen
from gateway.simulator.routing.workloads.traces import TraceError

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def write_azure(tmp_path: Path, lines: str) -> Path:
    write(tmp_path / AZURE, "AzureLLMInferenceTrace_conv.csv", HEAD + lines)
    return tmp_path


def write_mooncake(tmp_path: Path, *rows: dict[str, object]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write(tmp_path / MOONCAKE, "conversation_trace.jsonl", text)
    return tmp_path


def write_servegen(tmp_path: Path, windows: list[str], histogram: str) -> Path:
    folder = tmp_path / SERVEGEN
    lines = "".join(f"{idx * 600},{window}\n" for idx, window in enumerate(windows))
    write(folder, "c-trace.csv", lines)
    lengths = {"input_tokens": histogram, "output_tokens": "{7: 1.0}"}
    empty = {"input_tokens": "{}", "output_tokens": "{}"}
    write(folder, "c-dataset.json", json.dumps({"0": lengths, "21600": empty}))
    return tmp_path


def request(at_ms: int, tokens: int, *blocks: int) -> dict[str, object]:
    return {
        "timestamp": at_ms,
        "input_length": tokens,
        "output_length": 5,
        "hash_ids": list(blocks),
    }


def test_azure_is_read_to_the_microsecond(tmp_path: Path) -> None:
    lines = "2023-11-16 23:59:59.5000000,10,3\n2023-11-17 00:00:01.0000015,20,4\n"
    trace = azure(write_azure(tmp_path, lines), "conversation")

    assert trace.at_s.tolist() == [0.0, 1.500001]
    assert trace.prompt_tokens.tolist() == [10, 20]
    assert trace.output_tokens.tolist() == [3, 4]
    assert trace.span_s == pytest.approx(3.0, abs=1e-4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("2023-11-16 10:00:00.0,10,3\nsoon,1,1\n", "line 3"),
        ("2023-11-16 10:00:00.0,10,3\n2023-11-16 10:00:01.0,ten,3\n", "line 3"),
        ("2023-11-16 10:00:00.0,10\n", "line 2"),
        ("2023-11-16 10:00:00.0,10,0\n", "line 2: token counts must be positive"),
        ("2023-11-16 10:00:02.0,1,1\n2023-11-16 10:00:01.0,1,1\n", "line 3: goes back in time"),
        ("2023-11-16 10:00:02.0,1,1\n", "fewer than two"),
    ],
)
def test_broken_azure_lines_are_named(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        azure(write_azure(tmp_path, lines), "conversation")


def test_another_head_is_refused(tmp_path: Path) -> None:
    write(tmp_path / AZURE, "AzureLLMInferenceTrace_code.csv", "a,b,c\n")

    with pytest.raises(TraceError, match="line 1: must be TIMESTAMP"):
        azure(tmp_path, "code")


def test_mooncake_keeps_blocks_and_finds_the_common_one(tmp_path: Path) -> None:
    rows = [request(idx * 3_000, 1_030, 0, idx + 1, idx + 9) for idx in range(4)]
    trace = mooncake(write_mooncake(tmp_path, *rows), "conversation")

    assert trace.blocks[1] == (0, 2, 10)
    assert trace.common_blocks == {0}
    assert trace.span_s == 12.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (request(0, 100, 1, 2), "line 2: more blocks than 100 tokens"),
        (request(-1, 100), "line 2: goes back in time"),
        (request(0, 0), "line 2: lengths must be positive"),
        (request(0, 600, -1), "line 2: block ids"),
        ({"timestamp": 0}, "line 2: .*input_length"),
    ],
)
def test_broken_mooncake_lines_are_named(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        mooncake(write_mooncake(tmp_path, request(0, 100), row), "conversation")


def test_servegen_plays_the_counted_arrivals_with_the_nearest_histogram(tmp_path: Path) -> None:
    windows = ["0.05,1,Gamma,1.0,2.0"] * 144
    traces = write_servegen(tmp_path, windows, "{30: 0.5, 40: 0.5}")
    arrivals = servegen(traces, "evening", seed=1, duration_s=1_200.0, load=1.0)

    assert len(arrivals) == 60
    assert {each.prompt_tokens for each in arrivals} == {30, 40}
    assert {each.output_tokens for each in arrivals} == {7}


def test_a_quiet_servegen_window_is_no_error(tmp_path: Path) -> None:
    traces = write_servegen(tmp_path, ["0,0,,0,0"] * 144, "{30: 1.0}")

    assert servegen(traces, "night", seed=1, duration_s=600.0, load=1.0) == ()


@pytest.mark.parametrize(
    ("window", "histogram", "message"),
    [
        ("0.05,1,Pareto,1.0,2.0", "{3: 1.0}", "line 144: .*law"),
        ("0.05,1,Gamma,0,2.0", "{3: 1.0}", "line 144: .*shape"),
        ("0.05", "{3: 1.0}", "line 144"),
        ("0,0,,0,0", "{}", "holds no histogram"),
    ],
)
def test_broken_servegen_files_are_named(
    tmp_path: Path, window: str, histogram: str, message: str
) -> None:
    traces = write_servegen(tmp_path, ["0,0,,0,0"] * 143 + [window], histogram)

    with pytest.raises(TraceError, match=message):
        read_servegen(traces / SERVEGEN)


def test_a_histogram_of_words_is_refused(tmp_path: Path) -> None:
    traces = write_servegen(tmp_path, ["0.5,1,Gamma,1.0,2.0"] * 144, "{many: 1.0}")

    with pytest.raises(TraceError, match="not a histogram"):
        servegen(traces, "night", seed=1, duration_s=600.0, load=1.0)


def test_llmperf_counts_errors_but_not_short_answers(tmp_path: Path) -> None:
    answer = {"error_code": None, "ttft_s": 0.5, "end_to_end_latency_s": 2.5}
    rows = [{**answer, "number_output_tokens": 101}] * 16
    rows += [{**answer, "error_code": -100, "number_output_tokens": 41}] * 2
    rows += [{"error_code": 429}] * 2
    write(tmp_path / LLMPERF, "x_70b.json", json.dumps(rows))
    [shape] = llmperf(tmp_path)

    assert shape.rate_median == 50.0
    assert shape.ttft_median_s == 0.5
    assert shape.failed_share == 0.1
    assert shape.failed_run_mean == 2.0
    assert min(shape.rate_residuals) == pytest.approx(-0.916, abs=0.001)


def test_too_few_answers_give_no_shape(tmp_path: Path) -> None:
    write(tmp_path / LLMPERF, "x_70b.json", json.dumps([{"error_code": 500}] * 50))

    assert llmperf(tmp_path) == ()


def test_missing_files_are_errors_and_no_stand_in(tmp_path: Path) -> None:
    for name in ("azure-code", "mooncake-synthetic", "servegen-night"):
        with pytest.raises(TraceError):
            workload(name, seed=1, duration_s=60.0, traces_dir=tmp_path)
    with pytest.raises(TraceError, match=r"holds no \*.json"):
        llmperf(tmp_path)


@pytest.mark.parametrize(
    ("name", "duration_s", "load", "message"),
    [
        ("azure", 60.0, 1.0, "unknown; there are: azure-conversation"),
        ("azure-code", 0.0, 1.0, "duration_s must be positive"),
        ("azure-code", 60.0, 0.0, "load must be above 0"),
        ("azure-code", 60.0, 1e6, "at most 64"),
    ],
)
def test_impossible_wishes_are_refused(
    name: str, duration_s: float, load: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        workload(name, seed=1, duration_s=duration_s, load=load)
