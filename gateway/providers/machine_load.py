"""`GET /v1/load`: what a self-hosted server says of its own work, asked for and read strictly."""

from __future__ import annotations

from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.core import Endpoint, MachineLoad
from gateway.errors import LoopRouterError
from gateway.providers.adapter import USER_AGENT, join_url, policy_headers
from gateway.providers.transport import Transport, UpstreamRequest

PATH = "/load"  # behind the base URL's /v1
HEALTH_PATH = "/health"
ABSENT = (404, 405, 501)  # the server has no such page
ANSWER_BYTES_MAX = 64 * 1024
STEPS_MAX = 256  # batch sizes in the table

_Count = Annotated[int, Meta(ge=0, le=1 << 40)]
_Amount = Annotated[float, Meta(ge=0, le=1e12)]


class LoadUnreadable(LoopRouterError):
    """The answer is no account of load. `is_absent`: the server has no such page."""

    def __init__(self, message: str, *, is_absent: bool = False) -> None:
        super().__init__(message)
        self.is_absent = is_absent


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """The page's members that are read; it may hold others."""

    num_running: _Count
    num_waiting: _Count
    waiting_prompt_tokens: _Count = 0
    sequences_max: _Count = 0
    kv_blocks_total: _Count = 0
    kv_blocks_used: _Count = 0
    tokens_per_s: _Amount = 0.0
    prompt_tokens_per_s: _Amount = 0.0
    decode_step_s: dict[int, _Amount] = {}
    prefill_token_s: _Amount = 0.0


_DECODER = msgspec.json.Decoder(_Report)


async def ask_load(
    transport: Transport, endpoint: Endpoint, *, secret: str | None, verify_tls: bool = True
) -> MachineLoad:
    """Ask the server behind `endpoint`, under its network rule.

    Raises TransportError, UnsendableRequest or LoadUnreadable. The caller sets the deadline.
    """
    url = join_url(endpoint.base_url, PATH)
    status, body = await ask_page(transport, endpoint, url, secret=secret, verify_tls=verify_tls)
    if status != 200:
        raise LoadUnreadable(f"it answers {status}", is_absent=status in ABSENT)
    return read_load(body)


async def ask_page(
    transport: Transport,
    endpoint: Endpoint,
    url: str,
    *,
    secret: str | None,
    verify_tls: bool = True,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> tuple[int, bytes]:
    """Status and body of a page that the server behind `endpoint` has of itself; else as above."""
    response = await transport.send(_request(endpoint, url, secret, verify_tls))
    body = bytearray()
    try:
        async for part in response.stream():
            body += part
            if len(body) > bytes_max:
                raise LoadUnreadable(f"the answer is longer than {bytes_max} bytes")
    finally:
        await response.aclose()
    return response.status, bytes(body)


def health_url(base_url: str) -> str:
    """`/health` of the server whose API begins at `base_url`: beside its /v1."""
    base, mark, query = base_url.partition("?")
    return f"{base.rstrip('/').removesuffix('/v1')}{HEALTH_PATH}{mark}{query}"


def read_load(body: bytes) -> MachineLoad:
    """Raises LoadUnreadable naming the member that is wrong."""
    try:
        report = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LoadUnreadable(f"the answer is not understood: {error}") from error
    table = report.decode_step_s
    if len(table) > STEPS_MAX or any(
        size < 1 or not (isfinite(seconds) and seconds > 0.0) for size, seconds in table.items()
    ):
        raise LoadUnreadable(
            f"decode_step_s must map up to {STEPS_MAX} batch sizes from 1 on to seconds above 0"
        )
    if report.kv_blocks_used > report.kv_blocks_total:
        raise LoadUnreadable(
            f"kv_blocks_used is {report.kv_blocks_used} of {report.kv_blocks_total}"
        )
    counts = {name: getattr(report, name) for name in report.__struct_fields__}
    return MachineLoad(**{**counts, "decode_step_s": tuple(sorted(table.items()))})


def _request(endpoint: Endpoint, url: str, secret: str | None, verify_tls: bool) -> UpstreamRequest:
    headers = [(b"accept", b"application/json"), (b"user-agent", USER_AGENT)]
    headers += policy_headers(endpoint)
    if secret:
        headers.append((b"authorization", b"Bearer " + secret.encode("latin-1")))
    return UpstreamRequest(
        method="GET",
        url=url,
        headers=tuple(headers),
        network=endpoint.network,
        verify_tls=verify_tls,
    )
