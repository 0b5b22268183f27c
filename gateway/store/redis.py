"""Opens Redis, which shares rate limits between processes and never holds money."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import SetupError

if TYPE_CHECKING:
    from redis.asyncio import Redis

# A script takes Redis some 50 µs, so a few connections carry all; a burst must not open many.
CONNECTIONS_MAX = 8
SOCKET_TIMEOUT_S = 0.25
CONNECT_TIMEOUT_S = 0.5
_SCRIPTS = Path(__file__).resolve().parent / "scripts"


def open_redis(url: str) -> Redis:
    """A client with short timeouts; connects on first use. `await client.aclose()` at the end."""
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as e:
        raise SetupError("Redis needs a client; run: pip install 'looprouter[redis]'") from e
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=CONNECTIONS_MAX,
        timeout=SOCKET_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        # The caller carries on alone when Redis does not answer; a retry would only add delay.
        retry=Retry(NoBackoff(), 0),
        client_name="looprouter",
    )
    return Redis(connection_pool=pool)


def end_if_cancelled() -> None:
    """Raise CancelledError where this task was cancelled; ask between two calls of a client.

    A call may end as if nothing had happened: redis-py sends under `asyncio.wait_for`, which until
    Python 3.12 loses a cancellation that comes as the sending ends (cpython issue 86296).
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def load_script(client: Redis, name: str) -> Any:
    """The script `scripts/<name>.lua`, run by its hash and loaded when the server lacks it."""
    return client.register_script((_SCRIPTS / f"{name}.lua").read_text(encoding="utf-8"))
