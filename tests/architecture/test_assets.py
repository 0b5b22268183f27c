"""The dashboard's browser libraries: pinned by hash, copied only when they are what was pinned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deploy import build_assets
from deploy.build_assets import SOURCE, AssetsMissing, copy_files, is_current, wanted_files


def _modules(folder: Path) -> Path:
    """A node_modules with the files that were built, as npm would lay them out."""
    for name, of in wanted_files().items():
        path = folder / of["from"]
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(build_assets.TARGET / name, path)
    return folder


def test_lock_pins_exactly_what_is_asked_for_by_hash_and_names_no_host() -> None:
    asked = json.loads((SOURCE / "package.json").read_text())["dependencies"]
    text = (SOURCE / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    found = {name.removeprefix("node_modules/"): of for name, of in packages.items() if name}

    assert {name: of["version"] for name, of in found.items()} == asked
    assert all(of["integrity"].startswith("sha512-") for of in found.values())
    assert "://" not in text
    assert {of["from"].split("/")[0] for of in wanted_files().values()} == asked.keys()


def test_files_built_are_exactly_the_wanted_ones() -> None:
    assert is_current(), "run: make setup (it brings the dashboard's browser libraries)"


def test_copy_replaces_all_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "assets"
    target.mkdir()
    (target / "old.js").write_text("stale")

    copy_files(_modules(tmp_path / "modules"), target)

    assert is_current(target)


def test_changed_file_is_refused_and_nothing_is_copied(tmp_path: Path) -> None:
    modules = _modules(tmp_path / "modules")
    with (modules / wanted_files()["htmx.min.js"]["from"]).open("a") as handle:
        handle.write("\nalert(1)")

    with pytest.raises(AssetsMissing, match=r"htmx\.min\.js"):
        copy_files(modules, tmp_path / "assets")

    assert not (tmp_path / "assets").exists()
    assert not is_current(tmp_path / "assets")


def test_without_npm_the_build_says_so_and_fails_only_when_strict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_npm(target: Path = build_assets.TARGET) -> None:
        raise AssetsMissing("there is no npm")

    monkeypatch.setattr(build_assets, "is_current", lambda: False)
    monkeypatch.setattr(build_assets, "build", no_npm)

    assert build_assets.main([]) == 0
    assert build_assets.main(["--strict"]) == 1
    assert "goes without charts and live filters: there is no npm" in capsys.readouterr().err
