"""How much a start loads and costs; bounds on time are ten times what is measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway_process import cli_environ, start_gateway
from tests.support.gateway_world import issue_key

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CPU_S_MAX = 15.0
POLICY = """
version: 1
providers:
  local: {api: openai, base_url: "http://127.0.0.1:9/v1", network: private}
models:
  chat:
    - {provider: local, model: m, price: {input: 1, output: 1}}
"""
# Each costs a tenth of a second or more, and none is needed to serve a policy with stated prices.
LATER = {"alembic", "mako", "jinja2", "genai_prices", "pydantic", "redis", "asyncpg", "torch"}
# What a command that only prints its help can do without.
NOT_FOR_HELP = {"sqlalchemy", "litestar", "httpx", "uvicorn", "numpy", "structlog"}


def packages_in(import_times: str) -> set[str]:
    """Top-level packages in the output of `python -X importtime`."""
    return {
        found.group(1).partition(".")[0]
        for found in re.finditer(r"^import time:.*\| +(\S+)$", import_times, re.MULTILINE)
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_second_start_loads_only_what_serving_needs(tmp_path: Path) -> None:
    key = issue_key(tmp_path)  # brings the schema up to date
    gateway = start_gateway(POLICY, tmp_path, key=key, environ={"PYTHONPROFILEIMPORTTIME": "1"})
    spent_s = cpu_s(gateway.process.pid)
    assert gateway.stop() == 0, gateway.log()[-2000:]

    loaded = packages_in(gateway.log())
    assert {"sqlalchemy", "litestar", "httpx"} <= loaded
    assert not loaded & LATER
    assert spent_s < CPU_S_MAX


def test_help_loads_no_server() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "--help"],
        env={**cli_environ(Path("unused")), "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "looprouter up" in done.stdout
    assert not packages_in(done.stderr) & (NOT_FOR_HELP | LATER)
