"""Scripts go by exit codes, and with --json by nothing but JSON."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
import structlog

from gateway.cli import main

# Longer than `make check` may take; `make test` runs it.
pytestmark = pytest.mark.slow

GOOD = "version: 1\nproviders: {groq: {}}\nmodels: {m: [{provider: groq, model: x}]}\n"
BAD = "version: 1\nproviders: {groq: {colour: red}}\n"
CASES = "version: 1\npolicy: good.yaml\ncases: [{name: c, request: {model: m}, expect: %s}]\n"
FILES = (
    ("good.yaml", GOOD),
    ("bad.yaml", BAD),
    ("request.json", "{}"),
    ("hello.json", '{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}'),
    ("passing.yaml", CASES % "{refused: unpriced}"),
    ("failing.yaml", CASES % "{endpoint: groq/x}"),
    ("misspelt.yaml", CASES % "{endpiont: groq/x}"),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`looprouter ARGS…` in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("LOOPROUTER_HOME", str(tmp_path / "home"))
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def looprouter(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["looprouter", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield looprouter
    # `serve` sets the logs up for the process, with this test's standard error.
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("policy", "validate", "good.yaml"), 0),
        (("policy", "validate", "bad.yaml"), 1),
        (("policy", "import", "bad.yaml"), 1),
        (("policy", "explain", "good.yaml", "request.json"), 1),
        (("policy", "test", "passing.yaml"), 0),
        (("policy", "test", "failing.yaml"), 1),
        (("policy", "test", "misspelt.yaml"), 3),
        (("policy", "simulate", "good.yaml"), 3),
        (("policy", "simulate", "good.yaml", "--since", "a while"), 2),
        (("policy", "shadow", "--url", "http://127.0.0.1:1"), 3),
        (("keys", "rotate", "nosuch"), 1),
        (("keys", "budget", "a lot"), 1),
        (("ledger", "report", "--tenant", "nosuch"), 1),
        (("ledger", "verify"), 0),
        (("policy", "validate", "nosuch.yaml"), 2),
        (("keys", "frobnicate"), 2),
        (("serve", "--policy", "nosuch.yaml"), 3),
        (("serve", "--policy", "bad.yaml"), 3),
    ],
)
def test_exit_code(run, arguments: tuple[str, ...], code: int) -> None:  # type: ignore[no-untyped-def]
    found, out, err = run(*arguments)

    assert found == code
    # A test that fails is an answer, told where one that passes is.
    is_answer = code == 0 or "failing.yaml" in arguments
    assert (out if is_answer else err).strip()


def test_with_json_the_output_is_json_also_when_the_answer_is_no(run) -> None:  # type: ignore[no-untyped-def]
    for arguments in (
        ("policy", "validate", "good.yaml"),
        ("policy", "validate", "bad.yaml"),
        ("policy", "import", "good.yaml"),
        ("policy", "import", "bad.yaml"),
        ("policy", "explain", "good.yaml", "request.json"),
        ("policy", "test", "passing.yaml"),
        ("policy", "test", "failing.yaml"),
        ("keys", "create", "--budget-usd", "1234567.891"),
        ("keys", "list"),
        ("ledger", "report"),
        ("ledger", "verify"),
        ("providers", "list"),
        ("db", "upgrade"),
    ):
        json.loads(run(*arguments, "--json")[1])


def test_a_policy_test_that_fails_says_what_was_expected_and_what_came(run) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = run("policy", "test", "failing.yaml")

    assert "FAIL  c → refused: unpriced" in out
    assert "expected endpoint groq/x, but the request is refused: unpriced" in out
    assert out.endswith("0 passed, 1 failed\n")


def test_budgets_are_listed_to_the_last_cent(run) -> None:  # type: ignore[no-untyped-def]
    run("keys", "create", "--budget-usd", "1234567.891")

    assert "$1234567.891/total" in run("keys", "list")[1]


def test_a_surface_that_is_none_is_told_with_all_that_are(run) -> None:  # type: ignore[no-untyped-def]
    code, _, said = run("policy", "explain", "good.yaml", "request.json", "--surface", "chatt")

    assert code == 1
    for surface in ("chat", "completions", "responses", "embeddings", "messages", "count_tokens"):
        assert surface in said
    assert "…" not in said


@pytest.mark.parametrize(
    "command",
    [
        "keys list",
        "serve --policy good.yaml --port 0",
        "db upgrade",
        "policy explain good.yaml hello.json",
    ],
)
def test_a_database_that_does_not_answer_is_told_in_one_line(
    run,
    monkeypatch: pytest.MonkeyPatch,
    command: str,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setenv("LOOPROUTER_DATABASE_URL", "postgresql://u:secret@127.0.0.1:1/x")
    code, _, said = run(*command.split())

    assert code == 3
    assert said.count("\n") == 1
    assert said.startswith("looprouter: cannot open the database postgresql+asyncpg://u:***@")
    assert "ConnectionRefusedError" in said
    assert "LOOPROUTER_DATABASE_URL" in said


def test_a_probe_that_costs_is_not_sent_where_nobody_can_be_asked(
    run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "k")
    with (tmp_path / "nothing").open("w+") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        code, _, said = run("providers", "probe", "good.yaml")

    assert code == 2
    assert "--yes" in said
    assert "Aborted" not in said
