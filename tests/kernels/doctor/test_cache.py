"""Verdicts on disk: whole or not at all, and anew when they cannot be read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kernels.doctor import cache as cache_module
from kernels.doctor.cache import VerdictCache
from kernels.doctor.verdict import Key, OpReport, Outcome, Verdict

KEY = Key(
    arch="gfx942", driver="amdgpu 6.8.5", torch="2.13.0+rocm7.1", triton="3.7.1",
    version="0.1.0+abc", shapes="main cases bfloat16",
)  # fmt: skip


def verdict(key: Key = KEY, reason: str = "so") -> Verdict:
    report = OpReport(op="sample", outcome=Outcome.HUNG, reason=reason, cases=("greedy",))
    return Verdict(key=key, chip="MI300X", host="Linux", reports=(report,))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "deeper" / "folder")
    assert cache.read(KEY) is None
    written = verdict()
    cache.write(written)

    assert cache.read(KEY) == written
    assert [path.name for path in cache.folder.iterdir()] == [cache.path_of(KEY).name]
    assert cache.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("field", ["arch", "driver", "torch", "triton", "version", "shapes"])
def test_any_other_value_of_the_key_is_unknown(tmp_path: Path, field: str) -> None:
    cache = VerdictCache(tmp_path)
    cache.write(verdict())

    assert cache.read(msgspec.structs.replace(KEY, **{field: "another"})) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"reports": 3}', b"\xff\xfe", b" " * ((1 << 20) + 1)]
)
def test_broken_file_is_as_good_as_none(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = VerdictCache(tmp_path)
    cache.path_of(KEY).write_bytes(content)

    assert cache.read(KEY) is None
    assert "is not a verdict" in caplog.text
    cache.write(verdict())
    assert cache.read(KEY) is not None


def test_file_of_another_format_or_key_is_not_taken(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    older = msgspec.structs.replace(verdict(), format=0)
    cache.path_of(KEY).write_bytes(msgspec.json.encode(older))
    assert cache.read(KEY) is None

    other = msgspec.structs.replace(KEY, arch="gfx950")
    cache.path_of(KEY).write_bytes(msgspec.json.encode(verdict(other)))
    assert cache.read(KEY) is None


def test_failed_write_leaves_the_old_one_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = VerdictCache(tmp_path)
    cache.write(verdict())

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write(verdict(reason="newer"))

    kept = cache.read(KEY)
    assert kept is not None
    assert kept.withheld == {"sample": "hung: so"}
    assert len(list(tmp_path.iterdir())) == 1


def test_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "VERDICTS_KEPT", 3)
    cache = VerdictCache(tmp_path)
    for number in range(6):
        cache.write(verdict(msgspec.structs.replace(KEY, driver=f"amdgpu {number}")))

    assert len(list(tmp_path.glob("verdict-*.json"))) == 3
    assert cache.read(msgspec.structs.replace(KEY, driver="amdgpu 5")) is not None
