"""The Transport that httpx provides: HTTP/1.1, no proxies, no redirects, no cookies kept."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import certifi
import httpcore
import httpx

from gateway.core import Network
from gateway.errors import FailureClass
from gateway.providers.decoding import BodyDecoder, DecodingError
from gateway.providers.guarded_backend import (
    GuardedBackend,
    Resolver,
    Sending,
    SocketStream,
    sending,
)
from gateway.providers.netguard import ForbiddenTarget, Target, check_url
from gateway.providers.pool import KeepAlivePool
from gateway.providers.transport import (
    CONNECT_TIMEOUT_S,
    HEADERS_TIMEOUT_S,
    Content,
    Headers,
    SendProgress,
    TransportCounters,
    TransportError,
    UnsendableRequest,
    UpstreamRequest,
    UpstreamResponse,
    check_request,
)

CONNECTIONS_MAX = 1024
IDLE_CONNECTIONS_MAX = 256
IDLE_S_MAX = 30.0  # below the keep-alive limit of common servers and balancers
WRITE_TIMEOUT_S = 30.0
POOL_TIMEOUT_S = 2.0
TARGETS_MAX = 1024

_HTTPCORE_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


_Lane = tuple[Network, bool]  # where addresses may lie, and whether certificates are checked
_LANES: tuple[_Lane, ...] = (
    (Network.PUBLIC, True),
    (Network.PRIVATE, True),
    (Network.PRIVATE, False),
)


class _PoolTransport(httpx.AsyncBaseTransport):
    """httpx's lower half over a pool of httpcore connections that we configure."""

    def __init__(self, pool: KeepAlivePool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        answer = await self._pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_BodyStream(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _BodyStream(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


class HttpxTransport:
    """One httpx client for each lane, so that pooled connections never cross a rule."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._clock = clock
        self._counters = TransportCounters()
        self._targets: dict[tuple[str, Network], Target] = {}
        self._backends: dict[_Lane, GuardedBackend] = {}
        self._clients: dict[_Lane, httpx.AsyncClient] = {}
        verified = ssl_context or trusting_context()
        for lane in _LANES:
            network, verify_tls = lane
            backend = GuardedBackend(network, clock=clock, resolve=resolve)
            pool = KeepAlivePool(
                verified if verify_tls else believing_context(),
                backend,
                connections_max=connections_max,
                idle_max=min(IDLE_CONNECTIONS_MAX, connections_max),
                idle_s_max=IDLE_S_MAX,
            )
            self._backends[lane] = backend
            self._clients[lane] = httpx.AsyncClient(
                transport=_PoolTransport(pool),
                trust_env=False,
                follow_redirects=False,
                cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
            )

    @property
    def counters(self) -> TransportCounters:
        counters = self._counters
        counters.num_connections = sum(one.num_connections for one in self._backends.values())
        return counters

    async def send(
        self,
        request: UpstreamRequest,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        headers_timeout_s: float = HEADERS_TIMEOUT_S,
        progress: SendProgress | None = None,
    ) -> UpstreamResponse:
        check_request(request)
        progress = progress if progress is not None else SendProgress()
        self._counters.num_requests += 1
        try:
            self._check_target(request)
            prepared = _prepare(request, connect_timeout_s)
            async with asyncio.timeout(headers_timeout_s):
                client = self._clients[request.network, request.verify_tls]
                return await self._send_fresh(client, prepared, progress)
        except TimeoutError as error:
            raise self._failed(
                FailureClass.TIMEOUT_FIRST_TOKEN,
                f"no answer from the endpoint within {headers_timeout_s:g} s",
                was_refused=not progress.is_sent,
            ) from error
        except ForbiddenTarget as error:
            self._counters.num_forbidden += 1
            message = f"the network rule refused the connection: {error}"
            raise self._failed(FailureClass.MISCONFIGURED, message, was_refused=True) from error

    async def _send_fresh(
        self, client: httpx.AsyncClient, prepared: httpx.Request, progress: SendProgress
    ) -> UpstreamResponse:
        """Send; once more if a pooled connection proved dead before it took a byte."""
        for is_last in (False, True):
            with sending(progress) as current:
                try:
                    answer = await client.send(prepared, stream=True)
                except _HTTPCORE_ERRORS as error:
                    if not (is_last or progress.is_sent or current.is_connected) and (
                        current.has_failed_write
                    ):
                        self._counters.num_stale_retries += 1
                        continue
                    raise self._explained(error, current) from error
            return await self._checked(answer)
        raise AssertionError("the loop returns or raises")

    async def _checked(self, answer: httpx.Response) -> UpstreamResponse:
        stream = answer.extensions["network_stream"]
        assert isinstance(stream, SocketStream)

        problem = ""
        if stream.num_reads == 0:
            # Left over from the connection's last answer: nothing says which request it is for.
            problem = "bytes of an answer came before the request was sent"
        elif answer.status_code == 101:
            problem = "the endpoint switched protocols without being asked"
        decoder: BodyDecoder | None = None
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        if not problem and encoding not in ("", "identity"):
            try:
                decoder = BodyDecoder(encoding)
            except DecodingError as error:
                problem = str(error)
        if problem:
            await answer.aclose()
            await stream.aclose()
            raise self._failed(FailureClass.SERVER_ERROR, problem, was_refused=False)
        return _HttpxResponse(answer, stream, decoder)

    def _check_target(self, request: UpstreamRequest) -> None:
        key = (request.url, request.network)
        if key not in self._targets:
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[key] = check_url(request.url, request.network)

    def _explained(self, error: Exception, current: Sending) -> TransportError:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        is_complete = current.progress.is_sent and not current.has_failed_write
        if isinstance(error, httpcore.RemoteProtocolError) and (
            current.stream is not None and current.stream.num_reads
        ):
            return self._failed(FailureClass.SERVER_ERROR, what, was_refused=False)
        return self._failed(FailureClass.CONNECT, what, was_refused=not is_complete)

    def _failed(self, failure: FailureClass, message: str, *, was_refused: bool) -> TransportError:
        by_failure = self._counters.by_failure
        by_failure[failure] = by_failure.get(failure, 0) + 1
        return TransportError(failure, message, was_refused=was_refused)

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


class _Measured:
    """Content that is checked to have the length it says: h11's own error would come out raw."""

    def __init__(self, content: Content) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in self._content:
            num_bytes += len(piece)
            if num_bytes > self._content.num_bytes:
                break
            yield piece
        if num_bytes != self._content.num_bytes:
            raise UnsendableRequest(
                f"the content has {num_bytes} bytes where {self._content.num_bytes} were announced"
            )


class _HttpxResponse:
    """An open answer; see UpstreamResponse."""

    def __init__(
        self, answer: httpx.Response, stream: SocketStream, decoder: BodyDecoder | None
    ) -> None:
        self._answer = answer
        self._socket = stream
        self._decoder = decoder
        self.status = answer.status_code
        self.headers: Headers = tuple((name.lower(), value) for name, value in answer.headers.raw)
        self.headers_at_s = stream.read_at_s
        self.read_at_s = stream.read_at_s

    async def stream(self) -> AsyncIterator[bytes]:
        decoder = self._decoder
        try:
            async for part in self._answer.aiter_raw():
                self.read_at_s = self._socket.read_at_s
                if decoder is None:
                    yield part
                else:
                    for decoded in decoder.feed(part):
                        yield decoded
            if decoder is not None:
                decoder.close()
        except (*_HTTPCORE_ERRORS, httpx.StreamError, DecodingError) as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            raise TransportError(FailureClass.STREAM_BROKEN, what, was_refused=False) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


def trusting_context() -> ssl.SSLContext:
    """The system's certificate authorities (a company's own among them) and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def believing_context() -> ssl.SSLContext:
    """Accepts any certificate: an own machine with a self-signed one (`verify_tls: false`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _prepare(request: UpstreamRequest, connect_timeout_s: float) -> httpx.Request:
    timeout = {
        "connect": connect_timeout_s,
        "read": None,  # the relay's timers watch the reading
        "write": WRITE_TIMEOUT_S,
        "pool": POOL_TIMEOUT_S,
    }
    headers = [(b"accept-encoding", b"identity"), *request.headers]
    content: bytes | _Measured | None = request.body if request.method == "POST" else None
    if request.content is not None:
        content = _Measured(request.content)
        headers.append((b"content-length", b"%d" % request.content.num_bytes))
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        content=content,
        extensions={"timeout": timeout},
    )
