"""The simulated provider: an ASGI app that speaks both dialects, keeps time, fails and bills."""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.simulator import chat_frames, messages_frames, responses_frames, small_answers
from gateway.simulator.answers import Answer, compose
from gateway.simulator.asks import Ask, AskError, parse_ask
from gateway.simulator.connection import (
    BodyTooLarge,
    ClientGone,
    Connection,
    Message,
    Receive,
    Send,
    Timers,
)
from gateway.simulator.framing import Reply, encode
from gateway.simulator.gate import Gate, Refusal, directed_faults, is_authorised
from gateway.simulator.generation import HANG_S_MAX, Generation
from gateway.simulator.meter import Books, PrefixCache, Tally
from gateway.simulator.native_desk import NativeDesk
from gateway.simulator.profile import (
    Fault,
    FaultMode,
    ProviderProfile,
    active_faults,
    changed,
)
from gateway.wire.pieces import SURFACE_DIALECT, Dialect, Surface

_JSON = (b"content-type", b"application/json")

_ROUTES: dict[str, Surface] = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/embeddings": Surface.EMBEDDINGS,
    "/v1/messages": Surface.MESSAGES,
    "/v1/messages/count_tokens": Surface.COUNT_TOKENS,
}

_WRITERS: dict[Surface, Any] = {
    Surface.CHAT: chat_frames,
    Surface.COMPLETIONS: chat_frames,
    Surface.RESPONSES: responses_frames,
    Surface.MESSAGES: messages_frames,
}


