"""Calls to one provider's batch API over the Transport seam: small JSON, uploads, downloads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from gateway.batch.native.api import NativeError
from gateway.core import Endpoint
from gateway.errors import FailureClass
from gateway.providers.adapter import USER_AGENT, join_url, policy_headers
from gateway.providers.anthropic import VERSION
from gateway.providers.classify import classify_answer
from gateway.providers.transport import (
    Content,
    Headers,
    Transport,
    TransportError,
    UnsendableRequest,
    UpstreamRequest,
    UpstreamResponse,
)
from gateway.wire.pieces import Dialect

ANSWER_BYTES_MAX = 4 * 1024 * 1024  # a page of a hundred batches has about 100 kB
ERROR_BYTES_MAX = 64 * 1024
CALL_TIMEOUT_S = 60.0
UPLOAD_BYTES_PER_S_MIN = 250_000  # slower is as good as broken
REDIRECTS_MAX = 3
ABSENT_AFTER_S = 30.0  # a submission younger than this may not be listed yet
T = TypeVar("T")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class NativeClient:
    """One endpoint's address and key, and how its answers are understood."""

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        *,
        secret: str | None,
        verify_tls: bool = True,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint = endpoint
        self.base_url = _with_version(endpoint)
        self.other_key_header = b""  # takes the key's place outside the base URL
        self._transport = transport
        self._secret = secret
        self._verify_tls = verify_tls
        self._wall_clock = wall_clock

    def url(self, path: str) -> str:
        return join_url(self.base_url, path)

    async def get(self, url: str) -> Any:
        """The JSON value behind `url`. Raises NativeError."""
        return (await self._call(self._request("GET", url)))[0]

    async def post(self, url: str, body: object = None) -> Any:
        """Send `body` as JSON and take JSON. Raises NativeError, `is_lost` where it may be done."""
        data = b"" if body is None else msgspec.json.encode(body)
        return (await self._call(self._request("POST", url, data)))[0]

    async def delete(self, url: str) -> None:
        """Take away what is behind `url`, should it be there still. Raises NativeError."""
        try:
            await self._call(self._request("DELETE", url))
        except NativeError as error:
            if error.status not in (404, 410):
                raise

    async def send(
        self, url: str, content: Content | bytes, headers: dict[bytes, bytes]
    ) -> tuple[Any, Headers]:
        """Send bytes or a file under these headers; JSON (or nothing) and headers come back."""
        if isinstance(content, bytes):
            return await self._call(self._request("POST", url, content, headers=headers))
        request = self._request("POST", url, content=content, headers=headers)
        return await self._call(
            request, CALL_TIMEOUT_S + content.num_bytes / UPLOAD_BYTES_PER_S_MIN
        )

    async def download(self, url: str) -> AsyncIterator[bytes]:
        """The bytes behind `url`, as they come. Follows redirects; the key stays at home."""
        response = await self._opened(url)
        try:
            async for part in response.stream():
                yield part
        except TransportError as error:
            raise self._failed(error) from error
        finally:
            await response.aclose()

    async def _opened(self, url: str) -> UpstreamResponse:
        headers = {b"accept": b"*/*"}
        home = _origin(url)
        for _ in range(1 + REDIRECTS_MAX):
            request = self._request("GET", url, headers=headers, has_key=_origin(url) == home)
            response = await self._sent(request, CALL_TIMEOUT_S)
            if response.status == 200:
                return response
            location = dict(response.headers).get(b"location", b"")
            if response.status not in _REDIRECTS or not location:
                raise await self._refused(response)
            await response.aclose()
            url = urljoin(url, location.decode("latin-1"))
        raise NativeError(
            FailureClass.MISCONFIGURED,
            f"{self.endpoint.provider} redirects a download more than {REDIRECTS_MAX} times",
        )

    async def _call(
        self, request: UpstreamRequest, timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[Any, Headers]:
        response = await self._sent(request, timeout_s)
        if not 200 <= response.status < 300:
            raise await self._refused(response, is_write=request.method == "POST")
        is_lost = request.method == "POST"
        body = bytearray()
        try:
            async for part in response.stream():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise self._unreadable(f"is longer than {ANSWER_BYTES_MAX} bytes", is_lost)
        except TransportError as error:
            raise self._failed(error, is_write=is_lost) from error
        finally:
            await response.aclose()
        if not body.strip():
            return None, response.headers
        try:
            return msgspec.json.decode(body), response.headers
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._unreadable(f"is no JSON: {error}", is_lost) from error

    async def _sent(self, request: UpstreamRequest, timeout_s: float) -> UpstreamResponse:
        try:
            return await self._transport.send(request, headers_timeout_s=timeout_s)
        except TransportError as error:
            raise self._failed(error, is_write=request.method == "POST") from error
        except UnsendableRequest as error:
            raise NativeError(FailureClass.MISCONFIGURED, str(error)) from error

    def _failed(self, error: TransportError, *, is_write: bool = False) -> NativeError:
        return NativeError(
            error.failure,
            f"{self.endpoint.provider}'s batch API: {error.message}",
            is_lost=is_write and not error.was_refused,
        )

    async def _refused(self, response: UpstreamResponse, *, is_write: bool = False) -> NativeError:
        body = bytearray()
        try:
            async for part in response.stream():
                body += part
                if len(body) > ERROR_BYTES_MAX:
                    break
        except TransportError:
            pass  # the status tells enough
        finally:
            await response.aclose()
        fault = classify_answer(
            response.status, response.headers, bytes(body), now_unix_s=self._wall_clock()
        )
        return NativeError(
            fault.failure,
            f"{self.endpoint.provider}'s batch API answers {response.status}: "
            f"{fault.error.message}",
            # A server error may come after the work: what was created can only be looked for.
            is_lost=is_write and (response.status >= 500 or response.status == 408),
            status=response.status,
            retry_after_s=fault.retry_after_s,
        )

    def read(self, answer: object, shape: type[T], *, is_lost: bool = False) -> T:
        """`answer` as that struct. Raises NativeError when it has another shape."""
        try:
            return msgspec.convert(answer, shape, strict=False)
        except msgspec.ValidationError as error:
            raise self._unreadable(f"is not understood: {error}", is_lost) from error

    def _unreadable(self, what: str, is_lost: bool) -> NativeError:
        return NativeError(
            FailureClass.SERVER_ERROR,
            f"the answer of {self.endpoint.provider}'s batch API {what}",
            is_lost=is_lost,
        )

    def _request(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        content: Content | None = None,
        headers: dict[bytes, bytes] | None = None,
        has_key: bool = True,
    ) -> UpstreamRequest:
        given = {b"accept": b"application/json", b"user-agent": USER_AGENT}
        if method == "POST":
            given[b"content-type"] = b"application/json"
        if has_key:
            given |= dict(policy_headers(self.endpoint))
            given |= self._key_headers(url)
        return UpstreamRequest(
            method=method,
            url=url,
            headers=tuple((given | (headers or {})).items()),
            body=body,
            content=content,
            network=self.endpoint.network,
            verify_tls=self._verify_tls,
        )

    def _key_headers(self, url: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        if self.endpoint.api is Dialect.ANTHROPIC:
            found[b"anthropic-version"] = VERSION
        if not self._secret:
            return found
        key = self._secret.encode("latin-1")
        if self.endpoint.api is Dialect.ANTHROPIC:
            found[b"x-api-key"] = key
        elif self.other_key_header and not url.startswith(self.base_url.rstrip("/") + "/"):
            found[self.other_key_header] = key
        elif "api_key_header" in self.endpoint.quirks:
            found[b"api-key"] = key
        else:
            found[b"authorization"] = b"Bearer " + key
        return found

    def is_absent(self, submitted_at_s: float) -> bool:
        """Whether a submission of that Unix second that is not listed was surely never made."""
        return self._wall_clock() - submitted_at_s >= ABSENT_AFTER_S

    def same_origin(self, url: str) -> str:
        """`url` if it lies at the endpoint's own origin. Raises NativeError for any other."""
        if _origin(url) != _origin(self.base_url):
            raise NativeError(
                FailureClass.MISCONFIGURED,
                f"{self.endpoint.provider} sends us to {_origin(url)[1]!r}, which is not its own "
                "address; nothing was sent there",
            )
        return url


def _with_version(endpoint: Endpoint) -> str:
    """The base URL up to and including the version; Anthropic's SDKs leave it out."""
    base, mark, query = endpoint.base_url.partition("?")
    base = base.rstrip("/")
    if endpoint.api is Dialect.ANTHROPIC and not base.endswith("/v1"):
        base += "/v1"
    return f"{base}{mark}{query}"


def _origin(url: str) -> tuple[str, str]:
    split = urlsplit(url)
    return split.scheme, split.netloc.lower()
