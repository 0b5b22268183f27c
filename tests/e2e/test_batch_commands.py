"""`looprouter batch …` against a running gateway: its happy ways, and one line for each refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.batch_books import assert_each_once, question_lines
from tests.support.batch_world import ENDED, BatchWorld, batch_world, chat_line, joined_lines
from tests.support.gateway_process import cli_environ, free_port
from tests.support.gateway_world import rows_of, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchWorld]:
    with batch_world(tmp_path_factory.mktemp("commands")) as world:
        yield world


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(joined_lines(question_lines(30, ("gpt",))))
    return path


def run(world: BatchWorld, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """One command as someone would type it, address and key in the environment."""
    known = {"LOOPROUTER_URL": world.base_url, "LOOPROUTER_API_KEY": world.key, **environ}
    return subprocess.run(
        [sys.executable, "-m", "gateway", "batch", *map(str, arguments)],
        env=cli_environ(world.gateway.home, known),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def done(world: BatchWorld, *arguments: object) -> str:
    result = run(world, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(world: BatchWorld, *arguments: object, code: int = 1, **environ: str) -> str:
    """The one line that it says, of usage (2) the box; nothing on standard output."""
    result = run(world, *arguments, **environ)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    said = result.stderr.strip()
    if code != 2:
        assert said.startswith("looprouter: ")
        assert len(said.splitlines()) == 1, said
    return said


def test_a_file_is_planned_submitted_watched_listed_and_fetched(
    world: BatchWorld, questions: Path, tmp_path: Path
) -> None:
    planned = json.loads(done(world, "plan", questions, "--json"))
    assert (planned["lines"], planned["is_feasible"], planned["refusal"]) == (30, True, None)
    assert sum(each["lines"] for each in planned["lanes"]) == 30

    watched = run(world, "submit", questions, "--deadline", "2h", "--watch", "--json")
    assert watched.returncode == 0, watched.stderr
    batch = json.loads(watched.stdout)
    assert batch["status"] == "completed"
    assert batch["completion_window"] == "2h"
    assert watched.stderr.startswith(batch["id"])

    assert batch["id"] in [each["id"] for each in json.loads(done(world, "list", "--json"))]
    assert batch["id"] in done(world, "list", "--limit", "1")
    shown = done(world, "show", batch["id"])
    assert "30 of 30 (30 succeeded)" in shown
    assert f"output    {batch['output_file_id']}" in shown

    (path,) = done(world, "fetch", batch["id"], "--out", tmp_path / "answers").splitlines()
    assert Path(path).parent == tmp_path / "answers"
    assert_each_once([json.loads(line) for line in Path(path).read_text().splitlines()], 30)


def test_a_plan_leaves_no_file_and_spends_nothing(world: BatchWorld, questions: Path) -> None:
    def left() -> list[Any]:
        files = httpx.get(f"{world.v1}/files", headers=world.gateway.headers).json()["data"]
        booked = rows_of(world.gateway.home, "SELECT COUNT(*) AS n FROM attempts")
        made = rows_of(world.gateway.home, "SELECT COUNT(*) AS n FROM batches")
        return [files, booked, made]

    ended = ", ".join(f"'{each}'" for each in ENDED)
    unended = f"SELECT 1 FROM batches WHERE state NOT IN ({ended})"
    wait_until(lambda: not rows_of(world.gateway.home, unended), "earlier tests' batches to end")
    before = left()
    said = done(world, "plan", questions)
    assert "at-once/gpt-sim#standard" in said
    assert "below list price" in said
    assert left() == before
    cheap = run(world, "plan", questions, "--max-cost", "0.0000001")
    assert cheap.returncode == 1
    assert "more than max_cost $0.0000001" in cheap.stderr
    assert "at-once/gpt-sim#standard" in cheap.stdout  # what it would have been
    assert left() == before


def test_a_plan_beyond_the_keys_budget_is_warned_of(world: BatchWorld, questions: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "gateway", "keys", "create", "--budget-usd", "0.000001", "--json"],
        env=cli_environ(world.gateway.home, {}),
        capture_output=True,
        check=True,
    )
    key = json.loads(made.stdout)["key"]
    warned = "warning: the key's total budget has $0.000001 left of $0.000001, and this plan costs"
    for command in ("plan", "submit"):
        told = run(world, command, questions, LOOPROUTER_API_KEY=key)
        assert told.returncode == 0, told.stderr
        assert told.stderr.startswith(warned)
        assert run(world, command, questions).stderr == ""


def test_a_cancelled_batch_says_what_became_of_its_lines(world: BatchWorld, tmp_path: Path) -> None:
    path = tmp_path / "slow.jsonl"
    path.write_bytes(joined_lines([chat_line(f"s-{at}", "slow", "Tell.") for at in range(40)]))
    made = json.loads(done(world, "submit", path, "--json"))
    said = done(world, "cancel", made["id"])
    assert "cancelling" in said or "cancelled" in said


def test_refusals_are_one_line_each(world: BatchWorld, questions: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(questions.read_text() + "{}\n")
    assert "line 31: custom_id must be" in refused(world, "submit", broken)
    assert "line 31: custom_id must be" in refused(world, "plan", broken)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "the file has no lines" in refused(world, "submit", empty)
    assert "use 24h, or a time from 10m to 7d" in refused(
        world, "submit", questions, "--deadline", "9m"
    )
    assert "give dollars from 0" in refused(world, "submit", questions, "--max-cost", "much")
    for command in ("show", "cancel", "fetch"):
        assert "there is no batch 'batch_none' of yours" in refused(world, command, "batch_none")


def test_a_gateway_that_is_away_and_a_wrong_key_are_told_apart(
    world: BatchWorld, questions: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for command in (("submit", questions), ("plan", questions), ("list",), ("show", "batch_x")):
        said = refused(world, *command, code=3, LOOPROUTER_URL=url)
        assert "start it (looprouter up), or mend --url" in said
    assert "key" in refused(world, "list", LOOPROUTER_API_KEY="lr-wrong")


def test_wrong_usage_exits_2(world: BatchWorld, tmp_path: Path) -> None:
    assert "Invalid value for" in refused(world, "submit", tmp_path / "none.jsonl", code=2)
    assert "--limit" in refused(world, "list", "--limit", "101", code=2)


def test_a_batch_without_files_cannot_be_fetched_yet(world: BatchWorld, tmp_path: Path) -> None:
    path = tmp_path / "slow.jsonl"
    path.write_bytes(joined_lines([chat_line(f"w-{at}", "slow", "Tell.") for at in range(20)]))
    made = json.loads(done(world, "submit", path, "--json"))
    said = refused(world, "fetch", made["id"], "--out", tmp_path / "none")
    assert f"{made['id']} has no files yet; it is in_progress" in said
    assert not (tmp_path / "none").exists()
    done(world, "cancel", made["id"])
