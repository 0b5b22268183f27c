"""Our backend beside transformers and llama.cpp on one GGUF: interleaved, equal threads.

    looprouter-backend models fetch smollm2
    python tests/bench/bench_backend_peers.py --llama-server PATH/llama-server

Greedy, 128 tokens, the end of text ignored. Every question goes to every engine before the next
one, in alternating order, so that what else the machine does meets all of them; ratios are taken
question by question. All engines are loaded all the time; those that wait sleep.
docs/backend-performance.md says how to build llama-server and how to read the result.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from backend.cli.environment import Environment
from backend.cli.measuring import machine
from backend.cli.measuring.questions import (
    Question,
)
from backend.cli.measuring.report import answer_row
from backend.cli.model_store import ModelStore
from backend.errors import SetupError
from tests.bench.peers import comparing
from tests.bench.peers.comparing import Processor, Rounds, Singles
from tests.bench.peers.engines import (
    OUR_MODES,
    Engine,
    ServerEngine,
    gsm8k_questions,
    llama_cpp,
    ours,
    processor_s,
    transformers,
)

# Ours over the peer: the least that is asked for, and what is aimed at.
DECODE_TARGETS = {"llama.cpp": (0.7, 1.2), "transformers bf16": (2.0, None)}
STREAMS_TARGET = 2.0  # total tokens a second over llama.cpp's server


@dataclass(slots=True)
class Found:
    """One thread count."""

    threads: int
    singles: Singles = field(default_factory=dict)
    singles_processor: Processor = field(default_factory=dict)
    rounds: Rounds = field(default_factory=dict)
    rounds_processor: Processor = field(default_factory=dict)
    bandwidth: list[machine.Bandwidth] = field(default_factory=list)
    load_averages: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    environment = Environment.read()
    try:
        model = options.model or ModelStore(environment.models_folder).choose("smollm2").path
        questions = gsm8k_questions(environment)
    except SetupError as error:
        # `make bench` runs everything there is; a comparison needs a model to compare with.
        print(f"not compared: {error}", file=sys.stderr)
        return 0
    if options.llama_server is None:
        print("llama.cpp is left out; give --llama-server PATH", file=sys.stderr)
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    all_found = []
    for threads in options.threads:
        found = Found(threads)
        all_found.append(found)
        _measure_singles(found, model, questions[: options.questions], options)
        if options.rounds:
            _measure_streams(found, model, questions, options)
        text, _ = _report(found, options)
        print(text, flush=True)
        if options.json is not None:
            _write(options, began_at, model, all_found)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, help="of a native build of llama.cpp")
    parser.add_argument("--model", type=Path, help="GGUF; default: the fetched smollm2")
    parser.add_argument("--modes", nargs="*", default=["int8"], choices=list(OUR_MODES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--questions", type=int, default=20, help="one at a time")
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--rounds", type=int, default=3, help="of streams; 0: none")
    parser.add_argument("--requests", type=int, default=32, help="a round")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--serve-options", default="", help="for ours, in one argument")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def _measure_singles(
    found: Found, model: Path, questions: Sequence[Question], options: argparse.Namespace
) -> None:
    with contextlib.ExitStack() as stack:
        engines: list[Engine] = [
            stack.enter_context(ours(model, mode, found.threads, options.serve_options.split()))
            for mode in options.modes
        ]
        if options.llama_server is not None:
            engines.append(
                stack.enter_context(llama_cpp(options.llama_server, model, found.threads, 1))
            )
        if not options.no_transformers:
            engines.append(stack.enter_context(transformers(model, "bf16", found.threads)))
        _note_machine(found)
        for engine in engines:
            engine.ask(questions[-1], options.max_tokens)  # a warm-up
            found.singles[engine.name], found.singles_processor[engine.name] = [], []
        for idx, question in enumerate(questions):
            for engine in engines if idx % 2 == 0 else reversed(engines):
                before_s = processor_s(engine)
                answer = engine.ask(question, options.max_tokens)
                if answer.failure:
                    raise SystemExit(f"{engine.name}, {question.name}: {answer.failure}")
                found.singles[engine.name].append(answer)
                found.singles_processor[engine.name].append(processor_s(engine) - before_s)
            print(f"{found.threads} threads, question {idx + 1}", file=sys.stderr, flush=True)
        _note_machine(found)


def _measure_streams(
    found: Found, model: Path, questions: Sequence[Question], options: argparse.Namespace
) -> None:
    asked = [questions[idx % len(questions)] for idx in range(options.requests)]
    with contextlib.ExitStack() as stack:
        engines: list[ServerEngine] = [
            stack.enter_context(ours(model, mode, found.threads, options.serve_options.split()))
            for mode in options.modes
        ]
        if options.llama_server is not None:
            engines.append(
                stack.enter_context(
                    llama_cpp(options.llama_server, model, found.threads, options.streams)
                )
            )
        for engine in engines:
            engine.ask_at_once(asked[: options.streams], 8, options.streams)  # a warm-up
            found.rounds[engine.name], found.rounds_processor[engine.name] = [], []
        for idx in range(options.rounds):
            for engine in engines if idx % 2 == 0 else engines[::-1]:
                before_s = processor_s(engine)
                played = engine.ask_at_once(asked, options.max_tokens, options.streams)
                failed = comparing.failures(played.answers)
                if failed:
                    raise SystemExit(f"{engine.name}: {len(failed)} failed; {failed[0]}")
                found.rounds[engine.name].append(played)
                found.rounds_processor[engine.name].append(processor_s(engine) - before_s)
            print(f"{found.threads} threads, round {idx + 1}", file=sys.stderr, flush=True)
        _note_machine(found)


def _note_machine(found: Found) -> None:
    found.bandwidth.append(machine.measure_bandwidth(found.threads))
    found.load_averages.append(machine.load_average())


def _report(found: Found, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    our_names = [f"ours {mode}" for mode in options.modes]
    ratios, ratio_data = comparing.ratios_table(found.singles, found.singles_processor, our_names)
    speeds = ", ".join(f"{each.median_bytes_per_s / 1e9:.1f}" for each in found.bandwidth)
    loads = ", ".join(f"{each:.1f}" for each in found.load_averages)
    parts = [
        f"## {found.threads} thread{'s' if found.threads > 1 else ''}",
        f"Memory read {speeds} GB/s, load average {loads} (before, between, after).",
        "### One stream",
        comparing.singles_table(found.singles, found.singles_processor),
        ratios,
    ]
    data: dict[str, Any] = {"ratios": ratio_data}
    if found.rounds:
        streams, data["streams"] = comparing.rounds_table(
            found.rounds, found.rounds_processor, found.singles
        )
        parts += [f"### {options.streams} streams at once", streams]
    parts.append("\n".join(_verdicts(found, our_names)))
    return "\n\n".join(parts) + "\n", data


def _verdicts(found: Found, our_names: Sequence[str]) -> list[str]:
    lines = []
    for name in our_names:
        for peer, (least, goal) in DECODE_TARGETS.items():
            if peer not in found.singles:
                continue
            ratio = comparing.Spread.of(
                comparing.paired_ratios(found.singles[name], found.singles[peer])
            )
            if ratio is None:
                continue
            aim = f", goal {goal}x: {_word(ratio.median >= goal)}" if goal else ""
            lines.append(
                f"- {name} / {peer}: {ratio.median:.2f}x; at least {least}x: "
                f"{_word(ratio.median >= least)}{aim}"
            )
        if name in found.rounds and "llama.cpp" in found.rounds:
            total = comparing.round_ratios(found.rounds[name], found.rounds["llama.cpp"])
            if total is not None:
                lines.append(
                    f"- streams at once, {name} / llama.cpp: {total.median:.2f}x "
                    f"[{total.low_quartile:.2f}..{total.high_quartile:.2f}]; at least "
                    f"{STREAMS_TARGET}x: {_word(total.median >= STREAMS_TARGET)}"
                )
    return lines


def _word(is_met: bool) -> str:
    return "met" if is_met else "not met"


def _write(
    options: argparse.Namespace, began_at: str, model: Path, all_found: Sequence[Found]
) -> None:
    written = {
        "began_at": began_at,
        "model": model.name,
        "machine": machine.describe_machine(),
        "options": {name: str(value) for name, value in vars(options).items()},
        "threads": [_as_data(found, options) for found in all_found],
    }
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")


def _as_data(found: Found, options: argparse.Namespace) -> dict[str, Any]:
    _, figures = _report(found, options)
    return {
        "threads": found.threads,
        "bandwidth": found.bandwidth,
        "load_averages": found.load_averages,
        **figures,
        "singles": {
            name: [{**answer_row("1", each), "text": each.text} for each in answers]
            for name, answers in found.singles.items()
        },
        "rounds": {
            name: [
                {
                    "wall_s": played.wall_s,
                    "answers": [answer_row("streams", each) for each in played.answers],
                }
                for played in all_played
            ]
            for name, all_played in found.rounds.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
