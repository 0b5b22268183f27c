"""Our backend beside vLLM on one machine, one model and the same prompts: `make compare-vllm`.

    make compare-vllm ARGS="--ours http://127.0.0.1:8100/v1 --vllm http://127.0.0.1:8000/v1"

Both run already, or `--start-ours` and `--start-vllm` name their commands. Greedy, the end of the
text ignored. Each round asks both the same questions, in alternating order, behind a line that no
round before had, so that no prefix is found again. Ratios are taken question by question.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from backend.cli.environment import Environment
from backend.cli.measuring.asking import Answer
from backend.cli.measuring.http_client import Address
from backend.cli.measuring.load import Played
from backend.cli.measuring.own_server import running
from backend.cli.measuring.questions import Question, read_questions
from backend.cli.measuring.report import answer_row, number, table
from backend.cli.measuring.summary import decode_rate
from backend.errors import SetupError
from tests.bench.peers.comparing import Spread, failures, paired_ratios, round_ratios, total_rate
from tests.bench.peers.engines import ServerEngine, gsm8k_questions, model_at

OURS, VLLM = "ours", "vLLM"
DEFAULT_URLS = {OURS: "http://127.0.0.1:8100/v1", VLLM: "http://127.0.0.1:8000/v1"}
HOW_TO_START = {
    OURS: "looprouter-backend serve MODEL --port 8100",
    VLLM: "vllm serve MODEL --port 8000",
}
START_S = 1800.0  # weights of a large model, and vLLM captures graphs
WARM_UP_TOKENS = 8
REFUSED = 3


@dataclass(slots=True)
class Level:
    """One concurrency: the rounds of each engine, answers in the order of the questions."""

    concurrency: int
    rounds: dict[str, list[Played]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        with contextlib.ExitStack() as stack:
            engines = [stack.enter_context(engine(name, options)) for name in (OURS, VLLM)]
            questions = _questions(options)
            levels = measure(engines, questions, options)
    except SetupError as error:
        print(f"not compared: {error}", file=sys.stderr)
        return REFUSED
    print(report(engines, levels, options))
    if options.json is not None:
        _write(options, engines, levels)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in (OURS, VLLM):
        flag = name.lower()
        parser.add_argument(f"--{flag}", default=DEFAULT_URLS[name], help=f"URL of {name}")
        parser.add_argument(f"--start-{flag}", default="", metavar="COMMAND", help="on that port")
    parser.add_argument("--questions", type=Path, help="JSON lines with `prompt`; else GSM8K's")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--requests", type=int, default=64, help="a round, or the concurrency if larger"
    )
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--to-the-end", action="store_true", help="answers end where they end")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if min(options.rounds, options.requests, options.max_tokens, *options.concurrency) < 1:
        parser.error("--rounds, --requests, --max-tokens and --concurrency are at least 1")
    return options


@contextlib.contextmanager
def engine(name: str, options: argparse.Namespace) -> Iterator[ServerEngine]:
    """One that answers. Raises SetupError that says how to start it."""
    address = Address.parse(getattr(options, name.lower()))
    command = getattr(options, f"start_{name.lower()}")
    with contextlib.ExitStack() as stack:
        process_id = 0
        if command:
            child = running(shlex.split(command), address.port, os.environ, start_s=START_S)
            process_id = stack.enter_context(child).process_id
        try:
            model = model_at(address)
        except SetupError as error:
            raise SetupError(
                f"{name} is not reachable: {error}; start it ({HOW_TO_START[name]}), say where it "
                f"is with --{name.lower()} URL, or give its command with --start-{name.lower()}"
            ) from error
        yield ServerEngine(
            name, name == OURS, process_id, address, model, is_eos_ignored=not options.to_the_end
        )


def _questions(options: argparse.Namespace) -> list[Question]:
    if options.questions is not None:
        return read_questions(options.questions)
    return gsm8k_questions(Environment.read())


def measure(
    engines: Sequence[ServerEngine], questions: Sequence[Question], options: argparse.Namespace
) -> list[Level]:
    """Raises SetupError if an answer fails: figures of a server in trouble compare nothing."""
    levels, numbers = [], itertools.count(1)
    for concurrency in options.concurrency:
        level = Level(concurrency, {each.name: [] for each in engines})
        warm = asked_in(next(numbers), questions, concurrency)
        for each in engines:
            _play(each, warm, WARM_UP_TOKENS, concurrency)
        for idx in range(options.rounds):
            asked = asked_in(next(numbers), questions, max(options.requests, concurrency))
            for each in engines if idx % 2 == 0 else engines[::-1]:
                played = _play(each, asked, options.max_tokens, concurrency)
                level.rounds[each.name].append(played)
            print(f"{concurrency} at once, round {idx + 1}", file=sys.stderr, flush=True)
        levels.append(level)
    return levels


def asked_in(number: int, questions: Sequence[Question], count: int) -> list[Question]:
    """`count` questions, each with a name of its own, behind a line of this round alone."""
    chosen = itertools.islice(itertools.cycle(questions), count)
    return [
        Question(f"{number}.{place}", f"(Question {place} of round {number}.)\n{each.text}")
        for place, each in enumerate(chosen, 1)
    ]


def _play(
    engine: ServerEngine, asked: Sequence[Question], max_tokens: int, concurrency: int
) -> Played:
    played = engine.ask_at_once(asked, max_tokens, concurrency)
    failed = failures(played.answers)
    if failed:
        raise SetupError(f"{engine.name} failed {len(failed)} of {len(asked)}: {failed[0]}")
    by_name = {each.question: each for each in played.answers}
    return replace(played, answers=[by_name[each.name] for each in asked])


def report(
    engines: Sequence[ServerEngine], levels: Sequence[Level], options: argparse.Namespace
) -> str:
    ours, theirs = engines
    ending = "to their ends" if options.to_the_end else "the end of the text ignored"
    notes = [
        f"ours: {ours.model} at {ours.address.url}; vLLM: {theirs.model} at {theirs.address.url}.",
        f"Greedy, at most {options.max_tokens} tokens, {ending}; {options.rounds} rounds a level, "
        "the same questions to both.",
    ]
    if ours.model != theirs.model:
        notes.append("The two names differ: make sure that it is one model in one number format.")
    return "\n\n".join(
        ["### Ours beside vLLM", " ".join(notes), main_table(levels), ratios(levels)]
    )


def main_table(levels: Sequence[Level]) -> str:
    head = (
        "at once", "engine", "requests", "TTFT ms [quartiles]", "p95", "tok/s a stream [quartiles]",
        "total tok/s [quartiles]", "output tokens",
    )  # fmt: skip
    return table(
        head,
        [
            [str(level.concurrency), name, *engine_row(rounds)]
            for level in levels
            for name, rounds in level.rounds.items()
        ],
    )


def engine_row(rounds: Sequence[Played]) -> list[str]:
    answers = [each for played in rounds for each in played.answers]
    waits_s = [wait for each in answers if (wait := each.stamps.ttft_any_s) is not None]
    wait = Spread.of(waits_s)
    rate = Spread.of([rate for each in answers if (rate := decode_rate(each)) is not None])
    total = Spread.of([total_rate(each) for each in rounds])
    return [
        str(len(answers)),
        wait.shown(1e3) if wait else "–",
        number(float(np.quantile(waits_s, 0.95)) * 1e3) if waits_s else "–",
        rate.shown() if rate else "–",
        total.shown() if total else "–",
        str(sum(each.num_tokens for each in answers)),
    ]


def ratios(levels: Sequence[Level]) -> str:
    """Ours over vLLM, above 1 being ours faster but for the time to the first token."""
    head = ("at once", "total tok/s", "tok/s a stream", "95 % of its median", "TTFT", "same text")
    rows = []
    for level in levels:
        ours, theirs = (_answers(level.rounds[name]) for name in (OURS, VLLM))
        stream = Spread.of(paired_ratios(ours, theirs))
        total = round_ratios(level.rounds[OURS], level.rounds[VLLM])
        wait = Spread.of(wait_ratios(ours, theirs))
        num_same = sum(a.text == b.text for a, b in zip(ours, theirs, strict=True))
        rows.append(
            [
                str(level.concurrency),
                total.shown() if total else "–",
                stream.shown() if stream else "–",
                stream.interval() if stream else "–",
                wait.shown() if wait else "–",
                f"{num_same}/{len(ours)}",
            ]
        )
    return "Ours over vLLM, question by question [quartiles]:\n\n" + table(head, rows)


def wait_ratios(ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[float]:
    pairs = [(a.stamps.ttft_any_s, b.stamps.ttft_any_s) for a, b in zip(ours, theirs, strict=True)]
    return [a / b for a, b in pairs if a is not None and b]


def _answers(rounds: Sequence[Played]) -> list[Answer]:
    return [each for played in rounds for each in played.answers]


def _write(
    options: argparse.Namespace, engines: Sequence[ServerEngine], levels: Sequence[Level]
) -> None:
    written: Mapping[str, Any] = {
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": {name: str(value) for name, value in vars(options).items()},
        "engines": {each.name: {"url": each.address.url, "model": each.model} for each in engines},
        "levels": [
            {
                "concurrency": level.concurrency,
                "rounds": {
                    name: [
                        {
                            "wall_s": played.wall_s,
                            "answers": [
                                {**answer_row(str(level.concurrency), each), "text": each.text}
                                for each in played.answers
                            ],
                        }
                        for played in rounds
                    ]
                    for name, rounds in level.rounds.items()
                },
                "total": _as_data(round_ratios(level.rounds[OURS], level.rounds[VLLM])),
            }
            for level in levels
        ],
    }
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")


def _as_data(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)


if __name__ == "__main__":
    sys.exit(main())
