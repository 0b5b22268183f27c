"""The engines that are compared: each answers a question and says when its tokens came."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from backend.cli.bench import TENANT_HEADER
from backend.cli.environment import Environment
from backend.cli.measuring.asking import Answer, Ask, ask_once, find_model
from backend.cli.measuring.http_client import Address, HttpClient
from backend.cli.measuring.load import Level, Played, play
from backend.cli.measuring.own_server import free_port, running, serve_command, stop
from backend.cli.measuring.questions import (
    Question,
    fetch_gsm8k,
    gsm8k_path,
    read_questions,
)
from gateway.stats.timeline import Stamps
from gateway.wire.usage import Usage

CONTEXT_LEN = 1024  # of one stream
# How ours holds its weights, and the options of `serve` that say so.
OUR_MODES: dict[str, tuple[str, ...]] = {
    "int8": ("--quantization", "int8"),
    "bf16": ("--dtype", "bfloat16", "--quantization", "none"),
    "fp32": ("--dtype", "float32", "--quantization", "none"),
}
WORKER = Path(__file__).with_name("transformers_worker.py")
_numbers = itertools.count()


def gsm8k_questions(environment: Environment) -> list[Question]:
    """The 100 that `bench` asks too; fetched once."""
    path = gsm8k_path(environment.home)
    if not path.is_file():
        fetch_gsm8k(environment.home, environment.variables, lambda _: None)
    return read_questions(path)


class Engine(Protocol):
    """One that is running. `is_ours`: its ratios to all others are shown."""

    name: str
    is_ours: bool

    @property
    def process_id(self) -> int: ...

    def ask(self, question: Question, max_tokens: int) -> Answer:
        """One at a time; the end of the text is ignored, greedy."""
        ...


@dataclass(slots=True)
class ServerEngine:
    """Behind OpenAI's API."""

    name: str
    is_ours: bool
    process_id: int
    address: Address
    model: str
    extra: dict[str, object] = field(default_factory=dict)
    is_eos_ignored: bool = True

    def ask(self, question: Question, max_tokens: int) -> Answer:
        async def run() -> Answer:
            client = HttpClient(self.address)
            try:
                return await ask_once(client, self._ask(max_tokens), question)
            finally:
                await client.close()

        return asyncio.run(run())

    def ask_at_once(self, questions: Sequence[Question], max_tokens: int, streams: int) -> Played:
        """All questions once, `streams` of them in flight."""

        async def run() -> Played:
            client = HttpClient(self.address)
            level = Level(len(questions), concurrency=streams)
            try:
                return await play(
                    client, self._ask(max_tokens), level, questions, seed=1, on_done=lambda _: None
                )
            finally:
                await client.close()

        return asyncio.run(run())

    def _ask(self, max_tokens: int) -> Ask:
        # A tenant of its own: ours may not find in its cache what llama.cpp is told to forget.
        return Ask(
            model=self.model,
            max_tokens=max_tokens,
            is_eos_ignored=self.is_eos_ignored,
            timeout_s=600.0,
            headers={TENANT_HEADER: f"peers-{next(_numbers)}"},
            extra=self.extra,
        )


def processor_s(engine: Engine) -> float:
    """Seconds of processor time so far, all threads; what others do on the machine is not in it."""
    fields = Path(f"/proc/{engine.process_id}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def model_at(address: Address) -> str:
    async def run() -> str:
        client = HttpClient(address)
        try:
            return await find_model(client, {})
        finally:
            await client.close()

    return asyncio.run(run())


@contextlib.contextmanager
def ours(model: Path, mode: str, threads: int, options: Sequence[str]) -> Iterator[ServerEngine]:
    port = free_port()
    command = serve_command(
        str(model),
        port,
        (*OUR_MODES[mode], "--threads", str(threads), "--no-prefix-cache", *options),
    )
    with running(command, port, os.environ) as child:
        model_name = model_at(child.address)
        yield ServerEngine(f"ours {mode}", True, child.process_id, child.address, model_name)


@contextlib.contextmanager
def llama_cpp(
    server: Path, model: Path, threads: int, streams: int, more: Sequence[str] = ()
) -> Iterator[ServerEngine]:
    """`llama-server` of a native build, without its prompt cache."""
    port = free_port()
    command = [
        *(str(server), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--threads", str(threads), "--threads-batch", str(threads)),
        *("--parallel", str(streams), "--ctx-size", str(CONTEXT_LEN * streams)),
        *("--cache-ram", "0"),
        *more,
    ]
    with running(command, port, os.environ) as child:
        yield ServerEngine(
            "llama.cpp",
            False,
            child.process_id,
            child.address,
            model_at(child.address),
            extra={"cache_prompt": False, "top_k": 1},
        )


@dataclass(slots=True)
class WorkerEngine:
    """transformers in a process of its own, a JSON line for a question and one for its answer."""

    name: str
    is_ours: bool
    process: subprocess.Popen[bytes]

    @property
    def process_id(self) -> int:
        return self.process.pid

    def ask(self, question: Question, max_tokens: int) -> Answer:
        began_at_s = time.monotonic()
        said = self._exchange({"text": question.text, "max_tokens": max_tokens})
        times = tuple(said["times_s"])  # the monotonic clock is one for all processes
        return Answer(
            question=question.name,
            stamps=Stamps(
                dispatched_at_s=began_at_s,
                first_generated_at_s=times[0],
                first_visible_at_s=times[0],
                last_generated_at_s=times[-1],
                ended_at_s=times[-1],
                frame_stamps_s=times,
                num_frames=len(times),
            ),
            text=said["text"],
            usage=Usage(input=said["prompt_tokens"], output=len(times)),
            finish="length",
        )

    def _exchange(self, request: dict[str, object]) -> dict[str, object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(line)


@contextlib.contextmanager
def transformers(model: Path, dtype: str, threads: int) -> Iterator[WorkerEngine]:
    root = str(Path(__file__).resolve().parents[3])
    environ = {**os.environ, "PYTHONPATH": root, "USE_HUB_KERNELS": "0", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(model), dtype, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        start_new_session=True,
    )
    try:
        yield WorkerEngine(f"transformers {dtype}", False, process)
    finally:
        stop(process)
