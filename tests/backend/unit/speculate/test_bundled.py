"""Heads that come with the package: found by the target's weights, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend.errors import SetupError
from backend.models.fingerprint import weights_fingerprint
from backend.speculate.bundled import FOLDER, bundled_heads, choose
from backend.speculate.heads.identity import HeadIdentity, read_identity, write_identity
from tests.support.tiny_checkpoints import save_tiny

SIZE_BYTES_MAX = 28_000_000  # of all heads for one target


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that differ in their weights only."""
    made = tmp_path_factory.mktemp("targets")
    for seed, name in enumerate(("one", "other")):
        save_tiny(made / name, "llama", seed=seed)
    return made / "one", made / "other"


@pytest.fixture
def folder(tmp_path: Path, targets: tuple[Path, Path]) -> Path:
    identity = HeadIdentity(
        method="eagle3",
        target_name="one",
        weights=(weights_fingerprint(targets[0]),),
        text=("sha256:0",),
        thinking="none",
    )
    for method in ("eagle3", "dspark"):
        directory = tmp_path / "one" / method
        directory.mkdir(parents=True)
        write_identity(directory, replace(identity, method=method))
    (tmp_path / "one" / "notes").mkdir()  # no head
    return tmp_path


def test_heads_of_the_target_are_found_the_preferred_first(
    folder: Path, targets: tuple[Path, Path]
) -> None:
    assert [each.method for each in bundled_heads(targets[0], folder)] == ["dspark", "eagle3"]
    assert bundled_heads(targets[1], folder) == ()


def test_auto_takes_the_preferred_one_and_does_without_where_there_is_none(
    folder: Path, targets: tuple[Path, Path]
) -> None:
    found = choose("auto", targets[0], folder)

    assert found is not None
    assert (found.method, found.directory) == ("dspark", folder / "one" / "dspark")
    assert choose("auto", targets[1], folder) is None


def test_a_method_without_a_head_is_refused_with_what_there_is(
    folder: Path, targets: tuple[Path, Path]
) -> None:
    found = choose("eagle3", targets[0], folder)
    assert found is not None
    assert found.directory == folder / "one" / "eagle3"
    with pytest.raises(SetupError, match=r"dflash needs a head for one .*dspark, eagle3.*--draft"):
        choose("dflash", targets[0], folder)
    with pytest.raises(SetupError, match=r"none comes with this package.*train eagle3"):
        choose("eagle3", targets[1], folder)


def test_a_package_without_heads_reads_no_weights(tmp_path: Path) -> None:
    assert bundled_heads(tmp_path / "not there", tmp_path / "no folder") == ()


def test_what_comes_with_the_package_is_whole_and_small() -> None:
    """One head a method for each target, with what was measured of it."""
    for target in (each for each in FOLDER.iterdir() if each.is_dir()):
        methods = []
        for directory in (each for each in target.iterdir() if each.is_dir()):
            identity = read_identity(directory)
            assert identity is not None
            assert identity.acceptance, directory
            assert identity.notes["mean_acceptance_length"] > 1.0
            assert (directory / "model.safetensors").is_file()
            assert (directory / "config.json").is_file()
            methods.append(identity.method)
        assert sorted(methods) == ["dflash", "dspark", "eagle3"]
        size = sum(each.stat().st_size for each in target.rglob("*") if each.is_file())
        assert size <= SIZE_BYTES_MAX
