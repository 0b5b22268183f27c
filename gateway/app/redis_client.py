"""Opens Redis if it is configured; its absence never stops the gateway."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from gateway.errors import SetupError

if TYPE_CHECKING:
    from redis.asyncio import Redis

POOL_SIZE_MAX = 32
TIMEOUT_S = 0.5


async def open_redis(url: str | None) -> Redis | None:
    """A client for `url`, not yet connected: Redis may come and go while we serve."""
    if url is None:
        return None
    if importlib.util.find_spec("redis") is None:
        raise SetupError("LOOPROUTER_REDIS_URL is set; run: pip install 'looprouter[redis]'")
    from redis.asyncio import Redis as Client

    return Client.from_url(
        url,
        max_connections=POOL_SIZE_MAX,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
    )
