"""The edge: no middleware on the hot mount, every method and path answered in the dialect."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import cast

import httpx
import pytest
from litestar.routes import ASGIRoute

from gateway.api.app import build_litestar
from gateway.api.hot import GET_HANDLERS, POST_SURFACES
from gateway.app.server import without_h2c_offer
from gateway.pipeline import Gateway
from gateway.wire.pieces import Dialect
from tests.support.guarded_world import (
    GOOD,
    GuardedWorld,
    checked_error,
    dialect_of,
    guarded_world,
)

CHAT = "/v1/chat/completions"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedWorld]:
    with guarded_world(tmp_path_factory.mktemp("edge")) as found:
        found.serve_all()
        yield found


def test_no_middleware_stands_before_the_hot_mount() -> None:
    app = build_litestar(cast("Gateway", None))
    [mount] = [route for route in app.routes if isinstance(route, ASGIRoute)]

    assert mount.path == "/v1"
    assert list(app.middleware) == []
    assert list(mount.route_handler.resolve_middleware()) == []
    assert list(mount.route_handler.resolve_guards()) == []
    for hook in ("before_request", "after_request", "after_response", "csrf_config"):
        assert not getattr(app, hook), hook
    assert app.cors_config is None
    assert app.openapi_config is None


@pytest.mark.e2e
@pytest.mark.parametrize("path", [*sorted(GOOD), "/v1/models", "/v1/models/gpt"])
@pytest.mark.parametrize("method", METHODS)
def test_wrong_methods_are_405_in_the_dialect(world: GuardedWorld, method: str, path: str) -> None:
    right = "POST" if path in POST_SURFACES else "GET"
    with world.untouched():
        answer = world.http.request(
            method,
            world.url(path),
            content=b"" if method == right else json.dumps(GOOD.get(path, {})).encode(),
            headers=world.gateway.headers,
        )

    if method == right:
        assert answer.status_code == (400 if right == "POST" else 200)
        return
    error = checked_error(answer, dialect_of(path), 405)
    assert f"takes {right}, not {method}" in error["message"]
    assert answer.headers["allow"] == right


@pytest.mark.e2e
@pytest.mark.parametrize("path", [*sorted(GOOD), *sorted(GET_HANDLERS)])
def test_head_has_no_body_and_calls_nobody(world: GuardedWorld, path: str) -> None:
    with world.untouched():
        answer = world.http.head(world.url(path), headers=world.gateway.headers)

    assert answer.status_code in (404, 405)
    assert answer.content == b""


UNKNOWN = (
    "/v1", "/v1/", "/v1/nothing", "/v1/chat", "/v1/chat/completions/", "/v1/chat/completions/x",
    "/v1//chat/completions", "/v1/chat//completions", "/v1/Chat/Completions",
    "/v1/messages/batches/", "/v1/files/x/y", "/v1/requests", "/v1/key/generate", "/v1/config",
    "/v1/admin", "/v1/%63hat/completions", "/v1/chat%2fcompletions", "/v1/chat/completions%00",
    "/v1/chat/completions;a=b", "/v1/x/../chat/completions", "/v1/chat/completions.json",
)  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_paths_under_v1_are_404_in_the_dialect(
    world: GuardedWorld, method: str, path: str
) -> None:
    """Sent as written: a client library would tidy the path up."""
    host, port = "127.0.0.1", world.gateway.port
    body = json.dumps(GOOD["/v1/chat/completions"])
    key = world.gateway.headers["authorization"]
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: {key}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with world.untouched(), socket.create_connection((host, port), timeout=10) as sock:
        sock.sendall((head + body).encode())
        received = b"".join(iter(lambda: sock.recv(65536), b""))

    answer_head, _, answer_body = received.partition(b"\r\n\r\n")
    assert int(answer_head.split(b" ", 2)[1]) == 404, received[:300]
    error = json.loads(answer_body)["error"]
    assert error["type"] in ("not_found_error", "invalid_request_error")
    assert error["message"]


@pytest.mark.e2e
def test_unknown_paths_answer_an_anthropic_client_in_its_dialect(world: GuardedWorld) -> None:
    headers = {**world.gateway.headers, "anthropic-version": "2023-06-01"}
    for path in (
        "/v1/nothing",
        "/v1/messages/batches/none",
        "/v1/models/none",
        "/v1/requests/none",
    ):
        answer = world.http.get(world.url(path), headers=headers)

        assert checked_error(answer, Dialect.ANTHROPIC, 404)["type"] == "not_found_error"


@pytest.mark.e2e
def test_a_websocket_is_not_opened(world: GuardedWorld) -> None:
    answer = world.http.get(
        world.url("/v1/chat/completions"),
        headers={
            **world.gateway.headers,
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        },
    )

    assert answer.status_code == 400
    assert "cannot be upgraded" in answer.json()["error"]["message"]
    assert answer.headers["connection"] == "close"


@pytest.mark.e2e
def test_an_offer_of_http2_is_left_alone_and_the_request_served(world: GuardedWorld) -> None:
    """As Java's own HTTP client makes it with the first request to every plain-text host."""
    world.serve_all()
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMA"}
    answer = httpx.post(
        world.url(CHAT), json=GOOD[CHAT], headers={**world.gateway.headers, **offer}
    )

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    world.wait_booked()


def test_only_the_offer_in_the_first_head_is_taken_out() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\n"
    body = b"\r\nUpgrade: h2c\r\n"

    offer = head + b"UPGRADE: h2c\r\nX: h2c\r\n\r\n" + body
    assert without_h2c_offer(offer) == head + b"X: h2c\r\n\r\n" + body
    for other in (b"Upgrade: websocket", b"Upgrade: h2c, websocket", b"X-Upgrade: h2c"):
        assert without_h2c_offer(head + other + b"\r\n\r\n") == head + other + b"\r\n\r\n"
