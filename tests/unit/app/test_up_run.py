"""What `looprouter up` does to the demo's policy once somebody else has changed it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app import up_run
from gateway.app.own_backend import MODEL
from gateway.app.up import Choice, SimulatedProviders
from gateway.settings import Settings
from gateway.simulator.demo import demo_profiles


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
