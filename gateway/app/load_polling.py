"""Asks self-hosted servers for their load, about once a second, and tells fleet and meter.

Only providers with `self_hosted` are asked. One that does not answer is left alone for longer and
longer; what it said last grows stale meanwhile and it counts as full (`fleet/capacity.py`). One
without such a page (vLLM, say) is asked again once a minute and judged like any other endpoint.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from gateway.core import Endpoint
from gateway.pipeline import Gateway
from gateway.policy.load import Policy
from gateway.providers.machine_load import LoadUnreadable, ask_load
from gateway.providers.transport import Transport, TransportError
from gateway.wire.pieces import Dialect

log = structlog.get_logger()

POLL_S = 1.0  # from one question to the next
TICK_S = 0.25  # a server that took longer to answer is asked again at once
ANSWER_S_MAX = 1.8
ABSENT_S = 60.0  # until a server without the page is asked again
BACK_OFF_S_MAX = 8.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One server to ask: by its first endpoint, for all of them."""

    endpoint: Endpoint
    endpoint_ids: tuple[str, ...]
    verify_tls: bool


@dataclass(slots=True)
class _State:
    """What became of the last times a server was asked."""

    next_at_s: float
    is_asked: bool = False  # now
    num_failed: int = 0
    fault: str = ""


class LoadPoller:
    """Asks every self-hosted server of the policy in force."""

    def __init__(self, gateway: Gateway, transport: Transport) -> None:
        self._gateway = gateway
        self._transport = transport
        self._states: dict[str, _State] = {}  # by base URL

    async def run(self) -> None:
        """Ask each server whenever it is due, until cancelled; a slow one delays no other."""
        async with asyncio.TaskGroup() as group:
            while True:
                for machine in self._due():
                    group.create_task(self.ask(machine))
                await asyncio.sleep(TICK_S)

    def _due(self) -> list[Machine]:
        now_s = self._gateway.clock()
        machines = {each.endpoint.base_url: each for each in machines_of(self._gateway.policy())}
        self._states = {url: self._states.get(url) or _State(next_at_s=now_s) for url in machines}
        found = []
        for url, state in self._states.items():
            if not state.is_asked and now_s >= state.next_at_s:
                state.is_asked, state.next_at_s = True, now_s + POLL_S
                found.append(machines[url])
        return found

    async def ask(self, machine: Machine) -> None:
        """Ask one server and tell fleet and meter; a failure is logged once."""
        gateway, endpoint = self._gateway, machine.endpoint
        state = self._states.setdefault(endpoint.base_url, _State(next_at_s=gateway.clock()))
        secret = gateway.settings.secret(endpoint.key_env) if endpoint.key_env else None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                load = await ask_load(
                    self._transport, endpoint, secret=secret, verify_tls=machine.verify_tls
                )
        except (TransportError, LoadUnreadable, ValueError, TimeoutError) as error:
            self._failed(machine, state, error)
            return
        finally:
            state.is_asked = False
        if state.fault:
            log.info("load is told again", endpoint=endpoint.id)
        state.num_failed, state.fault = 0, ""
        for endpoint_id in machine.endpoint_ids:
            gateway.fleet.report_load(endpoint_id, load)
        work_per_s = load.tokens_per_s + load.prompt_tokens_per_s
        gateway.meter.report(endpoint.machine, work_per_s, gateway.wall_clock())

    def _failed(self, machine: Machine, state: _State, error: Exception) -> None:
        state.num_failed += 1
        is_absent = isinstance(error, LoadUnreadable) and error.is_absent
        wait_s = min(BACK_OFF_S_MAX, POLL_S * (2.0 ** min(state.num_failed - 1, 8) - 1.0))
        # The first question that fails is put again at once: a busy server must not grow stale.
        state.next_at_s = self._gateway.clock() + (ABSENT_S if is_absent else wait_s)
        fault = str(error) or f"no answer within {ANSWER_S_MAX:g} s"
        if fault != state.fault:
            state.fault = fault
            log.warning("load is not told", endpoint=machine.endpoint.id, error=fault)


def machines_of(policy: Policy) -> list[Machine]:
    """The self-hosted servers of a policy, one an address; those without their key are left out."""
    providers = policy.providers
    by_url: dict[str, list[Endpoint]] = {}
    for endpoint in policy.endpoints.values():
        is_told = endpoint.api is Dialect.OPENAI and providers[endpoint.provider].has_key
        if endpoint.machine and is_told:
            by_url.setdefault(endpoint.base_url, []).append(endpoint)
    return [
        Machine(
            endpoint=endpoints[0],
            endpoint_ids=tuple(each.id for each in endpoints),
            verify_tls=providers[endpoints[0].provider].verify_tls,
        )
        for endpoints in by_url.values()
    ]
