"""Compiling once, keeping, and not trusting: whatever goes wrong, the reference serves."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import native
from kernels.native import build, known_answers
from kernels.native.library import Library
from tests.support.native_kernels import native_ops

# Instruction sets that every machine of its kind has.
PORTABLE = {
    "x86_64": ("-march=x86-64", "-march=x86-64-v3", "-march=x86-64-v4"),
    "aarch64": ("-march=armv8-a", "-march=armv8.2-a+dotprod"),
}
RUN_BY_ALL = {"x86_64": PORTABLE["x86_64"][:1], "aarch64": PORTABLE["aarch64"][:1]}


def refused(caplog: pytest.LogCaptureFixture, folder: Path, compiler: str | None) -> str:
    with caplog.at_level(logging.WARNING):
        assert native.load(folder, compiler=compiler) is None
    return caplog.text


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_no_compiler_is_no_kernels_and_a_reason(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert "no C++ compiler found (looked for c++-of-nowhere)" in refused(
        caplog, tmp_path, "c++-of-nowhere"
    )


def test_compiler_that_fails_is_no_kernels_and_its_own_words(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    failing = script(
        tmp_path / "cxx", 'case "$*" in --version) echo 1;; *) echo error: no >&2; false; esac'
    )

    assert "failed (1): error: no" in refused(caplog, tmp_path / "cache", failing)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_library_that_is_none_is_not_loaded(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # Writes text to wherever -o says.
    lying = script(
        tmp_path / "cxx",
        'echo 1; while [ $# -gt 1 ]; do [ "$1" = -o ] && echo x > "$2"; shift; done',
    )

    assert "the library does not load" in refused(caplog, tmp_path / "cache", lying)


def test_folder_that_others_can_write_to_is_not_trusted(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    cxx = script(tmp_path / "cxx", "echo 1")

    assert "can be written by, other users: chmod 700" in refused(caplog, tmp_path, cxx)


def test_folder_that_cannot_be_is_said(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cxx = script(tmp_path / "cxx", "echo 1")

    assert "cannot be used" in refused(caplog, tmp_path / "file/cache", cxx)


def test_sources_are_short() -> None:
    for path in build.SOURCES.iterdir():
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, path.name
        assert [line for line in lines if len(line) > 100] == [], path.name
        top = [number for number, line in enumerate(lines) if line.startswith("}")]
        begins = [number for number, line in enumerate(lines) if line[-1:] == "{"]
        for end in top:
            begin = max(
                (b for b in begins if b < end and lines[b][:1] not in (" ", "}")), default=end
            )
            assert end - begin <= 70 or lines[begin].startswith("namespace"), (path.name, begin)


@pytest.mark.compiler
def test_second_load_compiles_nothing() -> None:
    native_ops()
    path = build.library()
    written = path.stat().st_ctime_ns, path.read_bytes()

    assert build.library() == path
    assert path.read_bytes() == written[1]
    assert path.stat().st_mode & 0o022 == 0


@pytest.mark.compiler
@pytest.mark.parametrize(
    "op",
    ["linear_dense", "linear_int8", "rms_norm", "gated_mul", "rope_kv_write", "paged_attention"],
)
def test_wrong_answer_of_any_op_is_found(op: str) -> None:
    right = native_ops()

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right[op](*args, **kwargs)
        return tuple(each + 1e-3 for each in result) if type(result) is tuple else result + 1e-3

    known_answers.check(right)
    with pytest.raises(known_answers.WrongAnswer, match=f"^{op} gave"):
        known_answers.check({**right, op: wrong})


@pytest.mark.compiler
def test_threads_are_at_least_one() -> None:
    native_ops()
    for given, taken in ((3, 3), (0, 1), (-5, 1), (2, 2), (1, 1)):
        native.set_num_threads(given)
        assert {each.brief("lr_num_threads")() for each in native._loaded.values()} == {taken}


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("option", RUN_BY_ALL.get(platform.machine(), ("-O3",)))
def test_machine_without_any_extension_computes_the_same(option: str, tmp_path: Path) -> None:
    path = build.library(tmp_path, machine_options=(option,))
    plain, ours = native._ops(Library(path)), native_ops()

    known_answers.check(plain)
    random = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 300, generator=random) for n in (70, 9))
    x[2] *= 1e3
    results = [ops["linear_int8"](x, ops["pack_int8"](weight)) for ops in (plain, ours)]
    assert torch.equal(*results)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("option", PORTABLE.get(platform.machine(), ()))
def test_other_instruction_sets_compile(option: str, tmp_path: Path) -> None:
    assert build.library(tmp_path, machine_options=(option,)).stat().st_size > 10_000


@pytest.mark.compiler
@pytest.mark.slow
def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from kernels.native import build; "
        "print(build.library(pathlib.Path(sys.argv[1]), machine_options=('-O0',)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=200)[0].strip() for process in started}

    assert [process.returncode for process in started] == [0, 0]
    assert paths == {str(path) for path in tmp_path.glob("*.so")}
    assert {path.name for path in tmp_path.iterdir()} == {Path(*paths).name, "lock"}
