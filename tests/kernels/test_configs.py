"""Tuned values: the op's default, the file's over it, and files that say nothing unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kernels.ops import configs
from kernels.ops.launching import UnsupportedOnTargetError, recording
from kernels.specs import BY_NAME
from kernels.targets import BY_ARCH
from kernels.tools.recipes import launches_of, recipes
from tests.support.source_tree import ROOT

TUNED = ROOT / "kernels/ops/tuned"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for kernels/ops."""
    (tmp_path / "tuned").mkdir()
    monkeypatch.setattr(configs, "files", lambda package: tmp_path)
    configs._of.cache_clear()
    yield tmp_path / "tuned"
    configs._of.cache_clear()


def test_without_a_file_the_default_serves(folder: Path) -> None:
    with recording("gfx942"):
        assert configs.tuned("rms_norm", "H4096", {"warps": 4}) == {"warps": 4}


def test_file_of_the_chip_overrides_what_it_names(folder: Path) -> None:
    (folder / "gfx942.json").write_text(json.dumps({"rms_norm": {"H4096": {"warps": 8}}}))
    default = {"warps": 4, "stages": 2}

    with recording("gfx942"):
        assert configs.tuned("rms_norm", "H4096", default) == {"warps": 8, "stages": 2}
        assert configs.tuned("rms_norm", "H512", default) == default
        assert configs.tuned("gated_mul", "H4096", default) == default
    with recording("gfx950"):
        assert configs.tuned("rms_norm", "H4096", default) == default
    assert default == {"warps": 4, "stages": 2}


def test_value_that_the_op_does_not_have_is_refused(folder: Path) -> None:
    (folder / "gfx942.json").write_text(json.dumps({"rms_norm": {"H4096": {"wraps": 8}}}))

    with (
        recording("gfx942"),
        pytest.raises(ValueError, match=r"gfx942\.json: rms_norm H4096 sets wraps"),
    ):
        configs.tuned("rms_norm", "H4096", {"warps": 4})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON"),
        ("[]", "it must map ops to sizes to values"),
        ('{"swiglu": {}}', "there is no op 'swiglu'; the table has rms_norm, "),
        ('{"rms_norm": 3}', "rms_norm must map sizes to values"),
        ('{"rms_norm": {"H4096": {"warps": "8"}}}', "rms_norm H4096 must map names to whole"),
        ('{"rms_norm": {"H4096": {"warps": true}}}', "rms_norm H4096 must map names to whole"),
        ('{"rms_norm": {"H4096": 8}}', "rms_norm H4096 must map names to whole numbers"),
    ],
)
def test_broken_file_is_refused_and_says_how_to_mend_it(folder: Path, text: str, why: str) -> None:
    (folder / "gfx942.json").write_text(text)

    with recording("gfx942"), pytest.raises(ValueError, match=re.escape(why)) as refused:
        configs.tuned("rms_norm", "H4096", {"warps": 4})
    assert str(refused.value).startswith("gfx942.json is no file of tuned values: ")
    assert "Mend or remove it" in str(refused.value)


def test_values_that_are_tried_stand_in_for_the_file_and_questions_are_heard(
    folder: Path,
) -> None:
    (folder / "gfx942.json").write_text(json.dumps({"rms_norm": {"H4096": {"warps": 8}}}))
    default = {"warps": 4}

    with recording("gfx942"), configs.asking() as asked:
        with configs.trying({"rms_norm": {"H4096": {"warps": 2}}}):
            assert configs.tuned("rms_norm", "H4096", default) == {"warps": 2}
            assert configs.tuned("rms_norm", "H512", default) == default
        with configs.trying({}):
            assert configs.tuned("rms_norm", "H4096", default) == default
        assert configs.tuned("rms_norm", "H4096", default) == {"warps": 8}

    assert [each.sizes for each in asked] == ["H4096", "H512", "H4096", "H4096"]
    assert asked[0] == configs.Question("rms_norm", "H4096", default)


def strangers(folder: Path) -> list[str]:
    """Chips and ops that a folder of tuned files names and that do not exist."""
    return [
        f"{path.name} {op}"
        for path in folder.glob("*.json")
        for op in json.loads(path.read_text())
        if path.stem not in BY_ARCH or op not in BY_NAME
    ]


def test_tuned_files_name_chips_and_ops_that_exist(tmp_path: Path) -> None:
    (tmp_path / "gfx942.json").write_text('{"rms_norm": {}, "swiglu": {}}')
    (tmp_path / "gfx1.json").write_text('{"rms_norm": {}}')

    assert sorted(strangers(tmp_path)) == ["gfx1.json rms_norm", "gfx942.json swiglu"]
    assert strangers(TUNED) == []


def test_ops_ask_by_the_names_that_files_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Asked(dict[str, dict[str, dict[str, int]]]):
        def get(self, op: str, default: object = None) -> dict[str, dict[str, int]]:  # type: ignore[override]  # all that `tuned` calls
            return Sizes(op)

    class Sizes(dict[str, dict[str, int]]):
        def __init__(self, op: str) -> None:
            self.op = op

        def get(self, sizes: str, default: object = None) -> dict[str, int]:  # type: ignore[override]  # all that `tuned` calls
            asked.append((self.op, sizes))
            return {}

    monkeypatch.setattr(configs, "_of", lambda arch: Asked())
    every = recipes(["gfx950"], is_main_only=True) + recipes(["gfx950"], ops=["linear_weight_only"])
    for recipe in every:
        with suppress(UnsupportedOnTargetError):
            launches_of(recipe)

    assert {op for op, _ in asked} <= set(BY_NAME)
    assert {"paged_attention", "linear_int8", "linear_fp8", "moe_matmul"} <= {op for op, _ in asked}
    kinds = {sizes.split()[0] for op, sizes in asked if op == "linear_weight_only"}
    assert {"int8", "int4"} <= kinds
