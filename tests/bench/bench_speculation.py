"""What each draft method is worth on a real model: the same questions with and without drafts.

    looprouter-backend models fetch smollm2
    python tests/bench/bench_speculation.py --llama-server PATH/llama-server

Held-out GSM8K questions, greedy, one at a time, to the end of the answer. Each method has a server
of its own; every question goes to each of them with drafts, to one of them without, and to
llama.cpp plain and with its own lookup, in an order that turns. Ratios are taken question by
question; answers that run in circles are set apart, since they flatter every method.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from backend.cli.environment import Environment
from backend.cli.measuring import machine
from backend.cli.measuring.asking import Answer
from backend.cli.measuring.questions import Question
from backend.cli.measuring.report import answer_row, number, table
from backend.cli.measuring.speculating import is_identical, is_looping
from backend.cli.measuring.summary import decode_rate
from backend.cli.model_store import ModelStore
from backend.errors import SetupError
from tests.bench.peers.comparing import Spread, paired_ratios
from tests.bench.peers.engines import ServerEngine, gsm8k_questions, llama_cpp, ours

METHODS = ("ngram", "eagle3", "dflash", "dspark", "dspark+ngram")
HEADS = METHODS[1:4]
PLAIN: dict[str, object] = {"off": True}
# llama.cpp's own drafts by lookup: short ones, which were its best here, and its defaults.
LLAMA_LOOKUPS: dict[str, tuple[str, ...]] = {
    "lookup 3, 4 drafts": (
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"),
        *("--spec-ngram-simple-size-m", "4", "--spec-draft-n-max", "4"),
    ),
    "lookup 12, 48 drafts": ("--spec-type", "ngram-simple"),
}
HEAD_BEST, HEAD_GOAL, HEAD_OTHER = 1.6, 2.0, 1.3  # over plain; on answers that do not loop
RATE_LEAST, RATE_GOAL = 200.0, 330.0  # tokens a second


@dataclass(slots=True)
class Pair:
    """One engine's answers with its drafts, and the same questions without."""

    drafted: list[Answer] = field(default_factory=list)
    plain: list[Answer] = field(default_factory=list)

    @property
    def num_identical(self) -> int:
        return sum(map(is_identical, self.drafted, self.plain))

    def ratios(self, loops: bool | None = None) -> Spread | None:
        chosen = [
            index
            for index, each in enumerate(self.plain)
            if loops is None or is_looping(each.text) is loops
        ]
        return Spread.of(
            paired_ratios([self.drafted[i] for i in chosen], [self.plain[i] for i in chosen])
        )


@dataclass(slots=True)
class Found:
    threads: int
    pairs: dict[str, Pair] = field(default_factory=dict)
    load_averages: list[float] = field(default_factory=list)
    bandwidth: list[machine.Bandwidth] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Contenders:
    """Of one maker: `plain`, and what it drafts with; they may be one server asked in two ways."""

    plain: ServerEngine
    drafting: dict[str, ServerEngine]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    environment = Environment.read()
    try:
        model = ModelStore(environment.models_folder).choose("smollm2").path
    except SetupError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 0
    questions = gsm8k_questions(environment)[: options.questions]
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    found = Found(options.threads)
    with contextlib.ExitStack() as stack:
        contenders = list(_contenders(stack, model, options))
        _note_machine(found)
        for each in contenders:
            each.plain.ask(questions[-1], 32)  # a warm-up
            for name, engine in each.drafting.items():
                found.pairs[name] = Pair()
                engine.ask(questions[-1], 32)
        for index, question in enumerate(questions):
            _ask_all(found, contenders, question, index, options.max_tokens)
            print(f"question {index + 1} of {len(questions)}", file=sys.stderr, flush=True)
    _note_machine(found)
    print(_report(found))
    if options.json is not None:
        _write(options, began_at, found)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, help="of a native build of llama.cpp")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--drafts", type=int, default=0, help="a round; 0: the method's default")
    parser.add_argument("--draft", action="append", default=[], metavar="METHOD=FOLDER")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def _contenders(
    stack: contextlib.ExitStack, model: Path, options: argparse.Namespace
) -> Iterator[Contenders]:
    folders = dict(each.split("=", 1) for each in options.draft)
    drafting: dict[str, ServerEngine] = {}
    for method in options.methods:
        serve = ["--speculation", method]
        serve += ["--drafts", str(options.drafts)] if options.drafts else []
        serve += ["--draft", folders[method]] if method in folders else []
        engine = stack.enter_context(ours(model, "int8", options.threads, serve))
        drafting[f"ours {method}"] = replace(engine, is_eos_ignored=False)
    plain = replace(next(iter(drafting.values())), extra={"speculation": PLAIN})
    yield Contenders(plain, drafting)
    if options.llama_server is None:
        print("llama.cpp is left out; give --llama-server PATH", file=sys.stderr)
        return
    arguments = (options.llama_server, model, options.threads, 1)
    llama_plain = replace(stack.enter_context(llama_cpp(*arguments)), is_eos_ignored=False)
    lookups = {
        f"llama.cpp {name}": replace(
            stack.enter_context(llama_cpp(*arguments, more)), is_eos_ignored=False
        )
        for name, more in LLAMA_LOOKUPS.items()
    }
    yield Contenders(llama_plain, lookups)


