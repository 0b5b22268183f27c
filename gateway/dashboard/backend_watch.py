"""Asks our own backend servers about themselves, for whoever looks at the page Backend.

Only while somebody looks, each server at most once a second however many look, and never longer
than ANSWER_S_MAX. No request of a client waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.core import Endpoint, Network
from gateway.dashboard.backend_said import Health, Load, read_health, read_load
from gateway.fleet.load_history import LoadSample
from gateway.pipeline import Gateway
from gateway.policy.load import Policy
from gateway.providers.adapter import join_url
from gateway.providers.machine_load import ABSENT, PATH, LoadUnreadable, ask_page, health_url
from gateway.providers.transport import TransportError
from gateway.wire.pieces import Dialect

EVERY_S = 1.0
ANSWER_S_MAX = 1.8
OTHER_EVERY_S = 60.0  # what is not ours is asked again so seldom
ANSWER_BYTES_MAX = 256 * 1024
SERVERS_MAX = 32
MESSAGE_CHARACTERS_MAX = 300


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is known of a server: a code that the page explains, and what was seen."""

    code: str  # "no_key" | "unreachable" | "slow" | "refused" | "loading" | "failed" | "not_ours"
    seen: str


@dataclass(frozen=True, slots=True)
class Server:
    """One server of the policy: by its first endpoint, for all at that address."""

    endpoint: Endpoint
    endpoint_ids: tuple[str, ...]
    models: tuple[str, ...]
    has_key: bool
    verify_tls: bool

    @property
    def is_named(self) -> bool:
        """Named by the operator as a machine of one's own; others are shown if they are ours."""
        return bool(self.endpoint.machine)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said last: its load, or the problem there was."""

    server: Server
    at_s: float
    load: Load | None = None
    health: Health | None = None
    problem: Problem | None = None
    history: tuple[LoadSample, ...] = ()


class BackendWatch:
    """Of one gateway. Answers are kept for EVERY_S; who asks meanwhile shares the question."""

    def __init__(self, gateway: Gateway, *, every_s: float = EVERY_S) -> None:
        self._gateway = gateway
        self._every_s = every_s
        self._kept: dict[str, Answer] = {}  # by base URL
        self._asked: dict[str, asyncio.Task[Answer]] = {}

    async def answers(self) -> list[Answer]:
        """Of every server in the policy's order; such as are neither named nor ours left out."""
        servers = servers_of(self._gateway.policy())
        urls = {each.endpoint.base_url for each in servers}
        self._kept = {url: kept for url, kept in self._kept.items() if url in urls}
        found = await asyncio.gather(*(self._answer(each) for each in servers))
        return [each for each in found if each.server.is_named or each.load is not None]

    async def _answer(self, server: Server) -> Answer:
        url = server.endpoint.base_url
        kept = self._kept.get(url)
        if kept is not None and kept.server == server and not self._is_due(kept):
            return kept
        task = self._asked.get(url)
        if task is None:
            task = self._asked[url] = asyncio.create_task(self._ask(server))
            task.add_done_callback(lambda _: self._asked.pop(url, None))
        # One who leaves must not take the answer from the others.
        self._kept[url] = answer = await asyncio.shield(task)
        return answer

    def _is_due(self, kept: Answer) -> bool:
        is_other = kept.problem is not None and kept.problem.code == "not_ours"
        every_s = OTHER_EVERY_S if is_other else self._every_s
        return self._gateway.clock() - kept.at_s >= every_s

    async def _ask(self, server: Server) -> Answer:
        load: Load | None = None
        health: Health | None = None
        problem: Problem | None = None
        if not server.has_key:
            problem = Problem(code="no_key", seen=server.endpoint.key_env)
        else:
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    load, health, problem = await self._exchange(server)
            except TimeoutError:
                problem = Problem(code="slow", seen=f"{ANSWER_S_MAX:g} s")
            except (TransportError, ValueError) as error:
                problem = _problem("unreachable", error)
            except LoadUnreadable as error:
                problem = _problem("not_ours", error)
        live = self._gateway.fleet.by_key.get(server.endpoint.state_key)
        history = live.loads.samples() if live is not None else ()
        return Answer(server, self._gateway.clock(), load, health, problem, history)

    async def _exchange(self, server: Server) -> tuple[Load | None, Health | None, Problem | None]:
        base_url = server.endpoint.base_url
        status, body = await self._page(server, join_url(base_url, PATH))
        # Health needs no key, and a stranger is not asked for it.
        has_health = status in (200, 503)
        said = await self._page(server, health_url(base_url)) if has_health else (0, b"")
        health = read_health(said[1])
        if status == 200:
            try:
                return read_load(body), health, None
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                return None, None, _problem("not_ours", error)
        return None, health, _refusal(status, health)

    async def _page(self, server: Server, url: str) -> tuple[int, bytes]:
        gateway, endpoint = self._gateway, server.endpoint
        return await ask_page(
            gateway.relay.transport,
            endpoint,
            url,
            secret=gateway.settings.secret(endpoint.key_env) if endpoint.key_env else None,
            verify_tls=server.verify_tls,
            bytes_max=ANSWER_BYTES_MAX,
        )


def _refusal(status: int, health: Health | None) -> Problem:
    seen = f"HTTP {status}"
    if status in (401, 403):
        return Problem(code="refused", seen=seen)
    if health is not None and health.status == "loading":
        return Problem(code="loading", seen=health.model)
    if status in ABSENT or 300 <= status < 500:
        return Problem(code="not_ours", seen=seen)
    return Problem(code="failed", seen=(health.error if health is not None else "") or seen)


def _problem(code: str, error: Exception) -> Problem:
    return Problem(code=code, seen=str(error)[:MESSAGE_CHARACTERS_MAX])


def servers_of(policy: Policy) -> Sequence[Server]:
    """Servers that may be ours: named as one's own machine, or in a private network; one an
    address, at most SERVERS_MAX, the named ones first."""
    by_url: dict[str, list[Endpoint]] = {}
    for endpoint in policy.endpoints.values():
        is_near = endpoint.network is Network.PRIVATE and not endpoint.is_simulated
        if endpoint.api is Dialect.OPENAI and (endpoint.machine or is_near):
            by_url.setdefault(endpoint.base_url, []).append(endpoint)
    found = []
    for endpoints in by_url.values():
        first = next((each for each in endpoints if each.machine), endpoints[0])
        ids = tuple(each.id for each in endpoints)
        provider = policy.providers[first.provider]
        models = tuple(name for name, of in policy.models.items() if set(of) & set(ids))
        found.append(Server(first, ids, models, provider.has_key, provider.verify_tls))
    return sorted(found, key=lambda each: not each.is_named)[:SERVERS_MAX]
