"""The image recipe for AMD's GPUs, as far as it can be held to the tree without building it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import rich_click as click
import yaml

from backend.cli import cli
from tests.support.source_tree import ROOT

FOLDER = ROOT / "deploy/rocm"
BUILT = (FOLDER / "Containerfile").read_text()


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found["services"]["backend"]


def test_torch_and_triton_of_the_base_stay() -> None:
    """The lock names neither, the wheel comes without what it needs, and the build looks again."""
    kept = (ROOT / "requirements.lock").read_text().split("# --- below: only for tests")[0]

    assert "sed '/^# --- below: only for tests/,$d'" in BUILT
    assert not re.search(r"^(torch|triton)\b", kept, re.MULTILINE)
    assert re.search(r"^safetensors==", kept, re.MULTILINE)
    assert re.search(r"pip install [^\n]*--no-deps \S*looprouter-\*\.whl", BUILT)
    assert BUILT.count("assert torch.version.hip") == 2


def test_base_is_an_argument_and_one_for_both_files(service: dict[str, Any]) -> None:
    base = re.search(r"^ARG BASE=(\S+)$", BUILT, re.MULTILINE)

    assert base is not None
    assert service["build"]["args"]["BASE"] == f"${{BASE:-{base[1]}}}"
    assert (FOLDER / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_service_has_the_gpus_and_nothing_it_does_not_need(service: dict[str, Any]) -> None:
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "USER looprouter" in BUILT


def test_what_the_service_runs_is_a_command_with_these_options(service: dict[str, Any]) -> None:
    name, _, *options = service["command"]
    command = cli.commands[name]
    context = click.Context(command)
    known = {opt for param in command.get_params(context) for opt in param.opts}

    assert {option.split("=")[0] for option in options} <= known
    # Reached from outside of its container, so a key is a must.
    assert service["environment"]["LOOPROUTER_BACKEND_API_KEY"].startswith(
        "${LOOPROUTER_BACKEND_API_KEY:?"
    )
    assert re.search(r'^CMD \["doctor"\]$', BUILT, re.MULTILINE)
    assert "doctor" in cli.commands


def test_drain_fits_into_the_time_to_stop(service: dict[str, Any]) -> None:
    (drain,) = (each for each in cli.commands["serve"].params if each.name == "drain")

    assert float(service["stop_grace_period"].removesuffix("s")) > drain.default