def _ask_all(
    found: Found, contenders: Sequence[Contenders], question: Question, index: int, tokens: int
) -> None:
    """In an order that turns, so that what else the machine does meets all of them."""
    for each in contenders if index % 2 == 0 else list(reversed(contenders)):
        engines = {"": each.plain, **each.drafting}
        order = list(engines) if index % 4 < 2 else list(reversed(engines))
        answers = {name: engines[name].ask(question, tokens) for name in order}
        for name, answer in answers.items():
            if answer.failure:
                raise SystemExit(f"{name or 'plain'}, {question.name}: {answer.failure}")
            if name:
                found.pairs[name].drafted.append(answer)
                found.pairs[name].plain.append(answers[""])


def _note_machine(found: Found) -> None:
    found.bandwidth.append(machine.measure_bandwidth(found.threads))
    found.load_averages.append(machine.load_average())


def _report(found: Found) -> str:
    rows = []
    for name, pair in found.pairs.items():
        whole, loops, others = (pair.ratios(each) for each in (None, True, False))
        rows.append(
            [
                name,
                _rate(pair.plain),
                _rate(pair.drafted),
                _shown(whole),
                _shown(others),
                _shown(loops),
                f"{pair.num_identical}/{len(pair.plain)}",
            ]
        )
    head = (
        "engine", "plain tok/s", "drafting tok/s", "speed-up [95 %] n", "not looping", "looping",
        "same text",
    )  # fmt: skip
    loads = ", ".join(number(each) for each in found.load_averages)
    speeds = ", ".join(f"{each.median_bytes_per_s / 1e9:.1f}" for each in found.bandwidth)
    return "\n\n".join(
        [
            f"## {found.threads} thread{'s' if found.threads > 1 else ''}",
            f"Memory read {speeds} GB/s, load average {loads} (before, after).",
            table(head, rows),
            "\n".join(_verdicts(found)),
        ]
    )


def _verdicts(found: Found) -> list[str]:
    """What is asked for and whether it was seen: of the best head, and of what is the default."""
    heads = [name for name in found.pairs if name.split()[-1] in HEADS]
    heads.sort(key=lambda name: spread.median if (spread := found.pairs[name].ratios()) else 0.0)
    default = f"ours {METHODS[-1]}"
    chosen = heads[-1:] + ([default] if default in found.pairs else [])
    return [line for name in chosen for line in (*_bounds(found, name), *_over_peers(found, name))]


def _bounds(found: Found, name: str) -> Iterator[str]:
    pair = found.pairs[name]
    rate = Spread.of([each for a in pair.drafted if (each := decode_rate(a)) is not None])
    for what, value, least, goal in (
        ("over plain", pair.ratios(), HEAD_BEST, HEAD_GOAL),
        ("over plain, not looping", pair.ratios(False), HEAD_OTHER, HEAD_OTHER),
        ("tok/s", rate, RATE_LEAST, RATE_GOAL),
    ):
        if value is not None:
            met, reached = (
                "met" if value.median >= bound else "not met" for bound in (least, goal)
            )
            yield (
                f"- {name} {what}: {value.median:.2f}; at least {least}: {met}; goal {goal}: "
                f"{reached}"
            )


def _over_peers(found: Found, name: str) -> Iterator[str]:
    ours_drafted = found.pairs[name].drafted
    for peer, pair in found.pairs.items():
        if peer.startswith("llama.cpp"):
            for half, answers in (("plain", pair.plain), (peer.split(" ", 1)[1], pair.drafted)):
                ratio = Spread.of(paired_ratios(ours_drafted, answers))
                if ratio is not None:
                    yield f"- {name} / llama.cpp {half}: {ratio.median:.2f}x ({ratio.interval()})"


def _rate(answers: Sequence[Answer]) -> str:
    spread = Spread.of([each for answer in answers if (each := decode_rate(answer)) is not None])
    return spread.shown() if spread else "–"


def _shown(spread: Spread | None) -> str:
    return f"{spread.median:.2f} ({spread.interval()}) {spread.n}" if spread else "–"


def _write(options: argparse.Namespace, began_at: str, found: Found) -> None:
    def data(pair: Pair) -> dict[str, Any]:
        halves = {"drafted": pair.drafted, "plain": pair.plain}
        whole = pair.ratios()
        return {
            "speed_up": asdict(whole) if whole else None,
            "identical": pair.num_identical,
            **{
                name: [{**answer_row("1", each), "text": each.text} for each in answers]
                for name, answers in halves.items()
            },
        }

    written = {
        "began_at": began_at,
        "machine": machine.describe_machine(),
        "options": {name: str(value) for name, value in vars(options).items()},
        "pairs": {name: data(pair) for name, pair in found.pairs.items()},
    }
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
