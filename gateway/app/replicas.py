"""Carries what replicas tell each other over Redis pub/sub, about once a second.

Only replicas of one deployment hear each other: their common pepper names the channel and signs
every message, so whoever else can write to that Redis cannot steer traffic. Nothing waits for news.
While Redis is away each process goes on alone and what it would have told is lost: news that old
teaches little, and a failure of minutes ago must not shut an endpoint now.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from gateway.app.housekeeping import tell_of_end
from gateway.fleet.fleet import Fleet
from gateway.fleet.replicas import Replica
from gateway.fleet.sharing import SHARE_EVERY_S, FleetNews
from gateway.measure.replicas import ReplicaMeter
from gateway.pipeline import Gateway
from gateway.store.redis import end_if_cancelled

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

NEWS_VERSION = 1  # of the messages; another version has another channel
JITTER = 0.2  # of the period, so that replicas started together do not talk all at once
ENDPOINTS_A_MESSAGE = 16
MESSAGE_BYTES_MAX = 1024 * 1024
TAG_BYTES = 16
PUBLISH_S_MAX = 1.0
SILENT_S = 5.0  # one's own news come back too, so silence means a lost subscription
BACK_OFF_S_MAX = 8.0

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(FleetNews)


class Sealer:
    """Messages with a keyed digest (BLAKE2b, RFC 7693) before them."""

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.new(pepper, b"replicas", hashlib.sha256).digest()
        # Not the key itself: channel names can be listed by anybody on that Redis.
        self.deployment = hashlib.sha256(b"channel:" + self._key).hexdigest()[:16]

    def seal(self, news: FleetNews) -> bytes:
        body = _ENCODER.encode(news)
        return self._tag(body) + body

    def open(self, message: bytes) -> FleetNews | str:
        """The news, or why there is none: `too_large`, `foreign`, `malformed`."""
        if len(message) > MESSAGE_BYTES_MAX:
            return "too_large"
        tag, body = message[:TAG_BYTES], message[TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(body)):
            return "foreign"
        try:
            return _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "malformed"

    def _tag(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=TAG_BYTES, key=self._key).digest()


class _Way:
    """One direction: logs once when it fails and once when it works again, and how long to wait."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.num_failed = 0

    def failed(self, error: Exception) -> float:
        """Seconds until the next try: 1, 2, 4, 8, 8 … and jitter."""
        if self.num_failed == 0:
            fault = f"{type(error).__name__}: {error}"[:200]
            log.warning(f"replicas are not {self.what}, going on alone", error=fault)
        wait_s = min(BACK_OFF_S_MAX, 2.0 ** min(self.num_failed, 8))
        self.num_failed += 1
        return jittered(wait_s)

    def worked(self) -> None:
        if self.num_failed:
            self.num_failed = 0
            log.info(f"replicas are {self.what} again")


