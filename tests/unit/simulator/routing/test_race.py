"""The race: what this router must keep to, on few seeds and with bounds far from the mark."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli import cli
from gateway.errors import SetupError
from gateway.simulator.routing.bench import Cell, Played, Task, cells_of, run_task, summarise
from gateway.simulator.routing.losses import losses, losses_table
from gateway.simulator.routing.measures import Figures
from gateway.simulator.routing.plots import LABEL_X, TICK_APART, regret_plot
from gateway.simulator.routing.report import as_json, as_markdown
from gateway.simulator.routing.workloads.registry import WORKLOADS
from gateway.simulator.routing.workloads.traces import TraceError
from tests.support.traces import TRACES_DIRS

RIVALS = ("litellm_lowest_latency", "sort_throughput", "clairvoyant_greedy")


def _figures(cell: Cell, router: str = "fastest", seed: int = 1, minutes: float = 6.0) -> Figures:
    task = Task(cell=cell, seed=seed, duration_s=minutes * 60.0, routers=(router,))
    return run_task(task).figures[router]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["drift", "regime", "outage"])
def test_it_is_near_the_clairvoyant_and_before_the_rivals(world: str) -> None:
    played = [
        run_task(
            Task(cell=Cell(world=world), seed=seed, duration_s=300.0, routers=("fastest", *RIVALS))
        )
        for seed in (1, 2)
    ]
    (result,) = summarise(played)
    regret = {name: bounds["p95_s"][0] for name, bounds in result.regrets.items()}
    assert regret["fastest"] < 1.8
    assert regret["fastest"] <= 1.1 * min(
        regret["litellm_lowest_latency"], regret["sort_throughput"]
    )


def test_a_dead_endpoint_is_left_at_once_and_a_hanging_one_soon() -> None:
    dead, hung = _figures(Cell(world="dies-error")), _figures(Cell(world="dies-hang"))
    assert dead.leave_s is not None
    assert dead.leave_s < 10.0
    assert hung.leave_s is not None
    assert hung.leave_s < 20.0
    assert (dead.event_share or 0.0) < 0.05
    assert (hung.event_share or 0.0) < 0.05


def test_a_newcomer_is_taken_up_within_a_small_budget() -> None:
    found = _figures(Cell(world="newcomer"))
    assert found.adopt_s is not None
    assert found.adopt_s < 120.0
    assert found.explored_share <= 0.021


@pytest.mark.slow
def test_an_endpoint_that_became_fast_unseen_is_found() -> None:
    found = _figures(Cell(world="improves"), seed=2, minutes=16.0)
    assert found.adopt_s is not None
    assert found.explored_share <= 0.021


def test_limits_a_minute_are_kept_to() -> None:
    assert _figures(Cell(world="limits")).failed_share < 0.02


def test_prefixes_go_where_they_are_cached_and_the_load_stays_even() -> None:
    found = _figures(Cell(world="caching", workload="mooncake-conversation"), minutes=10.0)
    assert found.cached_of_ideal is not None
    assert found.cached_of_ideal > 0.75
    assert found.load_over_fair < 1.4


@pytest.mark.slow
def test_replicas_that_share_do_hardly_worse_than_one() -> None:
    one = _figures(Cell(world="drift"))
    many = _figures(Cell(world="drift", num_replicas=8, stale_s=5.0))
    assert many.p95_s < 1.4 * one.p95_s


def test_figures_are_a_means_of_seeds_and_intervals_belong_to_pairs() -> None:
    cell = Cell(world="calm")
    rows = [_row(cell, seed, ours, 2.0) for seed, ours in enumerate((1.0, 1.1, 0.9), 1)]
    (result,) = summarise(rows)
    assert result.means["fastest"]["p95_s"] == pytest.approx(1.0)
    [found] = [
        each
        for each in result.comparisons
        if (each.router, each.other, each.figure) == ("fastest", "round_robin", "p95_s")
    ]
    assert found.change == pytest.approx(-0.5)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.change < found.high < 0.0
    assert found.verdict == "better"


def test_no_claim_where_the_interval_crosses_zero_and_losses_are_listed() -> None:
    cell = Cell(world="calm")
    level = [_row(cell, seed, ours, 2.0) for seed, ours in enumerate((1.0, 3.0, 2.1), 1)]
    worse = [_row(cell, seed, 3.0 + seed / 10, 2.0) for seed in (1, 2, 3)]
    assert not losses(summarise(level))
    results = summarise(worse)
    assert {each.figure for each in losses(results)} >= {"p95_s"}
    *_, row = losses_table(results)
    assert "| calm, x1, 6 endpoints | `fastest` | p95 | 1 of 1 | `round_robin` | 60% [5" in row
    assert losses_table(summarise(level)) == ["None whose interval is clear of 0."]


def test_a_loss_of_time_by_unanswered_requests_says_so_and_not_the_preference() -> None:
    cell = Cell(world="outage")

    def rows(failed: float) -> list[Played]:
        played = [_row(cell, seed, 3.0 + seed / 10, 2.0) for seed in (1, 2, 3)]
        for one in played:
            figures = one.figures.pop("fastest")
            one.figures["cheapest"] = msgspec.structs.replace(figures, failed_share=failed)
        return played

    *_, few = losses_table(summarise(rows(0.005)))
    *_, many = losses_table(summarise(rows(0.046)))
    assert few.endswith("| `cheapest` without a deadline fills the cheapest endpoint up |")
    assert many.endswith("| 4.6% unanswered beside 0.0%, each counts as 60 s |")


def test_one_seed_has_ratios_and_no_intervals_and_claims_nothing() -> None:
    (result,) = summarise([_row(Cell(world="calm"), 1, 1.0, 2.0)])
    [found] = [each for each in result.comparisons if each.figure == "p95_s"]
    assert found.change == pytest.approx(-0.5)
    assert (found.low, found.high) == (None, None)
    assert found.verdict == "no claim"
    assert b"nf" not in as_json([result])


def test_the_clairvoyant_is_compared_once_and_alike_in_both_places() -> None:
    cell = Cell(world="calm")
    rows = [_row(cell, s, x, 2.0, "clairvoyant_greedy") for s, x in enumerate((2.2, 3.0, 2.1), 1)]
    (result,) = summarise(rows)
    value, low, high = result.regrets["fastest"]["p95_s"]
    [found] = [each for each in result.comparisons if each.figure == "p95_s"]
    assert low is not None
    assert high is not None
    assert (found.change, found.low, found.high) == (value - 1.0, low - 1.0, high - 1.0)


def test_the_plot_holds_any_regret_and_its_labels_keep_apart() -> None:
    cell = Cell(world="calm")
    for ours_s in ((1.7, 1.9, 1.8), (2.0, 2.0, 2.0), (7.0, 9.0, 90.0), (400.0, 300.0, 500.0)):
        rows = [_row(cell, s, x, 2.0, "clairvoyant_greedy") for s, x in enumerate(ours_s, 1)]
        svg = regret_plot(summarise(rows)[0])
        ticks = [float(x) for x in re.findall(r'x="([0-9.]+)" [^>]*text-anchor="middle"', svg)]
        assert len(ticks) >= 3
        assert all(b - a >= TICK_APART for a, b in pairwise(ticks))
        assert all(float(x) < LABEL_X for x in re.findall(r'<circle cx="([0-9.]+)"', svg))
        assert ("<path" in svg) == (max(ours_s) > 60.0)


def test_report_names_every_router_and_is_valid_json_and_svg() -> None:
    played = run_task(
        Task(cell=Cell(world="drift"), seed=1, duration_s=60.0, routers=("fastest", *RIVALS))
    )
    results = summarise([played, played])
    text = as_markdown(results, "looprouter bench router", 60.0)
    assert all(name in text for name in ("fastest", *RIVALS))
    assert "no claim against" in text
    assert json.loads(as_json(results))[0]["cell"]["world"] == "drift"
    plot = regret_plot(results[0])
    assert plot.startswith("<svg")
    # Ours and the clairvoyant are round, others square; one more of each in the legend.
    assert plot.count("<circle") == 2 + 2
    assert plot.count('class="theirs"/>') == 2 + 1


def test_cells_are_every_combination_and_unknown_names_are_refused() -> None:
    cells = cells_of(["calm", "drift"], [1.0, 3.0], [2, 6])
    assert len({cell.name for cell in cells}) == 8
    assert cells_of(["calm", "drift", "calm"], [1.0, 3.0, 1], [2, 6]) == cells
    traffic = cells_of(["calm", "caching"], [1.0], [6], workloads=["azure-code", "servegen-night"])
    assert {(cell.world, cell.workload) for cell in traffic} == {
        (world, name) for world in ("calm", "caching") for name in ("azure-code", "servegen-night")
    }
    assert [cell.workload for cell in cells_of(["calm", "caching"], [1.0], [6])] == [
        "azure-conversation",
        "mooncake-conversation",
    ]
    with pytest.raises(ValueError, match="there is no world 'mars'"):
        cells_of(["mars"], [1.0], [6])


@pytest.mark.slow
def test_the_command_races_two_seeds_and_writes_its_report(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli,
        [
            *("bench", "router", "--seeds", "2", "--minutes", "2", "--loads", "1"),
            *("--jobs", "2", "--out", str(tmp_path)),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "fastest" in done.output
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert [each["cell"]["world"] for each in report] == ["drift", "regime", "outage"]
    assert len(list(tmp_path.glob("*.svg"))) == 6


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--worlds", "mars", "mars"),
        ("--worlds", ",", "world"),
        ("--routers", "magic", "magic"),
        ("--routers", ",", "--routers"),
        ("--endpoints", "9", "9"),
        ("--endpoints", "2.5", "2.5"),
        ("--loads", "heavy", "heavy"),
        ("--loads", "0", "above 0"),
        ("--loads", "nan", "nan"),
        ("--workload", "gossip", "azure-code"),  # it lists those there are
        ("--workload", ",", "--workload"),
        ("--stale", "5", "--replicas"),  # one alone has nobody to share with
    ],
)
def test_the_command_names_what_it_does_not_know(option: str, value: str, told: str) -> None:
    done = CliRunner().invoke(cli, ["bench", "router", option, value, "--seeds", "1"])
    assert done.exit_code == 2, done.output
    assert told in done.output


@pytest.mark.parametrize("traces_dir", TRACES_DIRS)
def test_every_traffic_runs_by_the_one_command(traces_dir: Path | None, tmp_path: Path) -> None:
    load = 1 if traces_dir is None else 3  # a single minute of a recorded service may be a pause
    done = CliRunner().invoke(
        cli,
        [
            *("bench", "router", "--worlds", "calm", "--loads", str(load), "--seeds", "1"),
            *("--minutes", "1", "--routers", "fastest", "--jobs", "1", "--out", str(tmp_path)),
            *("--workload", ",".join(WORKLOADS)),
            *(() if traces_dir is None else ("--traces", str(traces_dir))),
        ],
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert [each["cell"]["workload"] for each in report] == list(WORKLOADS)
    for each in report:
        name, source = each["cell"]["workload"], WORKLOADS[each["cell"]["workload"]]
        # What stood in for a trace is said wherever its figures are.
        is_stand_in = traces_dir is None and source.recorded is not None
        scaled = name if load == 1 else f"{name} x{load}"
        assert each["workload"] == scaled + (
            f" (no traces: {source.stand_in_name})" if is_stand_in else ""
        )
        assert each["means"]["fastest"]["num_requests"] > 0
        # Prefix blocks are read where there are any.
        assert ("mooncake" in name or "multi-turn" in name) == (
            each["means"]["fastest"]["cached_of_ideal"] is not None
        )


def test_a_run_without_a_single_request_is_refused_by_name() -> None:
    nothing = Cell(world="calm", workload="synthetic-code", load=0.001)
    with pytest.raises(SetupError, match=r"synthetic-code x0.001: no request .* 1 minutes of seed"):
        run_task(Task(cell=nothing, seed=1, duration_s=60.0, routers=("fastest",)))


def test_a_lacking_trace_is_told_from_a_worker_process_too(tmp_path: Path) -> None:
    one_minute = ("bench", "router", "--worlds", "calm", "--loads", "1", "--minutes", "1")
    for jobs in ("1", "2"):
        done = CliRunner().invoke(
            cli, [*one_minute, "--seeds", "1", "--jobs", jobs, "--traces", str(tmp_path)]
        )
        # A SetupError is what the entry point shows in one line.
        assert isinstance(done.exception, TraceError), (jobs, done.exception)
        assert "AzureLLMInferenceTrace_conv.csv: cannot be read" in str(done.exception), jobs


def _row(
    cell: Cell, seed: int, ours_s: float, theirs_s: float, other: str = "round_robin"
) -> Played:
    def figures(p95_s: float) -> Figures:
        return Figures(
            num_requests=1, mean_s=p95_s, p50_s=p95_s, p95_s=p95_s, p99_s=p95_s, ttft_p50_s=1.0,
            ttft_p95_s=1.0, usd=1.0, usd_per_kchar=1.0, slo_share=1.0, failed_share=0.0,
            explored_share=0.0, cached_share=0.0, cached_of_ideal=None, load_over_fair=1.0,
            oscillations_per_10min=0.0, deadline_misses=0,
        )  # fmt: skip

    return Played(
        cell=cell,
        seed=seed,
        workload="made up",
        figures={"fastest": figures(ours_s), other: figures(theirs_s)},
    )
