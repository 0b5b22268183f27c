"""A running gateway follows its policy: every way a file changes, a bad one, SIGHUP, and SQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.simulator.profile import ProviderProfile
from tests.support.gateway_process import RunningGateway, cli_environ, looprouter, start_gateway
from tests.support.gateway_world import (
    Client,
    chat,
    issue_key,
    rows_of,
    status_of,
    texts_of,
    wait_until,
)
from tests.support.simulator_process import (
    BRISK,
    SimulatorProcess,
    policy_over,
    simulator_processes,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FOLLOWED_S = 10.0  # it takes half a second on an idle machine
PROFILES = (
    ProviderProfile(**{**BRISK, "name": "alpha", "model": "sim"}),
    ProviderProfile(**{**BRISK, "name": "beta", "model": "sim"}),
    ProviderProfile(
        **{**BRISK, "name": "slow", "model": "sim", "tokens_per_s": 20.0, "tokens_per_event": 1}
    ),
)
MODELS = {"chat": ("alpha", "beta"), "long": ("slow",)}


@dataclass
class World:
    gateway: RunningGateway
    providers: dict[str, SimulatorProcess]
    folder: Path  # the policy is folder/current/policy.yaml, and `current` is a link
    num_versions: int = 0

    @property
    def path(self) -> Path:
        return self.folder / "current" / "policy.yaml"

    @property
    def client(self) -> Client:
        return Client(self.gateway.base_url, self.gateway.key)

    def policy(self, models: dict[str, tuple[str, ...]], more: str = "") -> str:
        self.num_versions += 1
        return policy_over(self.providers, models, more=more) + f"# version {self.num_versions}\n"

    def status(self) -> dict[str, Any]:
        return status_of(self.gateway.base_url)

    def version(self) -> str:
        return str(self.status()["policy_version"])

    def change(self, by: Callable[[], object]) -> str:
        """The version in force before; returns once another one is."""
        before = self.version()
        by()
        wait_until(lambda: self.version() != before, "the new policy", wait_s=FOLLOWED_S)
        return before

    def models(self) -> set[str]:
        answer = httpx.get(f"{self.gateway.v1}/models", headers=self.gateway.headers)
        return {each["id"] for each in answer.json()["data"]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("followed")
    folder = home / "mounted"
    (folder / "first").mkdir(parents=True)
    (folder / "current").symlink_to("first")
    with simulator_processes(PROFILES, home / "providers") as providers:
        text = policy_over(providers, MODELS)
        (folder / "first" / "policy.yaml").write_text(text)
        gateway = start_gateway(
            text,
            home,
            key=issue_key(home),
            arguments=("--policy", str(folder / "current" / "policy.yaml")),
        )
        try:
            yield World(gateway, providers, folder)
        finally:
            gateway.stop()


@pytest.fixture(autouse=True)
def _usual_models(world: World) -> None:
    """Whatever the test before left in the file."""
    world.change(lambda: world.path.write_text(world.policy(MODELS)))


def test_an_edit_in_place_takes_effect(world: World) -> None:
    world.change(lambda: world.path.write_text(world.policy({**MODELS, "edited": ("beta",)})))

    assert {"chat", "long", "edited"} == world.models()
    assert world.client.ask(chat(model="edited")).status == 200


def test_an_atomic_rename_takes_effect(world: World) -> None:
    def rename() -> None:
        draft = world.path.with_name(".policy.yaml.swp")
        draft.write_text(world.policy({**MODELS, "renamed": ("beta",)}))
        draft.replace(world.path)

    world.change(rename)

    assert "renamed" in world.models()


def test_a_swapped_link_above_the_file_takes_effect(world: World) -> None:
    def swap() -> None:
        other = world.folder / "second"
        other.mkdir(exist_ok=True)
        (other / "policy.yaml").write_text(world.policy({**MODELS, "swapped": ("beta",)}))
        link = world.folder / "next"
        link.symlink_to("second")
        link.replace(world.folder / "current")

    world.change(swap)

    assert "swapped" in world.models()


def test_a_bad_policy_leaves_the_last_good_one_and_says_why(world: World) -> None:
    good = world.path.read_text()
    before = world.version()

    world.path.write_text(good.replace("models:", "modles:"))
    wait_until(lambda: bool(world.status()["policy_error"]), "the error", wait_s=FOLLOWED_S)

    error = world.status()["policy_error"]
    assert "modles" in error
    assert "last good policy stays in force" in error
    page = httpx.get(f"{world.gateway.base_url}/").text
    assert "modles" in page
    assert world.version() == before
    assert world.client.ask(chat()).status == 200
    world.gateway.process.send_signal(signal.SIGHUP)  # asked again, it is no better
    assert world.client.ask(chat()).status == 200

    world.path.write_text(good)
    wait_until(lambda: not world.status()["policy_error"], "the error to go", wait_s=FOLLOWED_S)
    assert world.version() == before


def test_a_policy_that_is_gone_leaves_the_last_good_one(world: World) -> None:
    away = world.path.with_suffix(".away")
    world.path.rename(away)
    wait_until(lambda: bool(world.status()["policy_error"]), "the error", wait_s=FOLLOWED_S)

    assert "No such file" in world.status()["policy_error"]
    assert world.client.ask(chat()).status == 200
    away.rename(world.path)
    wait_until(lambda: not world.status()["policy_error"], "the error to go", wait_s=FOLLOWED_S)


def test_sighup_reads_a_file_whose_change_cannot_be_seen(world: World) -> None:
    world.change(lambda: world.path.write_text(world.policy({**MODELS, "hidden": ("beta",)})))
    stat, text = world.path.stat(), world.path.read_text()
    before = world.version()

    world.path.write_text(text.replace("hidden", "exposd"))  # as many bytes, the same inode
    os.utime(world.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    world.gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: world.version() != before, "the new policy", wait_s=FOLLOWED_S)

    assert "exposd" in world.models()


def test_what_was_learned_of_an_endpoint_survives_a_new_policy(world: World) -> None:
    for _ in range(6):
        assert world.client.ask(chat(provider={"only": ["alpha"]})).status == 200

    def measured() -> dict[str, Any]:
        rows = world.status()["endpoints"]
        (found,) = [row["measured"] for row in rows if row["id"] == "alpha/sim"]
        return dict(found)

    before = measured()
    world.change(lambda: world.path.write_text(world.policy({"renamed": ("alpha", "beta")})))

    after = measured()
    assert before["n"] >= 6
    assert after["n"] == before["n"]
    assert after["success"]["n"] == pytest.approx(before["success"]["n"], rel=0.05)
    assert after["share"]["started"] == before["share"]["started"]


def test_a_request_under_way_keeps_the_policy_it_began_with(world: World) -> None:
    world.change(lambda: world.path.write_text(world.policy({**MODELS, "going": ("slow",)})))
    heard: list[str] = []
    began = threading.Event()

    def listen() -> None:
        body = chat("[[sim tokens=40]]", model="going", stream=True)
        with httpx.stream(
            "POST",
            f"{world.gateway.v1}/chat/completions",
            json=body,
            headers=world.gateway.headers,
            timeout=60,
        ) as answer:
            heard.append(answer.headers["x-looprouter-request-id"])
            for part in answer.iter_text():
                began.set()
                heard.append(part)

    listener = threading.Thread(target=listen)
    listener.start()
    assert began.wait(30)
    old = world.change(lambda: world.path.write_text(world.policy({"chat": ("alpha",)})))
    refused = world.client.ask(chat(model="going"))
    assert listener.is_alive(), "the stream ended before the policy changed; make it longer"
    listener.join(30)

    text, events = texts_of("".join(heard[1:]))
    assert len(text.split()) > 10
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert (refused.status, refused.code) == (404, "model_not_found")
    wait_until(lambda: bool(versions_of(world, heard[0])), "the request's row", wait_s=FOLLOWED_S)
    assert versions_of(world, heard[0]) == [old]


def versions_of(world: World, request_id: str) -> list[str]:
    query = f"SELECT policy_version FROM requests WHERE id = '{request_id}'"
    return [row["policy_version"] for row in rows_of(world.gateway.home, query)]


def test_every_version_is_kept_word_for_word(world: World) -> None:
    text = world.policy(MODELS) + "# a comment: 五 €\n"
    world.change(lambda: world.path.write_text(text))

    def rows() -> list[dict[str, Any]]:
        return rows_of(world.gateway.home, "SELECT * FROM policies ORDER BY activated_at DESC")

    wait_until(lambda: rows()[0]["text"] == text, "the version's row", wait_s=FOLLOWED_S)
    kept = rows()
    assert kept[0]["version"] == world.version()
    assert len(kept) >= 2
    assert len({row["version"] for row in kept}) == len(kept)


def test_a_policy_in_sql_is_imported_followed_and_never_set_back(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "imported.yaml"

    def run_import(text: str) -> None:
        file.write_text(text)
        looprouter("policy", "import", str(file), home=tmp_path)

    without = start_failing(tmp_path)
    assert "looprouter policy import" in without
    first, second = (
        world.policy({"chat": ("alpha",)}),
        world.policy({"chat": ("alpha",), "two": ("beta",)}),
    )
    run_import(first)
    gateway = start_gateway(
        first, tmp_path, key=issue_key(tmp_path), arguments=("--policy", "store")
    )
    try:
        began = status_of(gateway.base_url)["policy_version"]
        run_import(second)
        took_s = wait_until(
            lambda: status_of(gateway.base_url)["policy_version"] != began, "the imported policy"
        )
        assert took_s < FOLLOWED_S
        assert Client(gateway.base_url, gateway.key).ask(chat(model="two")).status == 200

        file.write_text(second.replace("models:", "modles:"))
        refused = subprocess.run(
            [sys.executable, "-m", "gateway", "policy", "import", str(file)],
            env=cli_environ(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode != 0
        assert "modles" in refused.stderr
        kept = rows_of(tmp_path, "SELECT text FROM policies ORDER BY activated_at DESC")
        assert [row["text"] for row in kept] == [second, first]
    finally:
        assert gateway.stop() == 0, gateway.log()[-2000:]


def start_failing(home: Path) -> str:
    """What `serve --policy store` says where there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--policy", "store", "--port", "0"],
        env=cli_environ(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    return done.stderr
