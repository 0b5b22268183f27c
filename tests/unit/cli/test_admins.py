"""`looprouter admins` as someone at the gateway's machine uses it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gateway.cli import cli
from gateway.dashboard.passwords import PasswordChecker
from gateway.errors import InvalidRequest
from gateway.store.admins import find_admin
from gateway.store.engine import Store
from tests.support.gateway_world import in_store, run_cli, settings_of


def is_right(home: Path, name: str, password: str) -> bool:
    async def work(store: Store) -> bool:
        async with store.read() as connection:
            found = await find_admin(connection, name)
        assert found is not None
        return await PasswordChecker().is_right(found[1], password)

    return bool(in_store(settings_of(home), work))


def test_admins_are_made_listed_reset_and_shut_out(tmp_path: Path) -> None:
    made = run_cli("admins", "create", "Ada", "--role", "owner", home=tmp_path)
    run_cli("admins", "create", "grace", home=tmp_path)
    reset = run_cli("admins", "reset", "ada", home=tmp_path)
    shut_out = run_cli("admins", "disable", "grace", home=tmp_path)
    let_in = run_cli("admins", "disable", "grace", "--undo", home=tmp_path)
    listed = run_cli("admins", "list", home=tmp_path)

    assert made["name"] == "ada"
    assert made["password"] != reset["password"]
    assert not is_right(tmp_path, "ada", made["password"])
    assert is_right(tmp_path, "ada", reset["password"])
    assert shut_out["disabled_at"] is not None
    assert let_in["disabled_at"] is None
    assert [(row["name"], row["role"]) for row in listed] == [("ada", "owner"), ("grace", "viewer")]
    assert all({"password", "password_hash"}.isdisjoint(row) for row in listed)


def test_a_password_is_asked_for_and_the_last_owner_stays(tmp_path: Path) -> None:
    env = {"LOOPROUTER_HOME": str(tmp_path)}
    typed = "typed by a person\n"
    asked = CliRunner().invoke(
        cli, ["admins", "create", "ada", "--role", "owner", "--ask"], input=typed * 2, env=env
    )
    short = CliRunner().invoke(cli, ["admins", "create", "eve", "--ask"], input="x\nx\n", env=env)
    alone = CliRunner().invoke(cli, ["admins", "disable", "ada"], env=env)

    assert asked.exit_code == 0, asked.output
    assert "typed by a person" not in asked.output
    assert is_right(tmp_path, "ada", "typed by a person")
    assert isinstance(short.exception, InvalidRequest)
    assert "12 to 256" in str(short.exception)
    assert isinstance(alone.exception, InvalidRequest)
    assert "only owner" in str(alone.exception)