class NewsCarrier:
    """Tells the other replicas of this fleet and hears theirs. One `run()` a server's life."""

    def __init__(self, fleet: Fleet, redis: Redis, *, pepper: bytes, meter: ReplicaMeter) -> None:
        self._fleet = fleet
        self._replica = Replica(fleet, meter.name)
        self._redis = redis
        self._sealer = Sealer(pepper)
        self._stem = f"looprouter:fleet:{NEWS_VERSION}:{self._sealer.deployment}:"
        self._told = _Way("told")
        self._heard = _Way("heard")
        self._tell_at_s = 0.0
        self.meter = meter

    @property
    def channel(self) -> str:
        """Where this process publishes; the others' differ in their last part."""
        return self._stem + self.meter.name

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_on())
            group.create_task(self._hear_on())

    async def _tell_on(self) -> None:
        while True:
            end_if_cancelled()
            await asyncio.sleep(jittered(SHARE_EVERY_S))
            await self.tell()

    async def tell(self) -> None:
        """Publish what happened since the last call; lost where Redis does not take it."""
        from redis.exceptions import RedisError

        news = self._replica.news()
        if self._fleet.clock() < self._tell_at_s:
            self.meter.dropped("lost")
            return
        try:
            for message in self._messages(news):
                async with asyncio.timeout(PUBLISH_S_MAX):
                    await self._publish(message)
                self.meter.sent(len(message))
        except (RedisError, OSError, TimeoutError) as error:
            self.meter.dropped("lost")
            self.meter.is_telling = False
            self._tell_at_s = self._fleet.clock() + self._told.failed(error)
            return
        self.meter.is_telling = True
        self._told.worked()

    async def _publish(self, message: bytes) -> None:
        from redis.exceptions import ConnectionError

        try:
            await self._redis.publish(self.channel, message)
        except ConnectionError:  # perhaps only of a pooled connection that ended while idle
            await self._redis.publish(self.channel, message)

    def _messages(self, news: FleetNews) -> Iterator[bytes]:
        told = list(news.endpoints.items())
        for start in range(0, len(told) or 1, ENDPOINTS_A_MESSAGE):
            part = dict(told[start : start + ENDPOINTS_A_MESSAGE])
            message = self._sealer.seal(msgspec.structs.replace(news, endpoints=part))
            if len(message) > MESSAGE_BYTES_MAX:
                self.meter.dropped("too_large")
                continue
            yield message

    async def _hear_on(self) -> None:
        from redis.exceptions import RedisError

        while True:
            end_if_cancelled()
            try:
                async with self._redis.pubsub() as subscribed:
                    await subscribed.psubscribe(self._stem + "*")
                    await self._hear_all(subscribed)
            except (RedisError, OSError, TimeoutError) as error:
                self.meter.is_hearing = False
                await asyncio.sleep(self._heard.failed(error))

    async def _hear_all(self, subscribed: Any) -> None:
        """Take every message, until the connection is lost or has gone silent."""
        own = self.channel.encode()
        while True:
            end_if_cancelled()
            message = await subscribed.get_message(timeout=SILENT_S)
            if message is None:
                raise TimeoutError(f"no message within {SILENT_S:g} s, not even one of our own")
            if message["type"] != "pmessage":
                continue
            self.meter.is_hearing = True
            self._heard.worked()
            if message["channel"] != own:
                await self.hear(message["data"])

    async def hear(self, message: bytes) -> None:
        """Learn from one message of another, or drop and count it."""
        news = self._sealer.open(message)
        if isinstance(news, str):
            self.meter.dropped(news)
            return
        try:
            is_heard = await self._learn(news)
        except Exception as error:  # a newer release's news must not end the hearing of others
            if "failed" not in self.meter.num_dropped:
                log.error("news of a replica not understood", error=error, exc_info=error)
            self.meter.dropped("failed")
            return
        if is_heard:
            self.meter.heard(news.replica)
        else:
            self.meter.dropped("old")

    async def _learn(self, news: FleetNews) -> bool:
        """Endpoint by endpoint: a request must not wait for a whole message to be learned."""
        quiet = {key: told for key, told in news.endpoints.items() if not told.outcomes}
        if not self._replica.hear(msgspec.structs.replace(news, endpoints=quiet)):
            return False
        for key, told in news.endpoints.items():
            if told.outcomes:
                await asyncio.sleep(0)
                self._replica.hear(msgspec.structs.replace(news, endpoints={key: told}))
        return True


@asynccontextmanager
async def sharing_news(gateway: Gateway, redis: Redis | None, pepper: bytes) -> AsyncIterator[None]:
    """Share what is measured with the other replicas, where there is a Redis to do it over."""
    if redis is None:
        yield
        return
    name = secrets.token_hex(8)
    meter = ReplicaMeter(name, gateway.metrics.registry, clock=gateway.clock)
    carrier = NewsCarrier(gateway.fleet, redis, pepper=pepper, meter=meter)
    task = asyncio.create_task(carrier.run())
    task.add_done_callback(tell_of_end)
    gateway.replicas = meter
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def jittered(period_s: float) -> float:
    """The period ± JITTER."""
    spread = random.uniform(-JITTER, JITTER)  # noqa: S311 - spreads load, keeps no secret
    return period_s * (1.0 + spread)
