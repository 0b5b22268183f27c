"""`make compare-vllm`: its arithmetic, and a whole run against two real servers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.load import Level as Load
from backend.cli.measuring.load import Played
from backend.cli.measuring.own_server import free_port
from backend.cli.measuring.questions import Question
from gateway.stats.timeline import Stamps
from gateway.wire.usage import Usage
from tests.bench import compare_vllm
from tests.bench.compare_vllm import REFUSED, Level, asked_in, engine_row, main, ratios, wait_ratios

NUM_TOKENS = 40


class Server(ThreadingHTTPServer):
    """OpenAI's API as far as the comparison asks of it; `tail` ends the answers to odd places."""

    daemon_threads = True

    def __init__(self, model: str, gap_s: float, tail: str = "", fails: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.gap_s, self.tail, self.fails = model, gap_s, tail, fails
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        return [each["messages"][0]["content"] for each in self.asked]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._whole(200, {"object": "list", "data": [{"id": self.server.model}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        if self.server.fails:
            self._whole(500, {"error": {"message": "CUDA error: out of memory"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        text = asked["messages"][0]["content"].split("\n")[1]
        place = int(asked["messages"][0]["content"].split()[1])
        for number in range(asked["max_tokens"]):
            time.sleep(self.server.gap_s)
            word = f"{text[number % len(text)]}{self.server.tail if place % 2 else ''}"
            self._event({"choices": [{"index": 0, "delta": {"content": word}}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        counts = {"prompt_tokens": 9, "completion_tokens": asked["max_tokens"]}
        self._event({"choices": [], "usage": counts})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, members: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(members).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _whole(self, status: int, members: dict[str, Any]) -> None:
        body = json.dumps(members).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {idx}"}) + "\n" for idx in range(3)))
    return path


def run(ours: str, vllm: str, questions: Path, *more: str) -> int:
    return main(
        [
            *("--ours", ours, "--vllm", vllm, "--questions", str(questions)),
            *("--rounds", "2", "--requests", "2", "--max-tokens", str(NUM_TOKENS), *more),
        ]
    )


@pytest.mark.slow
def test_a_whole_run_makes_the_table(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "found.json"
    with serving(Server("m", 0.01)) as ours, serving(Server("org/m", 0.03, tail="!")) as vllm:
        more = ("--concurrency", "1", "8", "--json", str(written))
        assert run(ours.url, vllm.url, questions, *more) == 0

    said = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in said.splitlines()]
    by_engine = {(row[0], row[1]): row for row in rows if len(row) == 8}
    by_level = {row[0]: row for row in rows if len(row) == 6}
    # 2 rounds of 2 questions one at a time; 8 at once make rounds of 8.
    assert by_engine["1", "ours"][2] == by_engine["1", "vLLM"][2] == "4"
    assert by_engine["8", "ours"][2] == "16"
    assert by_engine["1", "vLLM"][7] == str(4 * NUM_TOKENS)
    assert float(by_level["1"][1].split()[0]) > 1.5  # total tok/s, ours over theirs
    assert float(by_level["1"][2].split()[0]) > 1.5
    assert float(by_level["1"][4].split()[0]) < 0.9  # time to the first token
    assert (by_level["1"][5], by_level["8"][5]) == ("2/4", "8/16")
    assert "The two names differ" in said

    # Both were asked the same; no prompt came twice.
    assert sorted(ours.prompts) == sorted(vllm.prompts)
    assert len(set(ours.prompts)) == len(ours.prompts) == 4 + 16 + 1 + 8
    assert all(each["ignore_eos"] and each["temperature"] == 0.0 for each in vllm.asked)
    found = json.loads(written.read_text())
    assert [level["concurrency"] for level in found["levels"]] == [1, 8]
    assert found["engines"]["vLLM"]["model"] == "org/m"


def test_vllm_that_is_not_there_is_said_with_what_to_do(
    questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/v1"
    with serving(Server("m", 0.0)) as ours:
        assert run(ours.url, nobody, questions) == REFUSED
        assert ours.asked == []

    said = capsys.readouterr()
    assert said.out == ""
    assert "not compared: vLLM is not reachable" in said.err
    assert "vllm serve MODEL --port 8000" in said.err
    assert "--start-vllm" in said.err


def test_failed_answers_compare_nothing(
    questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Server("m", 0.0)) as ours, serving(Server("m", 0.0, fails=True)) as vllm:
        assert run(ours.url, vllm.url, questions) == REFUSED

    said = capsys.readouterr()
    assert said.out == ""
    assert "vLLM failed 1 of 1: " in said.err
    assert "CUDA error: out of memory" in said.err


def test_a_server_that_does_not_start_is_said_in_its_own_words(
    questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/v1"
    command = "sh -c 'echo no such model; exit 4'"
    assert run(nobody, nobody, questions, "--start-ours", command) == REFUSED

    assert "no such model" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--rounds", "0"), ("--concurrency", "1", "0")])
def test_wrong_numbers_are_refused(
    wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(list(wrong))

    assert refused.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def answer(name: str, wait_s: float, gap_s: float, text: str = "t", num_tokens: int = 41) -> Answer:
    times = tuple(1.0 + wait_s + gap_s * idx for idx in range(num_tokens))
    stamps = Stamps(
        dispatched_at_s=1.0,
        first_generated_at_s=times[0],
        last_generated_at_s=times[-1],
        ended_at_s=times[-1],
        frame_stamps_s=times,
        num_frames=num_tokens,
    )
    return Answer(name, stamps, text, Usage(input=60, output=num_tokens), "length")


def played(answers: list[Answer], wall_s: float) -> Played:
    return Played(Load(len(answers), concurrency=2), answers, wall_s)


def test_figures_are_those_of_hand_made_answers() -> None:
    ours = [played([answer("1", 0.1, 0.01), answer("2", 0.3, 0.01)], 2.0)]
    theirs = [played([answer("1", 0.2, 0.02), answer("2", 0.2, 0.04, text="other")], 4.0)]
    level = Level(2, {compare_vllm.OURS: ours, compare_vllm.VLLM: theirs})
    row = engine_row(ours)
    last = ratios([level]).splitlines()[-1]
    cells = [cell.strip() for cell in last.strip("| ").split("|")]

    assert row[0] == "2"
    assert row[1].startswith("200 ")  # between 100 and 300 ms
    assert row[3].startswith("100 ")
    assert row[4].startswith("41")  # 82 tokens in 2 s
    assert row[5] == "82"
    assert cells[0] == "2"
    assert cells[1].startswith("2.0")  # 41 over 20.5 tokens a second
    assert cells[2].startswith("3.0")  # between 2 and 4
    assert cells[5] == "1/2"
    assert wait_ratios(ours[0].answers, theirs[0].answers) == pytest.approx([0.5, 1.5])


def test_questions_go_round_under_names_of_their_own() -> None:
    asked = asked_in(7, [Question("a", "x"), Question("b", "y")], 3)

    assert [each.name for each in asked] == ["7.1", "7.2", "7.3"]
    assert [each.text for each in asked] == [
        "(Question 1 of round 7.)\nx",
        "(Question 2 of round 7.)\ny",
        "(Question 3 of round 7.)\nx",
    ]
