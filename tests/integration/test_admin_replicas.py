"""What an admin does at one of two gateways on one PostgreSQL and Redis holds at the other too."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.simulator.profile import ProviderProfile
from tests.support.gateway_process import RunningGateway, looprouter, start_gateway
from tests.support.gateway_world import Answered, Client, chat, in_threads, issue_key, wait_until
from tests.support.postgres_database import scratch_database
from tests.support.redis_server import own_redis
from tests.support.simulator_process import BRISK, policy_over, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]

FRONTS = (0, 1)
ALPHA, BETA = "alpha/sim", "beta/sim"
TOLD_S = 1.0  # docs/dashboard.md: a pause is in force in all processes within a second
TOO_OLD = "created_at < extract(epoch FROM now()) - 86400"
PURGED_S = 60.0  # and what owners say of retention within a minute
BUSY_S = 15.0  # for what is not promised in seconds, on a machine with other work
PROFILES = (
    ProviderProfile(**{**BRISK, "name": "alpha", "model": "sim"}),
    ProviderProfile(**{**BRISK, "name": "beta", "model": "sim"}),
    ProviderProfile(
        **{**BRISK, "name": "slow", "model": "sim", "tokens_per_s": 20.0, "tokens_per_event": 1}
    ),
)
MODELS: dict[str, tuple[str, ...]] = {
    "chat": ("alpha", "beta"), "one": ("alpha",), "long": ("slow",),
}  # fmt: skip


@dataclass
class Two:
    gateways: list[RunningGateway]
    database_url: str
    policy: str
    with_new: str  # the same with one more model: `new`
    admins: list[httpx.Client] = field(default_factory=list)  # one session, at both gateways

    def restart(self, front: int, *, sig: int = signal.SIGTERM) -> None:
        self.stop(front, sig=sig)
        self.start(front)

    def stop(self, front: int, *, sig: int = signal.SIGTERM) -> None:
        ended = self.gateways[front].stop(sig)
        assert ended == (0 if sig == signal.SIGTERM else -sig)

    def start(self, front: int) -> None:
        old = self.gateways[front]
        self.gateways[front] = begin(
            self.policy, old.home, dict(old.environ), old.key, port=old.port
        )

    def ask(self, front: int, model: str, **fields: Any) -> Answered:
        gateway = self.gateways[front]
        client = Client(gateway.base_url, gateway.key)
        try:
            return client.ask(chat("Hello", model=model, **fields))
        finally:
            client.close()

    def act(self, front: int, verb: str, **body: Any) -> None:
        answer = self.admins[front].post(f"/admin/api/endpoints/{verb}", json=body)
        assert answer.status_code in (200, 204), answer.text

    def standing(self, front: int, endpoint: str) -> dict[str, Any]:
        models = self.read(front, "/endpoints")["models"]
        found: list[dict[str, Any]] = [
            each["standing"]
            for model in models
            for each in model["endpoints"]
            if each["id"] == endpoint
        ]
        return found[0]

    def read(self, front: int, path: str, **query: Any) -> Any:
        answer = self.admins[front].get(f"/admin/api{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def told(self, front: int, subject: str, *, after: int = 0) -> list[tuple[str, str]]:
        """What the audit log says of it there: (action, actor), oldest first."""
        events = self.read(front, "/audit", subject=subject)["events"]
        return [(each["action"], each["actor"]) for each in events if each["id"] > after][::-1]

    def last_event(self, subject: str) -> int:
        events = self.read(0, "/audit", subject=subject)["events"]
        return max((each["id"] for each in events), default=0)

    def rows(self, query: str) -> list[dict[str, Any]]:
        return asyncio.run(_rows(self.database_url, query))


async def _rows(url: str, query: str) -> list[dict[str, Any]]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


def begin(
    policy: str, home: Path, environ: dict[str, str], key: str, *, port: int = 0
) -> RunningGateway:
    """A gateway that serves the policy in SQL."""
    return start_gateway(
        policy, home, environ=environ, key=key, port=port, arguments=("--policy", "store")
    )


def logged_in(gateways: list[RunningGateway], password: str) -> list[httpx.Client]:
    """A client for each gateway with one and the same session, begun at the first."""
    clients = []
    token = ("", "")
    for gateway in gateways:
        base_url = gateway.base_url
        client = httpx.Client(base_url=base_url, headers={"origin": base_url}, timeout=30.0)
        clients.append(client)
        if not token[0]:
            client.headers["x-csrf-token"] = client.get("/admin/api/session").json()["csrf"]
            body = {"name": "ada", "password": password}
            client.post("/admin/api/session", json=body).raise_for_status()
            (token,) = client.cookies.items()
        client.cookies.set(*token)
        who = client.get("/admin/api/session").json()
        assert who["name"] == "ada"
        client.headers["x-csrf-token"] = who["csrf"]
    return clients


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("admin")
    homes = [folder / f"front-{front}" for front in FRONTS]
    with ExitStack() as stack:
        database_url = stack.enter_context(scratch_database())
        environ = {
            "LOOPROUTER_PEPPER": secrets.token_urlsafe(32),
            "LOOPROUTER_DATABASE_URL": database_url,
            "LOOPROUTER_REDIS_URL": stack.enter_context(own_redis(folder)).url,
            "LOOPROUTER_REPLICAS": "2",
        }
        providers = stack.enter_context(simulator_processes(PROFILES, folder / "providers"))
        policy = policy_over(providers, MODELS)
        key = issue_key(homes[0], environ)
        (folder / "policy.yaml").write_text(policy)
        looprouter("policy", "import", f"{folder}/policy.yaml", home=homes[0], environ=environ)
        made = looprouter(
            "admins", "create", "ada", "--role", "owner", "--json", home=homes[0], environ=environ
        )
        with_new = policy_over(providers, {**MODELS, "new": ("beta",)})
        gateways = [begin(policy, home, environ, key) for home in homes]
        world = Two(gateways, database_url, policy, with_new)
        stack.callback(lambda: [gateway.stop() for gateway in world.gateways])
        world.admins = logged_in(world.gateways, json.loads(made)["password"])
        yield world
        for gateway in world.gateways:
            assert gateway.stop() == 0, gateway.log()[-3000:]
            for unwanted in ("Traceback", "unexpected error", "by our own bug", "task ended"):
                assert unwanted not in gateway.log(), gateway.log()[-6000:]


@pytest.fixture(autouse=True)
def _nothing_held(two: Two) -> Iterator[None]:
    yield
    for endpoint in (ALPHA, BETA, "slow/sim"):
        two.act(0, "resume", endpoint=endpoint)
    for front in FRONTS:
        wait_until(lambda f=front: is_served(two, f), "all endpoints again")  # type: ignore[misc]


def is_served(two: Two, front: int) -> bool:
    return all(two.standing(front, each)["state"] == "routed" for each in (ALPHA, BETA))


def first_that(ask: Callable[[], Answered], status: int) -> float:
    """Seconds until an answer of that status was asked for, and asked for again and again."""
    began_s = time.monotonic()
    while True:
        asked_s = time.monotonic() - began_s
        if ask().status == status:
            return asked_s
        assert asked_s < BUSY_S, f"still no {status}"


def test_a_pause_at_one_is_obeyed_by_the_other_and_so_is_its_end(two: Two) -> None:
    before = two.last_event(ALPHA)
    assert [two.ask(front, "one").status for front in FRONTS] == [200, 200]

    two.act(0, "pause", endpoint=ALPHA, note="looks ill")
    told_s = first_that(lambda: two.ask(1, "one"), 503)
    refused = [two.ask(front, "one") for front in FRONTS]
    instead = {two.ask(front, "chat").headers["x-looprouter-endpoint"] for front in FRONTS * 4}
    shown = [two.standing(front, ALPHA) for front in FRONTS]
    two.act(1, "resume", endpoint=ALPHA)  # by the other one
    resumed_s = first_that(lambda: two.ask(0, "one"), 200)

    print(f"\npaused at the other after {told_s:.3f} s, resumed after {resumed_s:.3f} s")
    assert max(told_s, resumed_s) <= TOLD_S
    assert [(each.status, each.code) for each in refused] == [(503, "endpoint_held")] * 2
    assert instead == {BETA}
    assert shown[0] == shown[1]
    assert {name: shown[1][name] for name in ("state", "actor", "note")} == {
        "state": "paused", "actor": "admin:ada", "note": "looks ill",
    }  # fmt: skip
    for front in FRONTS:
        assert two.told(front, ALPHA, after=before) == [
            ("endpoint.pause", "admin:ada"),
            ("endpoint.resume", "admin:ada"),
        ]
        assert two.ask(front, "one").status == 200


def test_a_pause_outlives_a_kill_and_reaches_who_was_away(two: Two) -> None:
    before = two.last_event(ALPHA)
    two.stop(1)
    two.act(0, "pause", endpoint=ALPHA)
    two.stop(0, sig=signal.SIGKILL)  # at once: it is written, or it was not answered
    for front in FRONTS:
        two.start(front)
        assert two.ask(front, "one").code == "endpoint_held"  # the first request that it gets
    two.restart(1)
    assert two.ask(1, "one").code == "endpoint_held"
    two.stop(1)
    two.act(0, "resume", endpoint=ALPHA)
    two.start(1)

    assert [two.ask(front, "one").status for front in FRONTS] == [200, 200]
    assert two.told(1, ALPHA, after=before) == [
        ("endpoint.pause", "admin:ada"),
        ("endpoint.resume", "admin:ada"),
    ]


def test_a_drain_counts_what_still_runs_at_the_other(two: Two) -> None:
    slow = "slow/sim"

    def stream() -> Answered:
        long = [{"role": "user", "content": "[[sim tokens=120]] Tell me a story."}]
        return two.ask(1, "long", stream=True, messages=long)  # six seconds

    def drain() -> Answered | None:
        wait_until(lambda: two.standing(0, slow)["in_flight"] == 1, "the stream to be heard of")
        two.act(0, "drain", endpoint=slow)
        assert two.standing(0, slow)["state"] == "draining"
        first_that(lambda: two.ask(1, "long"), 503)
        return None

    with_both = [stream, drain]
    answers = in_threads(2, lambda: with_both.pop(0)())

    (streamed,) = filter(None, answers)
    assert streamed.status == 200
    assert streamed.text.rstrip().endswith("data: [DONE]")  # nothing of it was cut
    for front in FRONTS:
        wait_until(
            lambda f=front: two.standing(f, slow)["state"] == "drained",  # type: ignore[misc]
            "the end of what ran",
            wait_s=BUSY_S,
        )


def test_of_two_who_resume_at_once_one_is_told_of(two: Two) -> None:
    before, rounds = two.last_event(BETA), 10
    for _ in range(rounds):
        two.act(0, "pause", endpoint=BETA)
        fronts = list(FRONTS)
        in_threads(2, lambda left=fronts: two.act(left.pop(), "resume", endpoint=BETA))  # type: ignore[misc]

    told = [action for action, _ in two.told(0, BETA, after=before)]
    assert told == ["endpoint.pause", "endpoint.resume"] * rounds


def test_a_policy_published_at_one_is_served_by_the_other(two: Two) -> None:
    before = two.last_event("policy")
    base = two.read(1, "/policy")["version"]
    text = two.with_new
    wanted = {"text": text, "base": base, "note": "a new model"}
    published = two.admins[0].post("/admin/api/policy/publish", json=wanted)
    assert published.status_code == 200, published.text
    took_s = first_that(lambda: two.ask(1, "new"), 200)
    late = two.admins[1].post(
        "/admin/api/policy/publish", json={**wanted, "text": text + "# late\n"}
    )

    print(f"\npublished at the other after {took_s:.3f} s")
    assert took_s <= TOLD_S
    assert late.status_code == 409, late.text
    for front in FRONTS:
        two.restart(front)
        assert two.ask(front, "new").status == 200
        assert two.told(front, "policy", after=before) == [("policy.publish", "admin:ada")]
    back = two.admins[1].post(
        f"/admin/api/policy/versions/{base}/rollback",
        json={"base": published.json()["version"], "note": "back"},
    )
    assert back.status_code == 200, back.text
    first_that(lambda: two.ask(0, "new"), 404)


def test_ages_said_at_one_are_kept_by_the_other(two: Two) -> None:
    before = two.last_event("retention")
    assert two.ask(1, "chat").status == 200
    wait_until(lambda: bool(two.rows("SELECT 1 FROM requests")), "the request to be logged")
    two.rows("UPDATE requests SET created_at = created_at - 2 * 86400")
    # Not those of earlier tests that are logged in between.
    old = {row["id"] for row in two.rows(f"SELECT id FROM requests WHERE {TOO_OLD}")}
    assert old
    said = two.admins[0].put("/admin/api/settings/retention", json={"requests": 1, "minutes": 3})
    assert said.status_code == 200, said.text
    two.stop(0, sig=signal.SIGKILL)  # so that nobody but the other can delete
    assert two.ask(1, "chat").status == 200
    ages = {each["name"]: each for each in two.read(1, "/settings")["retention"]}
    took_s = wait_until(
        lambda: not two.rows(f"SELECT 1 FROM requests WHERE {TOO_OLD}"),
        "what is too old to go",
        wait_s=PURGED_S + BUSY_S,
    )
    left = {row["id"] for row in two.rows("SELECT id FROM requests")}
    two.start(0)

    print(f"\n{len(old)} requests went after {took_s:.1f} s")
    assert (ages["requests"]["days"], ages["requests"]["said_by"]) == (1, "dashboard")
    assert left
    assert not left & old
    assert two.read(0, "/settings")["retention"] == two.read(1, "/settings")["retention"]
    assert two.told(0, "retention", after=before) == [("retention.change", "admin:ada")]


def test_a_session_ended_at_one_is_over_at_the_other(two: Two) -> None:
    pages = [two.admins[front].get("/admin/api/settings").status_code for front in FRONTS]
    kept = two.admins[0].cookies
    begun = two.admins
    try:
        assert begun[1].delete("/admin/api/session").status_code == 204
        for client in begun:
            client.cookies.update(kept)
        after = [client.get("/admin/api/settings").status_code for client in begun]
    finally:
        made = looprouter(
            "admins", "reset", "ada", "--json",
            home=two.gateways[0].home, environ=two.gateways[0].environ,
        )  # fmt: skip
        two.admins = logged_in(two.gateways, json.loads(made)["password"])

    assert pages == [200, 200]
    assert after == [401, 401]
