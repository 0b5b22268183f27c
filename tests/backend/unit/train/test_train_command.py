"""`train` from end to end: prompts, answers, a head, and a server that takes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from backend.cli import main
from backend.config import DType, EngineConfig
from backend.engine.interface import EngineRequest
from backend.sampling.params import SamplingParams
from backend.serving.draft_check import target_identity
from backend.serving.loading import load_served, prepare
from backend.serving.prompting import ChatRequest
from backend.speculate.heads.identity import check_identity
from backend.train.prompts.files import read_prompts
from backend.train.trainer import STATE_FILE, Trainer
from tests.support.spelling_model import save_spelling_model

ROOT = Path(__file__).resolve().parents[4]
CONFIG = EngineConfig(
    dtype=DType.FLOAT32,
    num_threads=1,
    kv_cache_bytes=1 << 22,
    sequences_max=2,
    rows_max=64,
    context_len_max=256,
)
SMALL = (
    *("--layers", "1", "--drafts", "3", "--draft-vocabulary", "64", "--rows", "256"),
    *("--answer-tokens", "24", "--held-out", "4", "--threads", "1", "--device", "cpu"),
    *("--features", "0,1", "--dtype", "float32", "--quantization", "none"),
)
# Behind "…think…" stands another answer than behind the others.
CHATS = [f"Question {number}" for number in range(8)] + [f"Do think {n}" for n in range(8)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("command") / "spelling"
    save_spelling_model(directory)
    return directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_chats(tmp_path / "prompts.jsonl", CHATS)


def write_chats(file: Path, turns: list[str]) -> Path:
    lines = [{"messages": [{"role": "user", "content": turn}]} for turn in turns]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """As somebody at a terminal runs it."""
    return subprocess.run(
        [sys.executable, "-m", "backend", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """The same in this process: (exit code, standard output, standard error)."""
    # The group of commands hides the module of the same name.
    monkeypatch.setattr(sys.modules["backend.cli.train"], "configure_logs", lambda: None)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["looprouter-backend", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return call


def greedy(model: Path, config: EngineConfig) -> tuple[list[int], int]:
    """(an answer's tokens, drafts that were accepted on the way)."""
    loaded = load_served(model, config)
    message = {"role": "user", "content": "Question 3"}
    prompt = loaded.text.chat_prompt(ChatRequest(messages=(message,))).token_ids
    engine, tokens = loaded.engine, list[int]()
    engine.add(EngineRequest("r", prompt, SamplingParams(max_tokens=30, temperature=0.0)))
    while engine.has_work():
        tokens += [token for event in engine.step() for token in event.token_ids]
    accepted = sum(each.num_accepted_tokens for each in engine.load().speculation.figures)
    return tokens, accepted


def check_head(model: Path, head: Path, method: str) -> None:
    """It is the target's own, and an engine that serves it says the same in fewer steps."""
    prepared = prepare(model, CONFIG)
    identity = check_identity(head, target_identity(model, prepared.tokenizer))
    assert identity is not None
    assert (identity.method, identity.target_name) == (method, model.name)
    assert identity.notes["prompts"] == "prompts.jsonl"
    assert 0.0 < identity.acceptance[""] <= 1.0
    served = replace(CONFIG, proposer=method, num_drafts_max=3, draft_path=str(head))
    plain, _ = greedy(model, CONFIG)
    tokens, accepted = greedy(model, served)
    assert tokens == plain
    assert prepared.tokenizer.decode(tokens) == "Hello world, how are you?"
    assert accepted > 0


@pytest.mark.slow
def test_from_a_model_alone_to_a_head_that_is_served(model: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "heads" / "one"
    more = write_chats(tmp_path / "more.jsonl", CHATS)
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"prompt": "question, 7!"}) + "\n", encoding="utf-8")
    made = run(
        *("train", "prompts", "--target", model, "--out", prompts, "--more", more),
        *("--chat", "10", "--math", "3", "--code", "4", "--hold-out", held_out, "--threads", "1"),
    )
    assert made.returncode == 0, made.stderr
    lines = list(read_prompts(prompts))
    assert made.stdout == f"{len(lines)} prompts: {prompts}\n"
    turns = [line.messages[0]["content"] for line in lines]
    assert set(CHATS) - set(turns) == {"Question 7"}
    assert sum(line.kind == "code" for line in lines) == 4

    command = ("train", "dspark", "--target", model, "--data", prompts, "--out", out, *SMALL)
    done = run(*command, "--epochs", "12", "--learning-rate", "0.005", "--markov-rank", "4")

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("held out: ")
    assert last == f"Serve it: looprouter-backend serve {model} --speculation dspark --draft {out}"
    assert f"answered {len(lines)} of {len(lines)}, " in done.stderr
    assert (tmp_path / "heads" / "work" / "answers.jsonl").exists()
    check_head(model, out, "dspark")
    # The same command again has nothing to do, and says the same.
    again = run(*command, "--epochs", "12", "--learning-rate", "0.005", "--markov-rank", "4")
    assert again.stdout == done.stdout
    assert "going on from the training state" in again.stderr
    assert "answered" not in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle3", "dflash", "dspark"])