class SimulatedProvider:
    """One provider's state: its profile (which may change under way), caches, limits and books."""

    def __init__(
        self,
        profile: ProviderProfile,
        *,
        timers: Timers,
        wall_clock: Callable[[], float],
        books: Books | None = None,
    ) -> None:
        self.profile = profile
        self.books = Books() if books is None else books
        self._timers = timers
        self._epoch_s, self._epoch_unix_s = timers.time(), wall_clock()
        self._cache = PrefixCache()
        self._gate = Gate()
        self._rng = random.Random(profile.seed)
        self._num_ids = 0
        self._id_prefix = "sim" + blake2b(profile.name.encode(), digest_size=4).hexdigest()
        self._native = NativeDesk(self, seed=profile.seed, wall_clock=wall_clock)

    @property
    def now_s(self) -> float:
        """Seconds on the provider's own clock, which fault windows and drift are told in."""
        return self._timers.time() - self._epoch_s

    def unix_s(self, at_s: float) -> float:
        """A second of its own clock on the wall's of its start: the same whenever it is asked."""
        return self._epoch_unix_s + at_s

    @property
    def in_flight(self) -> int:
        return self._gate.in_flight

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        connection = Connection(scope, receive, send, self._timers)
        try:
            if scope["path"].startswith("/sim/"):
                await self._operate(scope, connection)
            else:
                await self._serve(scope, connection)
        except ClientGone:
            self.books.cancelled += 1
        finally:
            await connection.close()

    async def _serve(self, scope: Message, connection: Connection) -> None:
        books = self.books
        books.requests_seen += 1
        arrived_s = self.now_s
        request_id = self.new_id()
        headers = dict(scope["headers"])
        surface = _ROUTES.get(scope["path"])
        is_native = self._native.owns(scope["path"])
        if is_native:
            surface = self._native.surface(scope["path"])
        faults = active_faults(self.profile, arrived_s, self._rng.random())
        try:
            body = await connection.body(self._native.body_bytes_max(scope["path"]))
            connection.watch()
            if await self._shown(faults, connection, surface, request_id):
                return
            if scope["method"] == "GET" and scope["path"].startswith("/v1/models"):
                await self._models(headers, connection)
                return
            if is_native:
                await self._native.serve(scope, headers, body, connection)
                return
            ask = self._accepted(scope, headers, surface, body, arrived_s)
            faults += directed_faults(ask.directives)
            if await self._shown(faults, connection, surface, request_id):
                return
            await self._answer(ask, connection, faults, request_id, arrived_s, headers)
        except (Refusal, AskError, BodyTooLarge) as error:
            await self._refuse(connection, surface, request_id, error)

    def new_id(self) -> str:
        self._num_ids += 1
        return f"{self._id_prefix}{self._num_ids:08x}"

    def _accepted(
        self,
        scope: Message,
        headers: dict[bytes, bytes],
        surface: Surface | None,
        body: bytes,
        arrived_s: float,
    ) -> Ask:
        """The parsed request once path, key, rate and model are in order, else Refusal."""
        if surface is None:
            raise Refusal(404, f"Unknown request URL: {scope['method']} {scope['path']}")
        if scope["method"] != "POST":
            raise Refusal(405, f"Not allowed to {scope['method']} on {scope['path']}")
        dialect = SURFACE_DIALECT[surface]
        if not is_authorised(self.profile, headers):
            raise Refusal(401, "Incorrect API key provided.", code="invalid_api_key")
        if dialect is Dialect.ANTHROPIC and b"anthropic-version" not in headers:
            raise Refusal(400, "anthropic-version: header is required")
        if self.books.is_full:
            raise Refusal(503, 'the simulated invoice is full; POST {"reset": true} to it')
        self._gate.check_rate(self.profile, arrived_s)
        ask = parse_ask(surface, body)
        if ask.model != self.profile.model:
            raise Refusal(404, f"The model '{ask.model}' does not exist", code="model_not_found")
        if ask.prompt_tokens > self.profile.context_tokens_max:
            raise Refusal(
                400,
                f"This model's maximum context length is {self.profile.context_tokens_max} "
                f"tokens. However, your messages resulted in {ask.prompt_tokens} tokens.",
                code="context_length_exceeded",
            )
        return ask

    async def _answer(
        self,
        ask: Ask,
        connection: Connection,
        faults: tuple[Fault, ...],
        request_id: str,
        arrived_s: float,
        headers: dict[bytes, bytes],
    ) -> None:
        extra = [_JSON, (b"x-request-id", request_id.encode())]
        if ask.surface is Surface.COUNT_TOKENS:
            self.books.count_status(200)
            await connection.answer(200, extra, small_answers.count_tokens(ask))
            return
        is_embedding = ask.surface is Surface.EMBEDDINGS
        answer = (
            Answer(choices=(), output=0, reasoning=0)
            if is_embedding
            else compose(ask, self.profile, self._num_ids)
        )
        with self._gate.admitted(self.profile):
            generation = Generation(
                self.profile,
                self.books,
                connection=connection,
                now_s=lambda: self.now_s,
                epoch_s=self._epoch_s,
                load=lambda: self._gate.in_flight,
                rng=random.Random(self._rng.getrandbits(64)),
                request_id=request_id,
                client_request_id=headers.get(b"x-client-request-id", b"").decode("latin-1"),
                arrived_s=arrived_s,
                faults=faults,
            )
            prompt = self._prompt_tally(ask, arrived_s)
            if is_embedding:
                await generation.embed(ask, prompt)
                return
            reply = Reply(
                id=request_id,
                created_unix_s=int(self.unix_s(self.now_s)),
                model=self.profile.model,
                ask=ask,
                answer=answer,
                prompt=prompt,
                tokens_per_event=self.profile.tokens_per_event,
                usage_every_event=self.profile.usage_every_event,
            )
            await generation.run(reply, _WRITERS[ask.surface])

    def _prompt_tally(self, ask: Ask, now_s: float) -> Tally:
        total = ask.prompt_tokens
        if ask.surface is Surface.EMBEDDINGS:
            return Tally(input=total)
        if SURFACE_DIALECT[ask.surface] is Dialect.ANTHROPIC and not ask.cache_write:
            return Tally(input=total)  # there the caller must ask for caching
        cached = min(self._cache.look_up(self.profile, ask.prompt, now_s), total)
        fresh = total - cached
        if ask.cache_write == "1h":
            return Tally(cached_read=cached, cache_write_1h=fresh)
        if ask.cache_write == "5m":
            return Tally(cached_read=cached, cache_write_5m=fresh)
        return Tally(input=fresh, cached_read=cached)

    async def _models(self, headers: dict[bytes, bytes], connection: Connection) -> None:
        if not is_authorised(self.profile, headers):
            raise Refusal(401, "Incorrect API key provided.", code="invalid_api_key")
        dialect = Dialect.ANTHROPIC if b"anthropic-version" in headers else Dialect.OPENAI
        body = small_answers.models(self.profile, dialect, int(self.unix_s(self.now_s)))
        self.books.count_status(200)
        await connection.answer(200, [_JSON], body)

    async def _shown(
        self,
        faults: tuple[Fault, ...],
        connection: Connection,
        surface: Surface | None,
        request_id: str,
    ) -> bool:
        """Whether one of the faults has taken the place of an answer."""
        for fault in faults:
            match fault.mode:
                case FaultMode.DEAD:
                    await connection.abort()
                case FaultMode.HANG_BEFORE_HEADERS:
                    await connection.wait_until(self._timers.time() + HANG_S_MAX)
                    self.books.note_cancelled(request_id, at_s=self.now_s, tokens=0)
                    await connection.cut()
                case FaultMode.ERROR:
                    refusal = Refusal(fault.status, "simulated failure", code="simulated")
                    await self._refuse(connection, surface, request_id, refusal)
                case FaultMode.RATE_LIMITED:
                    refusal = Refusal(
                        429, "simulated rate limit", retry_after_s=fault.retry_after_s
                    )
                    await self._refuse(connection, surface, request_id, refusal)
                case FaultMode.HTML_200:
                    self.books.count_status(200)
                    html = [(b"content-type", b"text/html; charset=utf-8")]
                    await connection.answer(200, html, small_answers.HTML_PAGE)
                case FaultMode.ERROR_200:
                    self.books.count_status(200)
                    body = small_answers.error_body(
                        surface, 500, "simulated failure", request_id=request_id
                    )
                    await connection.answer(200, [_JSON], body)
                case _:
                    continue  # the others show themselves while the answer is generated
            self.books.count_fault(fault.mode)
            return True
        return False

    async def _refuse(
        self,
        connection: Connection,
        surface: Surface | None,
        request_id: str,
        error: Exception,
    ) -> None:
        status = getattr(error, "status", 413)
        self.books.count_status(status)
        body = small_answers.error_body(
            surface,
            status,
            str(error) or "request too large",
            request_id=request_id,
            param=getattr(error, "param", None),
            code=getattr(error, "code", None),
        )
        headers = [_JSON, (b"x-request-id", request_id.encode())]
        retry_after_s = getattr(error, "retry_after_s", None)
        if retry_after_s is not None:
            headers.append((b"retry-after", str(retry_after_s).encode()))
        await connection.answer(status, headers, body)

    async def _operate(self, scope: Message, connection: Connection) -> None:
        """The operator's own paths, which no provider has: invoice, stats, control."""
        body = await connection.body()
        await self._native.catch_up()
        try:
            status, result = self._operated(scope, body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            status, result = 400, {"error": str(error)}
        await connection.answer(status, [_JSON], encode(result))

    def _operated(self, scope: Message, body: bytes) -> tuple[int, Any]:
        match scope["method"], scope["path"]:
            case "GET", "/sim/invoice":
                books = self.books
                return 200, {"total_nanos": books.total_nanos, "lines": books.lines}
            case "GET", "/sim/stats":
                return 200, self.stats()
            case "GET", "/sim/profile":
                return 200, self.profile
            case "POST", "/sim/control":
                # A content type that a web page cannot send without asking first.
                if dict(scope["headers"]).get(b"content-type", b"")[:16] != b"application/json":
                    return 415, {"error": "send content-type: application/json"}
                self.control(msgspec.json.decode(body, type=dict[str, Any]))
                return 200, self.profile
        return 404, {"error": "unknown; use GET invoice, stats, profile or POST control"}

    def stats(self) -> dict[str, Any]:
        books = self.books
        return {
            "name": self.profile.name,
            "now_s": self.now_s,
            "requests_seen": books.requests_seen,
            "in_flight": self._gate.in_flight,
            "completed": books.completed,
            "cancelled": books.cancelled,
            "statuses": books.statuses,
            "faults": books.faults,
            "closed": books.closed,
            "billed_nanos": books.total_nanos,
        }

    def control(self, changes: dict[str, Any]) -> None:
        """Change the profile field by field. `reset` clears books and cache; `restart_clock`
        makes now the second 0 that fault windows and drift count from.
        """
        changes = dict(changes)
        is_reset = changes.pop("reset", False)
        is_restarted = changes.pop("restart_clock", False)
        self.profile = changed(self.profile, changes)
        if is_reset:
            self.books = Books(lines_max=self.books.lines_max)
            self._cache.clear()
        if is_restarted:
            self._epoch_s = self._timers.time()
            self._gate.reset()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
