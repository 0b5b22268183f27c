"""A head says which target it was made for, and is not used with another by mistake."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from backend.errors import BadCheckpoint, SetupError
from backend.speculate.heads.identity import (
    IDENTITY_FILE,
    HeadIdentity,
    TargetIdentity,
    check_identity,
    read_identity,
    write_identity,
)

TARGET = TargetIdentity("sha256:" + "a" * 64, "sha256:" + "b" * 64, has_thinking=True, name="tiny")
HEAD = HeadIdentity(
    method="eagle3",
    target_name="tiny-1",
    weights=("sha256:" + "9" * 64, TARGET.weights),
    text=(TARGET.text,),
    thinking="off",
    acceptance={"math": 0.71, "chat": 0.44},
    notes={"data": "300k tokens of its own answers", "epochs": 3},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_identity(tmp_path, HEAD)

    assert read_identity(tmp_path) == HEAD
    assert check_identity(tmp_path, TARGET) == HEAD
    assert [each.name for each in tmp_path.iterdir()] == [IDENTITY_FILE]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": "sha256:" + "c" * 64}, "its weights are sha256:999.*here they are sha256:ccc"),
        ({"text": "sha256:" + "d" * 64}, "its tokenizer and template are sha256:bbb.*sha256:ddd"),
        ({"has_thinking": False}, "its thinking mode is off, the template here has none"),
    ],
)
def test_another_target_is_refused_unless_forced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, object], said: str
) -> None:
    write_identity(tmp_path, HEAD)
    other = replace(TARGET, name="tiny-2", **changes)

    with pytest.raises(SetupError, match=f"made for tiny-1, not for tiny-2: {said}"):
        check_identity(tmp_path, other)
    with caplog.at_level(logging.WARNING):
        assert check_identity(tmp_path, other, is_forced=True) == HEAD
    assert "used all the same" in caplog.text


def test_without_thinking_both_must_be_without(tmp_path: Path) -> None:
    write_identity(tmp_path, replace(HEAD, thinking="none"))

    check_identity(tmp_path, replace(TARGET, has_thinking=False))
    with pytest.raises(SetupError, match="thinking mode is none, the template here has a switch"):
        check_identity(tmp_path, TARGET)


def test_others_heads_say_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert check_identity(tmp_path, TARGET) is None
    assert "watch its acceptance" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"thinking": "maybe"},
        {"weights": None},
        {"acceptance": {"math": "much"}},
        {"notes": 3},
    ],
)
def test_a_spoilt_file_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write_identity(tmp_path, HEAD)
    file = tmp_path / IDENTITY_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    with pytest.raises(BadCheckpoint, match=IDENTITY_FILE):
        read_identity(tmp_path)
