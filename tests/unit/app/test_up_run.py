"""What `looprouter up` does to the demo's policy once somebody else has changed it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app import up_run
from gateway.app.own_backend import MODEL
from gateway.app.up import Choice, SimulatedProviders, command_here, greeting
from gateway.settings import Settings
from gateway.simulator.demo import demo_policy_yaml, demo_profiles


def test_a_changed_demo_policy_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {profile.name: 18_000 + idx for idx, profile in enumerate(demo_profiles())}
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(
        SimulatedProviders, "start", lambda _free_port: SimulatedProviders(ended, ports)
    )
    path, said = tmp_path / "demo-policy.yaml", list[str]()
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(tmp_path)})
    run = up_run.UpRun(settings, Choice(path, is_demo=True), say=said.append)
    run.start_providers(lambda port: port)

    run._write_policy(8100)  # its own text may be replaced
    joined = path.read_text()
    edited = joined + "# mine\n"
    path.write_text(edited)
    run._write_policy(None)

    assert MODEL in joined
    assert path.read_text() == edited
    assert said[-1] == f"{path} was changed, so it is not written anew for {MODEL}"


def test_a_later_start_says_how_to_get_a_lost_password_and_where_the_commands_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "bin/looprouter-of-a-checkout"
    here.parent.mkdir()
    here.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(here), "up"])
    outside = command_here()
    monkeypatch.setenv("PATH", str(here.parent))
    told = greeting(
        base_url="http://h", key="lr-k", is_new=False, is_demo=True, model="m", command=outside
    )

    assert outside == str(here)
    assert command_here() == "looprouter"
    assert f"{here} admins reset NAME" in told
    assert f"commands     {here} --help" in told


def test_the_demo_policy_says_that_a_start_writes_it_anew() -> None:
    text = demo_policy_yaml({profile.name: 1 for profile in demo_profiles()})

    assert "Each start of `looprouter up` writes this file anew" in text
