"""Everything that is not hot: health, metrics and the read-only status page, as Litestar routes."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from gateway import __version__
from gateway.api.hot import check_host
from gateway.api.status import SpendCache, status_summary
from gateway.errors import ApiError
from gateway.pipeline import Gateway

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
_HERE = Path(__file__).parent
_STATIC_TYPES = {"status.css": "text/css", "status.js": "text/javascript"}
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def site_routes(gateway: Gateway) -> list[ControllerRouterHandler]:
    """The handlers, closed over the gateway."""
    spend = SpendCache()

    @get("/healthz", media_type=MediaType.TEXT)
    async def healthz() -> str:
        return "ok\n"

    @get("/readyz", media_type=MediaType.TEXT)
    async def readyz() -> Response[str]:
        if gateway.is_draining:
            return Response("draining\n", status_code=503)
        if not gateway.is_ready:
            return Response("starting\n", status_code=503)
        return Response("ready\n")

    @get("/metrics")
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        refusal = refuse_stranger(request, gateway)
        if refusal is not None:
            return refusal
        fleet, endpoints = gateway.fleet, gateway.policy().endpoints
        breakers = {each: str(fleet.metrics(each)["breaker"]) for each in endpoints}
        calibrations = {each: fleet.calibration(each) for each in endpoints}
        return Response(
            gateway.metrics.render(breakers, calibrations),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    @get("/")
    async def status_page(request: Request[Any, Any, Any]) -> Response[bytes]:
        refusal = refuse_stranger(request, gateway)
        if refusal is not None:
            return refusal
        summary = await status_summary(gateway, spend, __version__)
        html = (
            page_templates().get_template("status.html").render(status=summary, version=__version__)
        )
        return Response(html.encode(), media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)

    @get("/status.json")
    async def status_json(request: Request[Any, Any, Any]) -> Response[bytes]:
        refusal = refuse_stranger(request, gateway)
        if refusal is not None:
            return refusal
        body = msgspec.json.encode(await status_summary(gateway, spend, __version__))
        return Response(body, media_type="application/json", headers=_PAGE_HEADERS)

    @get("/static/{name:str}")
    async def static(name: FromPath[str]) -> Response[bytes]:
        media_type = _STATIC_TYPES.get(name)
        if media_type is None:
            return Response(b"not found\n", status_code=404, media_type="text/plain")
        body = (_HERE / "static" / name).read_bytes()
        return Response(body, media_type=media_type, headers={"x-content-type-options": "nosniff"})

    return [healthz, readyz, metrics, status_page, status_json, static]


@cache
def page_templates() -> Any:
    """Built for the first page: a server that only routes needs no templates."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def refuse_stranger(request: Request[Any, Any, Any], gateway: Gateway) -> Response[bytes] | None:
    """Spend and speed are the operator's: only this machine sees them, under one of its names.

    A proxied request is refused too, unless a trusted proxy names a client of this machine.
    """
    try:
        check_host(request.headers.get("host", ""), gateway.allowed_hosts)
    except ApiError as error:
        return Response(error.message.encode(), status_code=400, media_type="text/plain")
    peer = request.client.host if request.client is not None else ""
    is_proxied = any(name in request.headers for name in _PROXY_HEADERS)
    # Every line of it: a proxy may have added its own behind one that the client sent.
    chain = ",".join(request.headers.getall("x-forwarded-for", []))
    hops = [*chain.split(","), peer] if is_proxied else [peer]
    address = asking_address(hops, gateway.settings.trusted_proxies)
    if gateway.settings.status_is_public or (address is not None and address.is_loopback):
        return None
    return Response(
        b"the status page and the metrics answer only to this machine; "
        b"set LOOPROUTER_STATUS_PUBLIC=1 to open them\n",
        status_code=403,
        media_type="text/plain",
    )


def asking_address(hops: Sequence[str], trusted: Sequence[Network]) -> Address | None:
    """
    Whose request it is, of the addresses in X-Forwarded-For and then the peer's own.

    The last that is no trusted proxy counts: what stands before it the client may have written
    itself. None where that is the peer, who speaks for others without being trusted to.
    """
    address: Address | None = None
    for place in range(len(hops) - 1, -1, -1):
        try:
            address = ipaddress.ip_address(hops[place].strip())
        except ValueError:
            return None
        if not any(address in network for network in trusted):
            is_untrusted_proxy = place == len(hops) - 1 and len(hops) > 1
            return None if is_untrusted_proxy else address
    return address
