"""The store of fetched models, and what `serve MODEL` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.cli.model_store import ModelStore, Record, shown_size, write_record
from backend.errors import SetupError


def _record(name: str, **more: object) -> Record:
    given = {"served_name": "tiny", "source": "here", "licence": "MIT", "size_bytes": 3}
    return Record(name=name, **{**given, **more})  # type: ignore[arg-type]


def _put(store: ModelStore, name: str, file: str = "a.gguf", data: bytes = b"abc") -> None:
    with store.placing(name) as folder:
        (folder / file).write_bytes(data)
        write_record(folder, _record(name, file=file))


def test_placed_model_is_found_and_nothing_else_stays(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "home" / "models")

    _put(store, "tiny")

    [stored] = store.all()
    assert stored == store.find("tiny")
    assert stored.path.read_bytes() == b"abc"
    assert [path.name for path in store.folder.iterdir()] == ["tiny"]


def test_broken_placing_leaves_the_older_model(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    _put(store, "tiny")

    def cut_short() -> None:
        with store.placing("tiny") as folder:
            (folder / "a.gguf").write_bytes(b"half")
            raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        cut_short()

    stored = store.find("tiny")
    assert stored is not None
    assert stored.path.read_bytes() == b"abc"
    assert len(list(tmp_path.iterdir())) == 1


def test_newer_model_takes_the_older_ones_place(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    _put(store, "tiny")

    _put(store, "tiny", data=b"new")

    stored = store.find("tiny")
    assert stored is not None
    assert stored.path.read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_without_its_file_or_record_is_no_model(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    _put(store, "tiny")
    (tmp_path / "tiny" / "a.gguf").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "looprouter.json").write_text("{")

    assert store.all() == []


def test_choice_is_a_fetched_name_a_folder_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(tmp_path / "models")
    _put(store, "tiny")
    _put(store, "owner/Name-1B")
    work = tmp_path / "place"
    (work / "My-Model").mkdir(parents=True)
    (work / "tiny").mkdir()
    (work / "Other.Q4.gguf").write_bytes(b"")
    monkeypatch.chdir(work)

    assert store.choose("tiny").path == store.folder / "tiny" / "a.gguf"
    assert store.choose("tiny").served_name == "tiny"
    assert store.choose("owner/Name-1B").path == store.folder / "owner--Name-1B" / "a.gguf"
    assert store.choose("./tiny").path == work / "tiny"
    assert store.choose("My-Model").served_name == "my-model"
    assert store.choose("Other.Q4.gguf").served_name == "other.q4"


@pytest.mark.parametrize(
    "text", ["nosuch", "../models", "a/b/c", "", "owner/none", "~nobody-here", "x" * 300]
)
def test_choice_of_nothing_names_what_there_is(tmp_path: Path, text: str) -> None:
    store = ModelStore(tmp_path / "models")
    _put(store, "tiny")

    with pytest.raises(SetupError, match=r"fetched: tiny"):
        store.choose(text)


def test_room_is_checked_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="make room"):
        ModelStore(tmp_path).check_room(10**18)


def test_home_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SetupError, match="LOOPROUTER_HOME"):
        ModelStore(tmp_path / "file" / "models").check_room(1)


@pytest.mark.parametrize(
    ("size", "shown"), [(10, "0 kB"), (92_871_040, "93 MB"), (1_540_000_000, "1.5 GB")]
)
def test_sizes_are_shown_shortly(size: int, shown: str) -> None:
    assert shown_size(size) == shown
