"""Answers of several engines to the same questions, set side by side, question by question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.load import Played
from backend.cli.measuring.report import number, table
from backend.cli.measuring.summary import decode_rate
from gateway.stats.bootstrap import bootstrap_interval, row_quantiles

SEED = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles, and the 95 % interval of the median (None from one value)."""

    median: float
    low_quartile: float
    high_quartile: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        first, median, third = (float(each) for each in np.quantile(values, (0.25, 0.5, 0.75)))
        if len(values) < 2:
            return cls(median, first, third, None, None, 1)
        rng = np.random.default_rng(SEED)
        found = bootstrap_interval(values, rng, statistic=row_quantiles(0.5), level=0.95)
        return cls(median, first, third, found.low, found.high, len(values))

    def shown(self, factor: float = 1.0) -> str:
        low, high = number(self.low_quartile * factor), number(self.high_quartile * factor)
        return f"{number(self.median * factor)} [{low}..{high}]"

    def interval(self) -> str:
        if self.low is None or self.high is None:
            return "–"
        return f"{number(self.low)}..{number(self.high)}"


Singles = dict[str, list[Answer]]  # engine → answers in the order of the questions
Rounds = dict[str, list[Played]]  # engine → rounds in the order in which they were played
Processor = dict[str, list[float]]  # engine → seconds of processor time, answer by answer


def failures(answers: Sequence[Answer]) -> list[str]:
    return [f"{each.question}: {each.failure}" for each in answers if each.failure]


def singles_table(singles: Singles, processor: Processor) -> str:
    rows = []
    for name, answers in singles.items():
        rates = Spread.of([rate for each in answers if (rate := decode_rate(each)) is not None])
        waits = Spread.of([wait for each in answers if (wait := each.stamps.ttft_any_s)])
        busy = Spread.of(
            [
                spent_s / each.num_tokens
                for spent_s, each in zip(processor[name], answers, strict=True)
            ]
        )
        rows.append(
            [
                name,
                str(len(answers)),
                rates.shown() if rates else "–",
                waits.shown(1e3) if waits else "–",
                busy.shown(1e3) if busy else "–",
                str(sum(each.usage.input_total for each in answers if each.usage)),
                str(sum(each.num_tokens for each in answers)),
            ]
        )
    head = (
        "engine", "n", "decode tok/s [quartiles]", "TTFT ms [quartiles]", "CPU ms a token",
        "prompt", "output",
    )  # fmt: skip
    return table(head, rows)


def paired_ratios(ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[float]:
    """Decode rates, question by question, where both have one."""
    pairs = [(decode_rate(a), decode_rate(b)) for a, b in zip(ours, theirs, strict=True)]
    return [a / b for a, b in pairs if a is not None and b is not None]


def ratios_table(
    singles: Singles, processor: Processor, our_names: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Ours over every other: decode rate, time to first token, processor time; also as data."""
    rows, data = [], {}
    for name in our_names:
        for peer, answers in singles.items():
            if peer in our_names:
                continue
            decode = Spread.of(paired_ratios(singles[name], answers))
            wait = Spread.of(
                [
                    a.stamps.ttft_any_s / b.stamps.ttft_any_s
                    for a, b in zip(singles[name], answers, strict=True)
                    if a.stamps.ttft_any_s and b.stamps.ttft_any_s
                ]
            )
            busy = Spread.of(
                [a / b for a, b in zip(processor[name], processor[peer], strict=True) if b > 0]
            )
            if decode is None or wait is None or busy is None:
                continue
            pair = f"{name} / {peer}"
            rows.append([pair, decode.shown(), decode.interval(), wait.shown(), busy.shown()])
            data[pair] = {
                "decode": asdict(decode),
                "ttft": asdict(wait),
                "processor": asdict(busy),
            }
    head = ("pair", "decode [quartiles]", "95 % of the median", "TTFT", "CPU time")
    return table(head, rows), data


def total_rate(played: Played) -> float:
    return sum(each.num_tokens for each in played.answers if not each.failure) / played.wall_s


def rounds_table(
    rounds: Rounds, processor: Processor, singles: Singles
) -> tuple[str, dict[str, Any]]:
    """Many streams at once; `same text`: share equal to this engine's own answer when alone."""
    rows, data = [], {}
    for name, all_played in rounds.items():
        answers = [each for played in all_played for each in played.answers]
        waits = [wait for each in answers if (wait := each.stamps.ttft_any_s) is not None]
        totals = Spread.of([total_rate(each) for each in all_played])
        rates = Spread.of([rate for each in answers if (rate := decode_rate(each)) is not None])
        busy_s = sum(processor[name]) / sum(each.num_tokens for each in answers)
        same, known = same_texts(answers, singles.get(name, []))
        p50_s, p95_s = (float(np.quantile(waits, q)) if waits else None for q in (0.5, 0.95))
        rows.append(
            [
                name,
                f"{len(all_played)} x {len(all_played[0].answers)}",
                totals.shown() if totals else "–",
                rates.shown() if rates else "–",
                number(p50_s * 1e3) if p50_s is not None else "–",
                number(p95_s * 1e3) if p95_s is not None else "–",
                number(busy_s * 1e3),
                f"{same}/{known}",
            ]
        )
        data[name] = {
            "total_per_s": asdict(totals) if totals else None,
            "decode_per_s": asdict(rates) if rates else None,
            "ttft_p50_s": p50_s,
            "ttft_p95_s": p95_s,
            "processor_s_per_token": busy_s,
            "same_texts": same,
            "known_texts": known,
        }
    head = (
        "engine", "rounds x requests", "total tok/s", "decode tok/s a stream", "TTFT p50 ms",
        "p95", "CPU ms a token", "same text as alone",
    )  # fmt: skip
    return table(head, rows), data


def same_texts(answers: Sequence[Answer], alone: Sequence[Answer]) -> tuple[int, int]:
    """How many answers equal this engine's own to the same question, of how many that have one."""
    known = {each.question: each.text for each in alone if not each.failure}
    both = [each for each in answers if each.question in known and not each.failure]
    return sum(each.text == known[each.question] for each in both), len(both)


def round_ratios(ours: Sequence[Played], theirs: Sequence[Played]) -> Spread | None:
    return Spread.of([total_rate(a) / total_rate(b) for a, b in zip(ours, theirs, strict=True)])
