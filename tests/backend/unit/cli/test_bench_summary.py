"""Figures from known stamps, and the tables made of them."""

from __future__ import annotations

import msgspec
import pytest

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.load import Level, Played
from backend.cli.measuring.machine import Bandwidth, describe_machine, measure_bandwidth
from backend.cli.measuring.report import Run, answer_row, markdown, number, table
from backend.cli.measuring.summary import Summary, summarize
from gateway.stats.timeline import Stamps
from gateway.wire.usage import Usage


def answer(ttft_s: float, gap_s: float, num_tokens: int = 41, *, failure: str = "") -> Answer:
    times = tuple(100.0 + ttft_s + gap_s * idx for idx in range(num_tokens))
    return Answer(
        question="q",
        stamps=Stamps(
            dispatched_at_s=100.0,
            first_generated_at_s=times[0],
            first_visible_at_s=times[0],
            last_generated_at_s=times[-1],
            ended_at_s=times[-1],
            frame_stamps_s=times,
            num_frames=num_tokens,
        ),
        usage=Usage(input=60, cached_read=30, output=num_tokens),
        finish="length",
        failure=failure,
    )


def summary(*answers: Answer, wall_s: float = 10.0) -> Summary:
    return summarize(Played(Level(len(answers), concurrency=2), answers, wall_s), seed=1)


def test_figures_of_known_stamps() -> None:
    found = summary(answer(0.1, 0.01), answer(0.2, 0.02), answer(0.3, 0.02), wall_s=10.0)

    assert found.output_tokens == 123
    assert found.output_tokens_per_s == pytest.approx(12.3)
    assert (found.prompt_tokens, found.cached_tokens) == (270, 90)
    assert found.decode_per_s is not None
    assert found.decode_per_s.value == pytest.approx(50.0)
    assert found.decode_quartiles_per_s == pytest.approx((50.0, 75.0))
    assert found.ttft_p50_s is not None
    assert found.ttft_p50_s.value == pytest.approx(0.2)
    assert found.ttft_p50_s.n == 3
    assert found.ttft_p95_s is not None
    assert found.ttft_p95_s.value == pytest.approx(0.29)
    assert found.gap_p50_s is not None
    assert found.gap_p50_s.value == pytest.approx(0.02)
    assert found.gap_p50_s.n == 120
    assert found.events_per_token == pytest.approx(1.0)


def test_intervals_hold_the_figure_and_come_from_whole_answers() -> None:
    found = summary(*(answer(0.1 + 0.01 * idx, 0.01 + 0.001 * idx) for idx in range(20)))

    for figure in (found.decode_per_s, found.ttft_p50_s, found.gap_p50_s, found.gap_p95_s):
        assert figure is not None
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low < figure.value < figure.high


def test_failed_answers_count_for_nothing_else() -> None:
    bad = answer(9.0, 0.5, failure="429: full")
    found = summary(answer(0.1, 0.01), bad, bad)

    assert (found.num_requests, found.num_failed) == (3, 2)
    assert found.failures == {"429: full": 2}
    assert found.output_tokens == 41
    assert found.ttft_p50_s is not None
    assert (found.ttft_p50_s.value, found.ttft_p50_s.low) == (pytest.approx(0.1), None)


def test_a_stream_too_short_has_no_rate() -> None:
    found = summary(answer(0.1, 0.01, num_tokens=3))

    assert found.decode_per_s is None
    assert found.decode_refused == {"too_few_tokens": 1}


def test_nothing_but_failures_can_be_summed_up() -> None:
    found = summary(answer(0.1, 0.01, failure="x"))

    assert found.output_tokens_per_s == 0.0
    assert found.ttft_p50_s is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers_carry_three_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [("x", "1")]).splitlines() == ["| a | b |", "|---|---:|", "| x | 1 |"]


def a_run(*answers: Answer) -> Run:
    return Run(
        began_at="2026-01-01T00:00:00+00:00",
        url="http://127.0.0.1:1/v1",
        model="m",
        server=["-m", "backend", "serve", "m"],
        settings={"max_tokens": 8},
        machine=describe_machine(),
        load_before=0.1,
        load_after=0.2,
        bandwidth=[measure_bandwidth(1, 1 << 20)],
        levels=[summary(*answers)],
        answers=[answer_row("2 at once", each) for each in answers],
    )


def test_the_report_shows_figures_failures_and_the_machine() -> None:
    run = a_run(answer(0.1, 0.02), answer(0.2, 0.04), answer(1.0, 1.0, failure="429: full"))
    lines = markdown(run).splitlines()

    (row,) = (line for line in lines if line.startswith("| 2 at once | 3 | 1 |"))
    assert "37.5 [31." in row
    assert "| 2 at once | 2 | 25.0..50.0 |" in "\n".join(lines)
    assert "- 2 at once: 1 × 429: full" in lines
    assert any(describe_machine().cpu in line for line in lines)
    assert "- Server: `-m backend serve m`." in lines


def test_the_json_holds_every_answer() -> None:
    run = a_run(answer(0.1, 0.01), answer(0.2, 0.02))
    read = msgspec.json.decode(msgspec.json.encode(run))

    assert [each["ttft_s"] for each in read["answers"]] == pytest.approx([0.1, 0.2])
    assert read["levels"][0]["decode_per_s"]["n"] == 2
    assert read["machine"]["torch"]


def test_bandwidth_is_that_of_the_memory() -> None:
    found: Bandwidth = measure_bandwidth(1, 8 << 20)

    assert 1e8 < found.median_bytes_per_s <= found.best_bytes_per_s < 1e13
