"""`looprouter-backend bench` as a user meets it: with a live server, and when things are wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from backend.cli.bench import bench
from backend.cli.measuring.own_server import free_port, running
from backend.errors import SetupError
from gateway.simulator.profile import ProviderProfile
from tests.support.simulator_process import simulator_processes

QUESTIONS = b'{"prompt": "What is one and one?"}\n{"prompt": "And two and two?"}\n'


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(QUESTIONS)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPROUTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOOPROUTER_BACKEND_API_KEY", raising=False)
    return tmp_path / "home"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, list(arguments))


@pytest.mark.e2e
def test_a_server_is_measured(home: Path, prompts: Path, tmp_path: Path) -> None:
    profile = ProviderProfile(name="bench")
    json_path = tmp_path / "out.json"
    with simulator_processes([profile], tmp_path) as providers:
        result = invoke(
            providers["bench"].base_url,
            *("--prompts", str(prompts), "--concurrency", "1,3", "--rate", "20"),
            *("--requests", "4", "--max-tokens", "24", "--json", str(json_path)),
        )

    assert result.exit_code == 0, result.output
    read = msgspec.json.decode(json_path.read_bytes())
    assert [each["load"] for each in read["levels"]] == ["1 at once", "3 at once", "20/s"]
    assert all(each["num_failed"] == 0 for each in read["levels"])
    assert all(each["output_tokens"] > 0 for each in read["levels"])
    assert len(read["answers"]) == 12
    assert "| 3 at once | 4 | 0 |" in result.output


def test_a_server_that_is_not_there_is_named(home: Path, prompts: Path) -> None:
    result = invoke(f"http://127.0.0.1:{free_port()}", "--prompts", str(prompts))

    assert isinstance(result.exception, SetupError)
    assert "cannot connect to 127.0.0.1" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--concurrency", "1,x"), "no list of numbers"),
        (("--concurrency", "1.5"), "whole number"),
        (("--rate", "0"), "above 0"),
        (("--rate", "inf"), "above 0"),
        (("--", "--threads", "2"), "for a server that is started here"),
    ],
)
def test_wrong_usage_is_explained(home: Path, arguments: tuple[str, ...], says: str) -> None:
    result = invoke("http://127.0.0.1:1", *arguments)

    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_a_folder_that_is_missing_is_named_before_measuring(home: Path, prompts: Path) -> None:
    result = invoke("http://127.0.0.1:1", "--prompts", str(prompts), "--json", "/nowhere/o.json")

    assert isinstance(result.exception, SetupError)
    assert "/nowhere/o.json cannot be written" in str(result.exception)


def test_a_child_that_ends_says_why() -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('no such model')"]

    says = "exit code 1 before it was ready:\nno such model"
    with pytest.raises(SetupError, match=says), running(program, free_port(), {}):
        pass


def test_a_child_that_never_answers_is_stopped() -> None:
    program = [sys.executable, "-c", "import time; print('hm', flush=True); time.sleep(60)"]

    says = "not ready within 1 s; it said:\nhm"
    with pytest.raises(SetupError, match=says), running(program, free_port(), {}, start_s=1.0):
        pass
