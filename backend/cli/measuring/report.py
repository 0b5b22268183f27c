"""The result as Markdown for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.machine import Bandwidth, Machine
from backend.cli.measuring.speculating import Paired, Rounds
from backend.cli.measuring.summary import Figure, Summary, decode_rate

FORMAT = 1
SPARSE_EVENTS = 0.8  # a token; below it, waiting for an event is not waiting for a token


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run of `bench` found."""

    format: int = FORMAT
    began_at: str  # UTC, ISO 8601
    url: str
    model: str
    server: list[str]  # the command of a server started for this run; empty: it was there
    settings: dict[str, Any]
    machine: Machine
    load_before: float
    load_after: float
    bandwidth: list[Bandwidth]  # before and after
    levels: list[Summary]
    answers: list[dict[str, Any]]
    rounds: dict[str, list[Rounds]] = {}  # by load, as the server counted them
    paired: dict[str, Paired] = {}  # by load, where each question was asked plainly as well


def answer_row(load: str, answer: Answer) -> dict[str, Any]:
    """One answer without its text."""
    stamps = answer.stamps
    return {
        "load": load,
        "question": answer.question,
        "failure": answer.failure,
        "ttft_s": stamps.ttft_any_s,
        "whole_s": stamps.whole_s,
        "output_tokens": answer.num_tokens,
        "prompt_tokens": answer.usage.input_total if answer.usage is not None else None,
        "cached_tokens": answer.usage.cached_read if answer.usage is not None else None,
        "decode_per_s": decode_rate(answer),
        "finish": answer.finish,
    }


def markdown(run: Run) -> str:
    """Tables that can be pasted into an issue."""
    parts = [
        f"### {run.model} at {run.url}",
        "",
        table(
            (
                "load", "requests", "failed", "output tok/s", "decode tok/s [quartiles]",
                "TTFT p50 ms", "p95", "inter-token p50 ms", "p95", "prompt tokens", "cached",
            ),
            [_main_row(each) for each in run.levels],
        ),
        "",
        "95 % intervals (bootstrap over answers) and what they rest on:",
        "",
        table(
            ("load", "n", "decode tok/s", "TTFT p50 ms", "p95", "inter-token p50 ms", "p95"),
            [_interval_row(each) for each in run.levels],
        ),
        "",
        *_speculation(run),
        *_notes(run),
    ]  # fmt: skip
    return "\n".join(parts)


def _speculation(run: Run) -> list[str]:
    parts = []
    if run.rounds:
        rounds_head = (
            "load", "method, work", "rounds", "tokens a round", "accepted of drafted",
            "by place (of at risk)", "round cost in plain steps", "speed-up by the server",
        )  # fmt: skip
        rows = [_rounds_row(load, each) for load, found in run.rounds.items() for each in found]
        parts += ["Drafts, as the server counted them:", "", table(rounds_head, rows), ""]
    if run.paired:
        paired_head = (
            "load", "pairs", "decode rate to plain", "looping answers", "others", "same text",
        )  # fmt: skip
        rows = [_paired_row(load, each) for load, each in run.paired.items()]
        parts += ["Each question asked with and without drafts, medians of ratios:", ""]
        parts += [table(paired_head, rows), ""]
    return parts


def _rounds_row(load: str, rounds: Rounds) -> list[str]:
    places = [
        f"{accepted / at_risk:.2f} ({at_risk:,})"
        for accepted, at_risk in zip(rounds.num_accepted, rounds.num_at_risk, strict=True)
        if at_risk
    ]
    return [
        load,
        f"{rounds.method}, {rounds.workload}",
        f"{rounds.num_drafts:,}",
        f"{rounds.tokens_a_round:.2f}",
        f"{rounds.acceptance_rate:.2f}",
        " ".join(places),
        number(rounds.round_cost),
        number(rounds.speed_up),
    ]


def _paired_row(load: str, paired: Paired) -> list[str]:
    def shown(figure: Figure | None) -> str:
        spread = _interval(figure)
        count = f", n {figure.n}" if figure is not None else ""
        return _value(figure) + (f" [{spread}{count}]" if figure is not None else "")

    return [
        load,
        str(paired.num_pairs),
        shown(paired.ratio),
        shown(paired.looping_ratio),
        shown(paired.other_ratio),
        f"{paired.num_identical} of {paired.num_compared}",
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column left, figures right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Three digits that mean something: 0.123, 1.23, 12.3, 123, 1,234."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def _main_row(level: Summary) -> list[str]:
    quartiles = level.decode_quartiles_per_s
    spread = f" [{number(quartiles[0])}..{number(quartiles[1])}]" if quartiles else ""
    return [
        level.load,
        str(level.num_requests),
        str(level.num_failed),
        number(level.output_tokens_per_s),
        _value(level.decode_per_s) + spread,
        _value(level.ttft_p50_s, 1e3),
        _value(level.ttft_p95_s, 1e3),
        _value(level.gap_p50_s, 1e3),
        _value(level.gap_p95_s, 1e3),
        f"{level.prompt_tokens:,}",
        f"{level.cached_tokens:,}",
    ]


def _interval_row(level: Summary) -> list[str]:
    return [
        level.load,
        str(level.num_requests - level.num_failed),
        _interval(level.decode_per_s),
        _interval(level.ttft_p50_s, 1e3),
        _interval(level.ttft_p95_s, 1e3),
        _interval(level.gap_p50_s, 1e3),
        _interval(level.gap_p95_s, 1e3),
    ]


def _value(figure: Figure | None, factor: float = 1.0) -> str:
    return number(figure.value * factor) if figure is not None else "–"


def _interval(figure: Figure | None, factor: float = 1.0) -> str:
    if figure is None or figure.low is None or figure.high is None:
        return "–"
    return f"{number(figure.low * factor)}..{number(figure.high * factor)}"


def _notes(run: Run) -> list[str]:
    machine = run.machine
    speeds = "; ".join(
        f"{each.num_threads} threads {each.median_bytes_per_s / 1e9:.1f} GB/s "
        f"(best {each.best_bytes_per_s / 1e9:.1f})"
        for each in run.bandwidth
    )
    where = "" if run.server else " (the client's; the server was not started here)"
    notes = [
        f"Machine{where}: {machine.cpu}, {machine.num_cores} cores, "
        f"{machine.memory_bytes / 1e9:.0f} GB, {machine.system}, Python {machine.python}, "
        f"torch {machine.torch}.",
        f"Memory read before and after: {speeds or 'not measured'}. Load average "
        f"{run.load_before:.1f} before, {run.load_after:.1f} after.",
        "Settings: " + ", ".join(f"{name} {value}" for name, value in run.settings.items()) + ".",
    ]
    if run.server:
        notes.append(f"Server: `{' '.join(run.server)}`.")
    for level in run.levels:
        notes += [f"{level.load}: {count} × {why}" for why, count in level.failures.items()]
        if level.decode_refused:
            reasons = ", ".join(f"{count} {why}" for why, count in level.decode_refused.items())
            notes.append(f"{level.load}: streams without a decode rate: {reasons}.")
        if level.events_per_token is not None and level.events_per_token < SPARSE_EVENTS:
            notes.append(
                f"{level.load}: {1 / level.events_per_token:.1f} tokens an event, so inter-token "
                "times are those of events."
            )
        if not level.is_usage_known:
            notes.append(f"{level.load}: the server counts no tokens; events were counted.")
    return [f"- {note}" for note in notes]
