"""F19: every route by form of credential, state of the key and scope, against one rule a route.

A route without a rule fails: whoever adds one must say here who may use it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
from litestar.routes import ASGIRoute, HTTPRoute

from gateway.api.app import build_litestar
from gateway.api.hot import GET_HANDLERS, POST_SURFACES
from gateway.pipeline import Gateway
from tests.support.guarded_world import (
    GOOD,
    GuardedWorld,
    checked_error,
    dialect_of,
    guarded_world,
    wait_until,
)
from tests.support.key_states import GOOD_STATES, credentials, issue, scoped

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use a route."""

    who: str  # "keys" | "this machine" | "everyone"
    surface: str = ""  # a scope that a key may be limited to
    by_model: bool = False  # the key's models hold here


RULES: dict[tuple[str, str], Rule] = {
    ("POST", "/v1/chat/completions"): Rule("keys", "chat", by_model=True),
    ("POST", "/v1/completions"): Rule("keys", "completions", by_model=True),
    ("POST", "/v1/responses"): Rule("keys", "responses", by_model=True),
    ("POST", "/v1/embeddings"): Rule("keys", "embeddings", by_model=True),
    ("POST", "/v1/messages"): Rule("keys", "messages", by_model=True),
    ("POST", "/v1/messages/count_tokens"): Rule("keys", "count_tokens", by_model=True),
    ("GET", "/v1/models"): Rule("keys"),
    ("GET", "/v1/models/"): Rule("keys", by_model=True),
    ("GET", "/v1/requests/"): Rule("keys"),
    ("GET", "/healthz"): Rule("everyone"),
    ("GET", "/readyz"): Rule("everyone"),
    ("GET", "/static/{name:str}"): Rule("everyone"),
    ("GET", "/"): Rule("this machine"),
    ("GET", "/status.json"): Rule("this machine"),
    ("GET", "/metrics"): Rule("this machine"),
}
KEYED = sorted(route for route, rule in RULES.items() if rule.who == "keys")
LOCAL = sorted(path for (_, path), rule in RULES.items() if rule.who == "this machine")

# Form → headers with this key in it. What is not a form that we read must not let anyone in.
Form = Callable[[str], Mapping[str, str]]
READ_FORMS: dict[str, Form] = {
    "Bearer": lambda key: {"authorization": f"Bearer {key}"},
    "bearer": lambda key: {"authorization": f"bearer {key}"},
    "x-api-key": lambda key: {"x-api-key": key},
    "api-key": lambda key: {"api-key": key},
    "the same twice": lambda key: {"authorization": f"Bearer {key}", "x-api-key": key},
}
UNREAD_FORMS: dict[str, Form] = {
    "none": lambda key: {},
    "Basic": lambda key: {"authorization": f"Basic {key}"},
    "no scheme": lambda key: {"authorization": key},
    "Token": lambda key: {"authorization": f"Token {key}"},
    "proxy-authorization": lambda key: {"proxy-authorization": f"Bearer {key}"},
    "cookie": lambda key: {"cookie": f"api_key={key}; authorization=Bearer {key}"},
    "x-goog-api-key": lambda key: {"x-goog-api-key": key},
    "x-auth-token": lambda key: {"x-auth-token": key},
    "x-forwarded-user": lambda key: {"x-forwarded-user": "admin", "x-remote-user": "admin"},
    "empty x-api-key": lambda key: {"x-api-key": ""},
}
OTHER_KEY = "lr-" + "0" * 57
CLASHING_FORMS: dict[str, Form] = {
    "two headers": lambda key: {"authorization": f"Bearer {key}", "x-api-key": OTHER_KEY},
    "two headers, the good one last": lambda key: {
        "authorization": f"Bearer {OTHER_KEY}",
        "api-key": key,
    },
    "two in one": lambda key: {"authorization": f"Bearer {key}, Bearer {OTHER_KEY}"},
    "two in x-api-key": lambda key: {"x-api-key": f"{OTHER_KEY}, {key}"},
}
SCOPES = {
    "all": scoped(),
    "gpt": scoped(["gpt"]),
    "claude": scoped(["claude"]),
    "chat": scoped(routes=["chat"]),
    "messages": scoped(routes=["messages", "count_tokens"]),
    "gpt by messages": scoped(["gpt"], ["messages"]),
}


@dataclass(frozen=True, slots=True)
class Matrix:
    world: GuardedWorld
    states: Mapping[str, str]
    scopes: Mapping[str, str]
    request_id: str  # of a request that the default tenant made

    def ask(
        self, method: str, route: str, headers: Mapping[str, str], query: str = ""
    ) -> httpx.Response:
        path = {"/v1/models/": "/v1/models/gpt", "/v1/requests/": f"/v1/requests/{self.request_id}"}
        body = json.dumps(GOOD[route]) if method == "POST" else None
        return self.world.http.request(
            method,
            self.world.url(path.get(route, route) + query),
            content=body,
            headers={"content-type": "application/json", **headers},
        )


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with guarded_world(tmp_path_factory.mktemp("f19")) as world:
        home = world.gateway.home
        scopes = dict(zip(SCOPES, issue(home, *SCOPES.values()), strict=True))
        states = credentials(home)
        world.serve_all()
        request_id = world.post("/v1/chat/completions").headers["x-looprouter-request-id"]
        url = world.url(f"/v1/requests/{request_id}")
        wait_until(
            lambda: world.http.get(url, headers=world.gateway.headers).status_code == 200,
            "the record of a request",
        )
        yield Matrix(world, states, scopes, request_id)


