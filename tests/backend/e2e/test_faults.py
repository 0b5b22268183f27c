"""Clients that leave, send nonsense or too much: they are told, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from tests.support.backend_process import RunningBackend

pytestmark = pytest.mark.e2e

MODEL = "spelling"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
CONTEXT = 16_384
ENDLESS = {"model": MODEL, "prompt": "a", "max_tokens": 15_000, "stream": True}


def error_of(backend: RunningBackend, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    status, headers, answer = backend.ask("POST", path, body)
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    return status, json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[1]", None),
        (b'{"model": "spelling", "model": "x"}', None),
        ({"model": MODEL}, "messages"),
        ({"messages": HI}, "model"),
        ({"model": MODEL, "messages": HI, "temperature": "hot"}, "temperature"),
        ({"model": MODEL, "messages": HI, "top_p": 1.5}, "top_p"),
        ({"model": MODEL, "messages": HI, "n": 129}, "n"),
        ({"model": MODEL, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0]"),
        ({"model": MODEL, "messages": HI, "response_format": {"type": "json_object"}},
         "response_format"),
        ({"model": MODEL, "messages": HI, "logit_bias": {"294": 1}}, "logit_bias"),
        ({"model": MODEL, "messages": HI, "speculation": {"method": "magic"}},
         "speculation.method"),
        ({"model": MODEL, "messages": HI, "top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ],
)  # fmt: skip
def test_malformed_request_is_a_400_in_openais_shape(
    backend: RunningBackend, body: Any, param: str | None
) -> None:
    status, error = error_of(backend, CHAT, body)

    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "x" * CONTEXT}]}),
        (CHAT, {"model": MODEL, "messages": HI, "max_tokens": CONTEXT - 2}),
        (TEXT, {"model": MODEL, "prompt": "x" * CONTEXT}),
        (TEXT, {"model": MODEL, "prompt": "x" * (CONTEXT - 12), "max_tokens": 13}),
    ],
)
def test_context_overflow_has_openais_code(
    backend: RunningBackend, path: str, body: dict[str, Any]
) -> None:
    status, error = error_of(backend, path, body)

    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == ("messages" if path == CHAT else "prompt")
    assert str(CONTEXT) in error["message"]


def test_context_can_be_filled_to_the_last_token(backend: RunningBackend) -> None:
    body = {"model": MODEL, "prompt": "x" * (CONTEXT - 12), "max_tokens": 12}

    assert len(backend.post(TEXT, body)["choices"][0]["text"]) == 12


@pytest.mark.parametrize("prompt", [[294], [[0, 10**6]], ""])
def test_prompt_that_the_model_has_no_tokens_for_is_refused(
    backend: RunningBackend, prompt: Any
) -> None:
    status, error = error_of(backend, TEXT, {"model": MODEL, "prompt": prompt})

    assert (status, error["param"]) == (400, "prompt")


def test_template_that_refuses_is_the_callers_error(backend: RunningBackend) -> None:
    body = {"model": MODEL, "messages": [{"role": "tool", "content": "x"}]}

    status, error = error_of(backend, CHAT, body)

    assert (status, error["param"]) == (400, "messages")
    assert "no answer before a call" in error["message"]


def test_other_model_is_not_found(backend: RunningBackend) -> None:
    status, error = error_of(backend, CHAT, {"model": "gpt-5", "messages": HI})

    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert MODEL in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/nosuch", 404),
        ("GET", "/", 404),
        ("GET", "/v1/models/other", 404),
        ("HEAD", "/health", 200),
    ],
)
def test_other_paths_and_methods(
    backend: RunningBackend, method: str, path: str, status: int
) -> None:
    assert backend.ask(method, path)[0] == status


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_web_page_cannot_use_a_server_without_keys(
    backend: RunningBackend, headers: dict[str, str]
) -> None:
    body = {"model": MODEL, "messages": HI}

    status, _, answer = backend.ask("POST", CHAT, body, headers)

    assert status == 403
    assert json.loads(answer)["error"]["code"] == "not_local"


def test_body_over_the_limit_is_refused_before_it_is_read(backend: RunningBackend) -> None:
    with socket.create_connection(("127.0.0.1", backend.port), timeout=10) as sock:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n"
        sock.sendall(head.encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")


def test_head_that_never_ends_is_cut(backend: RunningBackend) -> None:
    with socket.create_connection(("127.0.0.1", backend.port), timeout=10) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nx: " + b"a" * 200_000)
        assert sock.recv(4096).startswith(b"HTTP/1.1 431")


def test_bytes_that_are_no_http_get_an_answer(backend: RunningBackend) -> None:
    with socket.create_connection(("127.0.0.1", backend.port), timeout=10) as sock:
        sock.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        answer = sock.recv(4096)

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"invalid_request_error" in answer


def _open_stream(backend: RunningBackend) -> http.client.HTTPResponse:
    """A stream whose first bytes have come; the connection hangs on the response."""
    connection = http.client.HTTPConnection("127.0.0.1", backend.port, timeout=30)
    connection.request("POST", TEXT, body=json.dumps(ENDLESS))
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.readline().startswith(b"data: ")
    answer.connection = connection  # type: ignore[attr-defined]  # keeps the socket open
    return answer


def _leave(answer: http.client.HTTPResponse) -> None:
    answer.connection.sock.close()  # type: ignore[attr-defined]  # set above
    answer.close()


def test_client_that_leaves_a_stream_frees_its_blocks(backend: RunningBackend) -> None:
    streams = [_open_stream(backend) for _ in range(4)]
    before = _ended(backend, "cancelled")
    assert backend.get("/v1/load")["kv_blocks_used"] >= 4

    for each in streams:
        _leave(each)

    backend.assert_all_blocks_free()
    assert _ended(backend, "cancelled") - before == 4


def test_client_that_leaves_before_a_whole_answer_frees_its_blocks(
    backend: RunningBackend,
) -> None:
    before = _ended(backend, "cancelled")
    body = json.dumps({**ENDLESS, "stream": False, "n": 8}).encode()
    with socket.create_connection(("127.0.0.1", backend.port), timeout=10) as sock:
        head = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        deadline_s = time.monotonic() + 10
        while backend.get("/v1/load")["num_running"] < 8 and time.monotonic() < deadline_s:
            time.sleep(0.005)

    backend.assert_all_blocks_free()
    assert _ended(backend, "cancelled") - before == 8


def _ended(backend: RunningBackend, finish: str) -> float:
    text = backend.ask("GET", "/metrics")[2].decode()
    start = f'backend_sequences_total{{finish="{finish}"}} '
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(start))


def test_others_go_on_while_clients_leave_and_send_nonsense(
    backend: RunningBackend, client: OpenAI
) -> None:
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            _leave(_open_stream(backend))
            backend.ask("POST", CHAT, b"{")
            backend.ask("POST", TEXT, {"model": MODEL, "prompt": [999]})

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(
                    lambda _: client.chat.completions.create(model=MODEL, messages=HI),  # type: ignore[arg-type]  # plain dicts
                    range(24),
                )
            )
    finally:
        stop.set()
        disturber.join()

    assert {each.choices[0].message.content for each in answers} == {"Hello world, how are you?"}


def test_thirty_two_streams_at_once_all_finish(backend: RunningBackend, client: OpenAI) -> None:
    def stream(idx: int) -> tuple[str, str | None]:
        chunks = list(
            client.completions.create(
                model=MODEL, prompt="a" * (1 + idx), max_tokens=64, seed=idx, stream=True
            )
        )
        return "".join(each.choices[0].text for each in chunks), chunks[-1].choices[0].finish_reason

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(stream, range(32)))

    assert all(len(text) == 64 and finish == "length" for text, finish in answers)
    alone = stream(7)
    assert answers[7] == alone


def test_batch_priority_by_field_and_by_header(backend: RunningBackend) -> None:
    body = {"model": MODEL, "prompt": "<|go|>", "max_tokens": 3}

    by_field = backend.post(TEXT, {**body, "priority": "batch"})
    by_header = backend.post(TEXT, body, x_looprouter_priority="batch")
    status, error = backend.ask("POST", TEXT, body, {"x-looprouter-priority": "later"})[::2]

    assert by_field["choices"][0]["text"] == by_header["choices"][0]["text"] == "Hello world"
    assert status == 400
    assert b"x-looprouter-priority" in error


def test_metrics_are_prometheus_text(backend: RunningBackend, client: OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=HI)  # type: ignore[arg-type]  # plain dicts

    status, headers, body = backend.ask("GET", "/metrics")

    text = body.decode()
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    for name in (
        'backend_requests_total{route="/v1/chat/completions",status="200"}',
        "backend_ttft_seconds_bucket",
        "backend_inter_token_seconds_bucket",
        "backend_step_seconds_count",
        "backend_kv_blocks ",
        "backend_preemptions ",
        "backend_cached_prompt_tokens_total ",
    ):
        assert name in text, name


def test_load_has_every_documented_field(backend: RunningBackend, client: OpenAI) -> None:
    client.completions.create(model=MODEL, prompt="a", max_tokens=30)

    load = backend.get("/v1/load")

    assert load["model"] == MODEL
    assert load["status"] == "ready"
    assert (load["sequences_max"], load["waiting_max"], load["context_len"]) == (32, 256, CONTEXT)
    assert load["kv_blocks_total"] * load["kv_block_tokens"] > CONTEXT
    assert load["decode_step_s"]["1"] > 0
    assert load["prefill_token_s"] > 0
    assert load["tokens_per_s"] > 0
    assert load["num_preemptions"] >= 0