def test_stopped_and_gone_on_with(
    model: Path, data: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:  # fmt: skip
    """In bfloat16 and written as int8, as the command does it unless told otherwise."""

    def command(out: Path) -> list[str | Path]:
        options = SMALL[: SMALL.index("--dtype")]
        named: list[str | Path] = ["--target", model, "--data", data, "--out", out]
        more = ("--rows", "64", "--epochs", "12", "--learning-rate", "0.005", "--checkpoint", "1")
        return ["train", method, *named, *options, *more, "--int8"]

    one, other = tmp_path / "one", tmp_path / "two"
    code, shown, _ = said(*command(one))
    assert code == 0
    train, num_steps = Trainer._train, []

    def stopping(self: Trainer, *given: object) -> object:
        num_steps.append(1)
        if len(num_steps) == 5:
            raise KeyboardInterrupt
        return train(self, *given)  # type: ignore[arg-type] # as it was called

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_train", stopping)
        code, _, error = said(*command(other))
    assert code == 3
    assert error.splitlines()[-1] == (
        "looprouter-backend: stopped; the same command goes on from the last checkpoint"
    )

    code, shown_again, _ = said(*command(other))

    assert code == 0
    assert shown_again.splitlines()[0] == shown.splitlines()[0]
    for name, tensor in load_file(one / "model.safetensors").items():
        assert tensor.equal(load_file(other / "model.safetensors")[name]), name
    assert (one / STATE_FILE).exists()
    check_head(model, other, method)


def check_refused(found: tuple[int, str, str], *parts: str) -> None:
    code, out, error = found
    assert (code, out) == (3, "")
    (line,) = error.splitlines()
    assert line.startswith("looprouter-backend: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("method", "options", "parts"),
    [
        ("dspark", ["--features", "0,7"], ["layer 7 is not one of the target's 2", "0 to 1"]),
        ("eagle3", ["--layers", "3"], ["a head of 3 layers", "the target has 2"]),
        ("dspark", ["--drafts", "1"], ["2 drafts or more"]),
    ],
    ids=["features", "layers", "drafts"],
)
def test_a_head_that_cannot_be_is_refused_before_anything_is_answered(
    model: Path, data: Path, tmp_path: Path, said: Said, method: str, options: list[str],
    parts: list[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    command = ["train", method, "--target", model, "--data", data, "--out", out, *SMALL, *options]

    check_refused(said(*command), *parts)

    assert not list(tmp_path.rglob("answers.jsonl"))


@pytest.mark.parametrize("features", ["a,b", "1;2", "0,1.5"])
def test_features_that_are_no_numbers_are_wrong_usage(
    model: Path, data: Path, tmp_path: Path, said: Said, features: str
) -> None:
    code, _, error = said(
        *("train", "eagle3", "--target", model, "--data", data, "--out", tmp_path / "out"),
        *("--features", features),
    )

    assert code == 2
    assert "--features takes numbers with commas" in error
    assert not (tmp_path / "out").exists()


def test_data_that_cannot_be_used_is_named(model: Path, tmp_path: Path, said: Said) -> None:
    data = tmp_path / "prompts.jsonl"
    command = [
        "train",
        "eagle3",
        "--target",
        model,
        "--data",
        data,
        "--out",
        tmp_path / "o",
        *SMALL,
    ]

    data.write_text("")
    check_refused(said(*command), f"{data} holds no prompt; write one JSON object a line")
    data.write_text("\n \n")
    check_refused(said(*command), f"{data} holds no prompt")
    data.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n{"question": "Hi"}\n')
    check_refused(said(*command), f"{data}:2: `messages` is a list of ")


@pytest.mark.slow
def test_fewer_texts_than_are_held_out_leave_none(
    model: Path, data: Path, tmp_path: Path, said: Said
) -> None:
    command = [
        "train",
        "dflash",
        "--target",
        model,
        "--data",
        data,
        "--out",
        tmp_path / "o",
        *SMALL,
    ]

    code, out, error = said(*command, "--held-out", "16")

    assert (code, out) == (3, "")
    assert error.splitlines()[-1] == (
        "looprouter-backend: there is no text to train on; give more prompts (--data)"
    )


@pytest.mark.slow
def test_a_model_without_a_chat_template(model: Path, tmp_path: Path, said: Said) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    data = write_chats(tmp_path / "prompts.jsonl", CHATS[:2])
    out = tmp_path / "out.jsonl"

    made = said("train", "prompts", "--target", bare, "--out", out, "--threads", "1", "--code", "0")
    check_refused(made, "own turns need a chat template")
    assert not out.exists()
    command = ["train", "dspark", "--target", bare, "--data", data, "--out", tmp_path / "o", *SMALL]
    check_refused(said(*command), f"{data}:1: this model has no chat template")


def test_a_model_that_is_not_there(data: Path, tmp_path: Path, said: Said) -> None:
    for command in (
        ["train", "prompts", "--target", "no-such-model", "--out", tmp_path / "p"],
        ["train", "eagle3", "--target", "no-such-model", "--data", data, "--out", tmp_path / "o"],
    ):
        check_refused(said(*command), "there is no model 'no-such-model'")


def test_other_answers_in_the_work_folder(
    model: Path, data: Path, tmp_path: Path, said: Said
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "answers.jsonl").write_text('{"target": "sha256:0", "tokens_max": 24}\n')

    found = said(
        *("train", "eagle3", "--target", model, "--data", data, "--out", tmp_path / "o"),
        *("--work", work, *SMALL),
    )

    check_refused(found, f"{work / 'answers.jsonl'} holds answers of another target", "--work")