def routes_of_the_app() -> set[tuple[str, str]]:
    """All that is mounted, read from the tables that dispatch it."""
    found = {("POST", path) for path in POST_SURFACES} | {("GET", path) for path in GET_HANDLERS}
    for route in build_litestar(cast("Gateway", None)).routes:
        if isinstance(route, HTTPRoute):
            # HEAD comes with GET, OPTIONS answers with the methods alone.
            methods = {each for each in route.methods if each not in ("OPTIONS", "HEAD")}
            found |= {(str(method), route.path) for method in methods}
        else:
            assert isinstance(route, ASGIRoute), f"{route.path}: no rule for this kind of route"
            assert route.path == "/v1", f"{route.path}: a mount without a rule"
    return found


def test_f19_every_route_has_a_rule_and_every_rule_a_route() -> None:
    assert routes_of_the_app() == set(RULES)


def test_f19_a_new_route_without_a_rule_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", GET_HANDLERS), "/v1/secrets", None)

    assert routes_of_the_app() - set(RULES) == {("GET", "/v1/secrets")}


@pytest.mark.parametrize(("method", "route"), KEYED)
def test_f19_only_good_keys_in_forms_we_read_are_let_in(
    matrix: Matrix, method: str, route: str
) -> None:
    wrong: list[str] = []
    for state, key in matrix.states.items():
        for form, headers in READ_FORMS.items():
            answer = matrix.ask(method, route, headers(key))
            wanted = 200 if state in GOOD_STATES else 401
            if answer.status_code != wanted:
                wrong.append(f"{state} as {form}: {answer.status_code}, not {wanted}")

    assert wrong == []


@pytest.mark.parametrize(("method", "route"), KEYED)
def test_f19_no_other_form_lets_anyone_in_and_strangers_cost_nothing(
    matrix: Matrix, method: str, route: str
) -> None:
    world, key = matrix.world, matrix.states["valid"]
    world.wait_booked()
    with world.untouched():
        for form, headers in UNREAD_FORMS.items():
            answer = matrix.ask(method, route, headers(key))
            assert answer.status_code == 401, form
            checked_error(answer, dialect_of(route), 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        for query in (f"?api_key={key}", f"?key={key}", f"?access_token={key}"):
            assert matrix.ask(method, route, {}, query).status_code == 401, query
        for form, headers in CLASHING_FORMS.items():
            answer = matrix.ask(method, route, headers(key))
            assert answer.status_code == 400, form
            assert (
                "two different API keys" in checked_error(answer, dialect_of(route), 400)["message"]
            )


@pytest.mark.parametrize(("method", "route"), KEYED)
def test_f19_scopes_hold_whatever_form_the_key_comes_in(
    matrix: Matrix, method: str, route: str
) -> None:
    rule = RULES[method, route]
    model = GOOD[route]["model"] if method == "POST" else "gpt"
    wrong: list[str] = []
    for scope, wanted in SCOPES.items():
        may_model = not rule.by_model or not wanted.models or model in wanted.models
        may_route = not rule.surface or not wanted.routes or rule.surface in wanted.routes
        allowed = may_model and may_route
        for form, headers in READ_FORMS.items():
            status = matrix.ask(method, route, headers(matrix.scopes[scope])).status_code
            # A model that the key may not use looks like none where models are only shown.
            if status != (200 if allowed else 403 if method == "POST" else 404):
                wrong.append(f"{scope} as {form}: {status}")

    assert wrong == []


def test_f19_model_lists_show_what_the_key_may_use(matrix: Matrix) -> None:
    for scope, models in (("all", ["gpt", "claude"]), ("gpt", ["gpt"]), ("claude", ["claude"])):
        answer = matrix.ask("GET", "/v1/models", {"x-api-key": matrix.scopes[scope]})

        assert [each["id"] for each in answer.json()["data"]] == models


@pytest.mark.parametrize(
    "body",
    [
        {"model": "gpt", "models": ["claude"]},
        {"model": "gpt:nitro", "models": ["claude:floor"]},
        {"model": "anth-sim/claude-sim"},
        {"models": ["claude", "gpt"]},
        {"model": "claude:batch"},
    ],
)
def test_f19_no_way_of_naming_a_model_leads_around_the_scope(
    matrix: Matrix, body: dict[str, Any]
) -> None:
    world = matrix.world
    world.wait_booked()
    sent = {**GOOD["/v1/chat/completions"], **body}
    if "model" not in body:
        del sent["model"]
    limited = {"authorization": f"Bearer {matrix.scopes['gpt']}"}
    with world.untouched():
        answer = world.post("/v1/chat/completions", sent, **limited)

    assert answer.status_code == 403, answer.text


@pytest.mark.parametrize("path", LOCAL)
def test_f19_what_is_for_this_machine_is_not_for_those_behind_a_proxy(
    matrix: Matrix, path: str
) -> None:
    world = matrix.world
    assert world.http.get(world.url(path)).status_code == 200
    key = {"authorization": f"Bearer {matrix.states['valid']}"}
    for header in ("forwarded", "x-forwarded-for", "x-real-ip"):
        for value in ("127.0.0.1", "for=127.0.0.1", "::1", ""):
            answer = world.http.get(world.url(path), headers={header: value, **key})
            assert answer.status_code == 403, (header, value)
    for host in ("evil.example", "localhost.evil.example"):
        answer = world.http.get(world.url(path), headers={"host": host})
        assert answer.status_code in (200, 400)


def test_f19_open_routes_tell_nothing(matrix: Matrix) -> None:
    world = matrix.world
    assert world.http.get(world.url("/healthz")).text == "ok\n"
    assert world.http.get(world.url("/readyz")).text == "ready\n"
    for name in ("..%2f..%2fpolicy.yaml", "../site.py", "site.py", "%2e%2e/%2e%2e/pepper", ""):
        answer = world.http.get(world.url(f"/static/{name}"))
        assert answer.status_code == 404, name
