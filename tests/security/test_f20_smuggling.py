"""F20: some 280 raw requests that two parsers could read differently, bare and behind nginx.

A mismatch would be: a hidden request that is served, a request served without its key or for
another route than the one in front decided on, or an answer that belongs to somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.guarded_world import GuardedWorld, guarded_world, wait_until
from tests.support.nginx_front import NginxFront, nginx_front
from tests.support.raw_http import RawConnection, RawTalk
from tests.support.smuggling_cases import (
    ASTRAY,
    AUTH,
    CRLF,
    EITHER,
    HOST_LINE,
    KEY,
    NOT_JSON,
    NOT_JSON_THEN,
    NOWHERE,
    PAIR,
    PAIR_REFUSED,
    PAIR_STRANGER,
    REFUSED,
    SERVED,
    STRANGER,
    RawCase,
    all_cases,
)

pytestmark = pytest.mark.e2e

CASES = all_cases()
AT_ONCE = 8
ENVIRON = {"LOOPROUTER_ALLOWED_HOSTS": "localhost,127.0.0.1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedWorld]:
    with guarded_world(tmp_path_factory.mktemp("f20"), environ=ENVIRON) as found:
        found.serve_all()
        yield found


def keyed(world: GuardedWorld, data: bytes) -> bytes:
    key = world.gateway.key.encode()
    assert len(key) == len(KEY)

    return data.replace(KEY, key)


def talk(world: GuardedWorld, port: int, case: RawCase) -> RawTalk:
    """All that comes back on one connection; a request in good order must still work behind it."""
    with RawConnection(port) as connection:
        connection.send(keyed(world, case.data))
        found = connection.read(first_s=5.0)
        if not found.is_closed and found.answers:
            probe = f"GET /v1/models/probe-{abs(hash(case.name))} HTTP/1.1\r\n".encode()
            connection.send(keyed(world, probe + HOST_LINE + AUTH + CRLF))
            behind = connection.read(first_s=5.0)
            if behind.answers:
                assert [answer.status for answer in behind.answers] == [404], case.name
                assert b"probe-%d" % abs(hash(case.name)) in behind.answers[0].body, case.name
        return found


def is_served(talk: RawTalk) -> bool:
    return [status for status in talk.statuses if status != 100] == [200]


def is_refused(talk: RawTalk) -> bool:
    """Nothing served; and where the framing itself is in doubt, nothing read after it."""
    if len(talk.answers) > 1 or any(not 400 <= status < 600 for status in talk.statuses):
        return False
    in_doubt = any(b'"bad_http"' in answer.body for answer in talk.answers)
    return talk.is_closed or not in_doubt


def verdict_holds(case: RawCase, talk: RawTalk) -> bool:
    statuses = talk.statuses
    match case.verdict:
        case _ if case.verdict == REFUSED:
            return bool(statuses) and is_refused(talk)
        case _ if case.verdict == SERVED:
            return is_served(talk)
        case _ if case.verdict == EITHER:
            return is_served(talk) or is_refused(talk)
        case _ if case.verdict == STRANGER:
            return statuses == [401]
        case _ if case.verdict == NOWHERE:
            return statuses == [404]
        case _ if case.verdict == ASTRAY:
            return statuses == [404] or is_refused(talk)
        case _ if case.verdict == NOT_JSON:
            return statuses == [400] and b"JSON" in talk.everything
        case _ if case.verdict == NOT_JSON_THEN:
            return statuses == [400, 404]
        case _ if case.verdict == PAIR:
            return statuses == [200, 200]
        case _ if case.verdict == PAIR_STRANGER:
            return statuses == [200, 401]
        case _ if case.verdict == PAIR_REFUSED:
            return statuses == [200, 400]
    raise AssertionError(case.verdict)


def test_f20_there_are_enough_cases_and_each_has_a_name_of_its_own() -> None:
    assert len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.verdict == REFUSED for case in CASES) >= 150


def test_f20_bare_every_case_is_read_in_one_way_only(world: GuardedWorld) -> None:
    wrong: list[str] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case, found in zip(
            CASES,
            pool.map(lambda each: talk(world, world.gateway.port, each), CASES),
            strict=True,
        ):
            # The one case whose second request is an honest one may ask for it.
            if b"smuggled" in found.everything and case.verdict != NOT_JSON_THEN:
                wrong.append(f"{case.name}: the hidden request was served")
            if not verdict_holds(case, found):
                wrong.append(
                    f"{case.name}: {case.verdict}, but {found.statuses} {found.rest[:80]!r}"
                )

    assert wrong == []


def test_f20_refusals_come_in_the_callers_dialect(world: GuardedWorld) -> None:
    for path, is_anthropic in ((b"/v1/messages", True), (b"/v1/chat/completions", False)):
        for extra in (
            b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: gzip, chunked\r\n",
            b"Host: a b\r\n",
            b"Host: a/b\r\n",
        ):
            host = b"" if b"Host" in extra else HOST_LINE
            data = b"POST " + path + b" HTTP/1.1\r\n" + host + AUTH + extra + CRLF + b"{}"
            with RawConnection(world.gateway.port) as connection:
                connection.send(keyed(world, data))
                [answer] = connection.read().answers

            body = json.loads(answer.body)
            assert answer.status == 400
            assert (body.get("type") == "error") is is_anthropic, body
            assert len(body["error"]["message"]) > 10


def test_f20_what_stands_behind_a_whole_request_does_not_take_its_answer(
    world: GuardedWorld,
) -> None:
    whole = next(case.data for case in CASES if case.name == "two honest posts")
    first = whole[: len(whole) // 2]
    with RawConnection(world.gateway.port) as connection:
        connection.send(keyed(world, first) + b"\x16\x03\x01 nonsense\r\n\r\n")
        found = connection.read()

    assert found.statuses == [200]
    assert found.is_closed


def num_asked(world: GuardedWorld) -> int:
    """Requests that reached the API, counted by the gateway."""
    text = world.http.get(world.url("/metrics")).text
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in text.splitlines()
        if line.startswith("gateway_requests_total{")
    )


@pytest.fixture(scope="module")
def front(world: GuardedWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxFront]:
    with nginx_front(world.gateway.port, tmp_path_factory.mktemp("nginx")) as found:
        yield found


def ask_behind(world: GuardedWorld, front: NginxFront, path: bytes) -> RawTalk:
    with RawConnection(front.port) as connection:
        connection.send(keyed(world, b"GET " + path + b" HTTP/1.1\r\n" + HOST_LINE + AUTH + CRLF))
        return connection.read(first_s=5.0, silence_s=0.02)


@pytest.mark.nginx
def test_f20_behind_nginx_no_hidden_request_arrives_and_no_answer_goes_astray(
    world: GuardedWorld, front: NginxFront
) -> None:
    wrong: list[str] = []
    asked, passed_on = num_asked(world), len(front.passed_on())
    num_refused = num_hidden = 0
    for idx, case in enumerate(CASES):
        with RawConnection(front.port) as connection:
            connection.send(keyed(world, case.data))
            found = connection.read(first_s=0.5, silence_s=0.02)
        num_hidden += found.everything.count(b"smuggled")
        num_refused += sum(b'"bad_http"' in answer.body for answer in found.answers)
        # The next one through the same connection to the gateway must get its own answer.
        probe = ask_behind(world, front, b"/v1/models/probe-%d-" % idx)
        if probe.statuses != [404] or b"probe-%d-" % idx not in probe.everything:
            wrong.append(f"{case.name}: the next request got {probe.statuses}")

    assert wrong == []
    # What nginx passed on is what the gateway was asked: neither counts one that the other missed.
    # (nginx takes a CR behind a length for nothing, so some hidden ones are honest to it: it
    # passes them on itself, each as a request of its own.)
    targets = front.passed_on()[passed_on:]
    assert num_hidden == targets.count("/v1/models/smuggled")
    in_api = [target for target in targets if target.startswith("/v1")]
    expected = asked + len(in_api) - num_refused
    wait_until(lambda: num_asked(world) >= expected, f"{expected} requests, not {num_asked(world)}")
    assert num_asked(world) == expected


# For nginx these lie under a path it forbids, or (the last ones) beside it.
DISGUISES = (
    b"/v1/requests/ID", b"/v1//requests/ID", b"//v1/requests/ID", b"/v1/./requests/ID",
    b"/v1/x/../requests/ID", b"/v1/%72equests/ID", b"/v1/requests%2fID", b"/%76%31/requests/ID",
    b"/v1/models/../requests/ID", b"/v1/models/..%2frequests/ID", b"/v1/requests/./ID",
    b"/v1/requests/x/../ID", b"/v1/requests;x/ID", b"/v1/requests/ID?x=/../../models",
    b"/v1/requests/ID%00", b"/v1/REQUESTS/ID", b"/v1/requests\\ID", b"/v1%2frequests%2fID",
    b"/healthz/../v1/requests/ID", b"/static/../v1/requests/ID", b"/v1/models?/../requests/ID",
    b"/metrics", b"//metrics", b"/%6detrics", b"/metrics/", b"/x/../metrics", b"/metrics%00",
    b"/static/..%2fmetrics", b"/static/%2e%2e/metrics", b"/metrics;x", b"/METRICS", b"/status.json",
    b"/status%2ejson", b"/./status.json", b"/static/../status.json", b"/?", b"//", b"/.", b"/x/..",
)  # fmt: skip


@pytest.mark.nginx
def test_f20_behind_nginx_no_disguise_of_a_path_leads_past_its_rules(
    world: GuardedWorld, front: NginxFront
) -> None:
    request_id = world.post("/v1/chat/completions").headers["x-looprouter-request-id"]
    url = world.url(f"/v1/requests/{request_id}")
    wait_until(
        lambda: world.http.get(url, headers=world.gateway.headers).status_code == 200, "a record"
    )
    for path in DISGUISES:
        found = ask_behind(world, front, path.replace(b"ID", request_id.encode()))

        assert b'"object":"request"' not in found.everything, path
        assert b"gateway_requests_total" not in found.everything, path
        assert b"policy_version" not in found.everything, path
        assert b"<html" not in found.everything or b"nginx" in found.everything, path


@pytest.mark.nginx
def test_f20_behind_nginx_headers_with_underscores_are_no_credentials(
    world: GuardedWorld, front: NginxFront, tmp_path: Path
) -> None:
    for port in (world.gateway.port, front.port):
        for name in (b"X_Api_Key", b"Api_Key", b"HTTP_AUTHORIZATION", b"X-Api_Key"):
            with RawConnection(port) as connection:
                head = b"GET /v1/models HTTP/1.1\r\n" + HOST_LINE + name + b": " + KEY + CRLF + CRLF
                connection.send(keyed(world, head))

                assert connection.read(silence_s=0.02).statuses == [401], name
