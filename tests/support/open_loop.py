"""Requests at a given rate whatever becomes of them, as many independent clients send them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of the crowd and what became of it."""

    kind: str
    status: int  # 0: the connection failed
    began_s: float  # since the crowd began
    took_s: float
    code: str = ""  # of an error
    headers: Mapping[str, str] | None = None

    @property
    def ended_s(self) -> float:
        return self.began_s + self.took_s


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one sort, so many a second."""

    name: str
    per_s: float
    body: Mapping[str, Any]
    headers: Mapping[str, str]


async def crowd(url: str, kinds: Sequence[Kind], lasting_s: float, *, seed: int = 1) -> list[Sent]:
    """Poisson arrivals of every kind for `lasting_s`; returns when all are answered."""
    limits = httpx.Limits(max_connections=2_000, max_keepalive_connections=200)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        began_s = time.monotonic()
        tasks = []
        for at_s, kind in arrivals(kinds, lasting_s, seed=seed):
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            tasks.append(asyncio.create_task(_send(client, url, kind, began_s)))
        return list(await asyncio.gather(*tasks))


async def closed_loop(
    url: str, kind: Kind, num_clients: int, *, until: Callable[[int, float], bool]
) -> list[Sent]:
    """`num_clients` that each send the next when the last is answered, until `until(n, s)`."""
    sent: list[Sent] = []
    async with httpx.AsyncClient(timeout=60) as client:
        began_s = time.monotonic()

        async def one() -> None:
            while not until(len(sent), time.monotonic() - began_s):
                sent.append(await _send(client, url, kind, began_s))

        await asyncio.gather(*(one() for _ in range(num_clients)))
    return sent


def arrivals(kinds: Sequence[Kind], lasting_s: float, *, seed: int) -> list[tuple[float, Kind]]:
    """When each request comes, in order: a Poisson process a kind."""
    rng, found = random.Random(seed), list[tuple[float, Kind]]()
    for kind in kinds:
        at_s = rng.expovariate(kind.per_s)
        while at_s < lasting_s:
            found.append((at_s, kind))
            at_s += rng.expovariate(kind.per_s)
    return sorted(found, key=lambda each: each[0])


async def _send(client: httpx.AsyncClient, url: str, kind: Kind, origin_s: float) -> Sent:
    began_s = time.monotonic()
    try:
        answer = await client.post(url, json=kind.body, headers=kind.headers)
    except httpx.TransportError as error:
        took_s = time.monotonic() - began_s
        return Sent(kind.name, 0, began_s - origin_s, took_s, code=type(error).__name__)
    took_s = time.monotonic() - began_s
    code = ""
    if answer.status_code != 200:
        code = str(answer.json()["error"].get("code"))
    return Sent(
        kind.name, answer.status_code, began_s - origin_s, took_s, code, dict(answer.headers)
    )


def per_second(sent: Sequence[Sent], from_s: float, to_s: float) -> float:
    """Good answers a second that ended in this window."""
    good = sum(one.status == 200 and from_s <= one.ended_s < to_s for one in sent)
    return good / (to_s - from_s)


def quantile_s(sent: Sequence[Sent], q: float) -> float:
    """Of the time that good answers took."""
    return float(np.quantile([one.took_s for one in sent if one.status == 200], q))
