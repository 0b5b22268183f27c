"""What every handler needs of the server and of the request in hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend.api.auth import Keys, tenant_salt
from backend.api.bodies import PRIORITIES, CommonBody
from backend.api.exchange import Exchange
from backend.api.fields import wrong
from backend.api.problems import NoSuchModel
from backend.engine.interface import Priority
from backend.sampling.params import SamplingParams
from backend.serving.generation import Wanted
from backend.serving.service import Service
from backend.speculate.registry import PROPOSERS

PRIORITY_HEADER = "x-looprouter-priority"
IN_THREAD_BYTES_MIN = 16 * 1024  # of a body: rendering and encoding it would hold up the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What does not change between requests."""

    service: Service
    keys: Keys
    version: str
    body_bytes_max: int
    # Names in Host and Origin that are answered; None: any, because there is a key to show.
    local_names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One authenticated request with its body."""

    server: Server
    exchange: Exchange
    request_id: str
    key_digest: bytes
    body: bytes

    @property
    def is_large(self) -> bool:
        return len(self.body) >= IN_THREAD_BYTES_MIN

    def wanted(self, body: CommonBody, params: SamplingParams) -> Wanted:
        """Raises BadRequest naming a header or field that is wrong."""
        wish = body.wish()
        if wish.method is not None and wish.method not in PROPOSERS:
            known = ", ".join(sorted(PROPOSERS))
            raise wrong("speculation.method", f"is {wish.method[:40]!r}; known: {known}")
        return Wanted(
            request_id=self.request_id,
            params=params,
            num_choices=body.n or 1,
            priority=_priority(body, self.exchange.headers),
            tenant=tenant_salt(self.key_digest, self.exchange.headers),
            speculation=wish,
            workload=f"{body.kind}/{'greedy' if params.is_greedy else 'drawn'}",
        )

    def check_model(self, name: str) -> None:
        served = self.server.service.name
        if name != served:
            raise NoSuchModel(name, served)


def _priority(body: CommonBody, headers: Mapping[str, str]) -> Priority:
    """The later of the two: behind a gateway the header is its word, the field its client's."""
    named = headers.get(PRIORITY_HEADER, "") or "interactive"
    if named not in PRIORITIES:
        raise wrong(PRIORITY_HEADER, f"is {named[:40]!r}; use interactive or batch")
    return max(PRIORITIES[named], PRIORITIES[body.priority or "interactive"])
